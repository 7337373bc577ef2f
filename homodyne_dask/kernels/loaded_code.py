"""What a program of this package is made from, known without tracing it.

JAX makes the same program of the same code, values and arguments. The code is what this process has
loaded, with the values that it reads now, such as constants of modules; the files count, too, for what
a module does while it is imported. Of libraries the versions count.
"""

import hashlib
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

from homodyne_dask.kernels._jax_internals import trace_context
from homodyne_dask.models.code_walk import of_this_package, walked
from homodyne_dask.models.user_defined import UserDefined

VERSIONS = (sys.version, *map(version, ("jax", "jaxlib", "numpy", "ml_dtypes", "opt_einsum")))
"""Of all that traces and compiles."""
_LIBRARIES = {"jax", "numpy", "jaxtyping", *sys.stdlib_module_names}
"""Whose parts may count by name; what jaxtyping has is in no program."""


def made_of(function: Callable[..., Any], args: Any, static: Mapping[str, Any]) -> str | None:
    """Return what tells the program of a function from all others; None where only its text can.

    That is so where a user's functions are in it, where a function of another library than JAX and
    NumPy is called, and where the state of an object or of JAX is unknown.
    """
    context = trace_context()
    if context is None or any(isinstance(value, UserDefined) for value in static.values()):
        return None
    leaves, structure = jax.tree.flatten(args)
    walk = walked([function, dict(static), *_classes(structure)], lambda m: not of_this_package(m))
    names = {part.__module__ for part in walk.named} | {m.__name__ for m in walk.modules}
    if None in names:  # of a function that was made outside of any module
        return None
    files = [_file_hash(sys.modules.get(name)) for name in sorted(names)]
    if walk.opaque or walk.libraries - _LIBRARIES or None in files:
        return None
    shapes = [repr(jax.typeof(leaf)) for leaf in leaves]
    return repr((walk.hash.hexdigest(), files, str(structure), shapes, context))


def _classes(structure: Any) -> list[type]:
    """Return the classes of which an argument, or a part of it, is an instance."""
    node = structure.node_data()
    inside = [one for child in structure.children() for one in _classes(child)]
    return inside if node is None else [node[0], *inside]


@cache
def _file_hash(module: ModuleType | None) -> str | None:
    """Return the hash of the file of a module of this package, read once; None of any other module."""
    if module is None or not of_this_package(module) or module.__file__ is None:
        return None
    try:
        return hashlib.sha256(Path(module.__file__).read_bytes()).hexdigest()
    except OSError:
        return None
