"""A hash of functions: their code, and the values that the code reads, as they are at the moment."""

import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any
from uuid import uuid4

from homodyne_dask.models.code_walk import installed, names_used, walked

_UNKNOWN = ", with the unknown state"


def fingerprint(*functions: Callable[..., Any] | None) -> str:
    """Return a hash of functions: code, constants, defaults, attributes, closures and globals, and
    the same of the functions and objects they use.

    Of installed packages only the functions given are read; others count by name. An object whose
    state Python cannot read (one that cannot be pickled) is named in what is returned, which is then
    unlike every other: such functions are compiled anew for each fit, and not resumed.
    """
    walk = walked(functions)
    if not walk.opaque:
        return walk.hash.hexdigest()
    names = ", ".join(sorted(set(walk.opaque)))
    return f"{walk.hash.hexdigest()}{_UNKNOWN} of {names} ({uuid4().hex})"


def known_part(digest: str) -> str:
    """Return the part of a fingerprint that does not depend on objects of unknown state."""
    return digest.partition(_UNKNOWN)[0]


def functions_of(*functions: Callable[..., Any] | None) -> list[FunctionType]:
    """Return the functions and those they use, without those of installed packages."""
    return walked(functions).functions


def modules_of(*functions: Callable[..., Any] | None) -> list[ModuleType]:
    """Return the modules, not installed, whose functions, classes and values the functions use."""
    walk = walked(functions)
    used = [sys.modules.get(str(getattr(f, "__module__", None))) for f in walk.named]
    return list({id(m): m for m in [*used, *walk.modules] if m and not installed(m)}.values())


def attributes_read(*functions: Callable[..., Any] | None) -> set[str]:
    """Return the names of the attributes that the functions read, of whatever objects."""
    return {name for f in functions_of(*functions) for name in names_used(f.__code__).attributes}
