"""All uses of undocumented parts of xarray.

Each function names the public call that would replace it, the versions it was seen in, and what
happens where it is missing.
"""

from typing import Any


def in_memory(dataset: Any, name: str) -> bool:
    """Return whether the values of a variable are in the memory of this process.

    Private: `Variable._in_memory`, seen in xarray 2026.9; the public `chunks` tells only whether a
    variable is one of Dask. Where it is missing, a variable without chunks counts as in memory if its
    dataset names no source: data of a store that were loaded are then read again by workers.
    """
    variable = dataset[name].variable
    try:
        return bool(variable._in_memory)
    except AttributeError:
        return variable.chunks is None and "source" not in dataset.encoding
