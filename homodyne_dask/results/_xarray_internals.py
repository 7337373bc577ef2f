"""All uses of undocumented parts of xarray.

Each function names the public call that would replace it, the versions it was seen in, and what
happens where it is missing.
"""

import sys
from importlib import import_module

from packaging.version import Version


class _DaskArrays:
    """What xarray knows of dask.array, of which it loads nothing before anything else has."""

    available = True
    module = property(lambda self: import_module("dask"))
    version = property(lambda self: Version(self.module.__version__))

    @property
    def type(self) -> tuple[type, ...]:
        array = getattr(sys.modules.get("dask.array"), "Array", None)
        return () if array is None else (array,)


def load_dask_arrays_late() -> None:
    """Let xarray load dask.array where it is used, and not with the first table that it makes.

    It loads for a third of a second, to tell that an array is none of its. Private:
    `xarray.namedarray.pycompat._cached_duck_array_modules`, seen in xarray 2026.9; there is no public
    way. Where it is missing, or xarray has looked already, nothing changes.
    """
    try:
        from xarray.namedarray.pycompat import _cached_duck_array_modules as known
    except ImportError:
        return
    known.setdefault("dask", _DaskArrays())  # pyright: ignore[reportArgumentType]
