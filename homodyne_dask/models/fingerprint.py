"""A hash of a function: its code, and the globals and closures that the code uses."""

import sys
import sysconfig
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import CodeType, MethodType, ModuleType
from typing import Any

import numpy as np

_PLAIN_TYPES = (type(None), bool, int, float, complex, str, bytes)
_INSTALLED_PATHS = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))


def installed(module: Any) -> bool:
    """Return whether a module is installed: of Python, of this package, or of a library."""
    here = module.__name__.partition(".")[0] == __name__.partition(".")[0]
    return here or all(path.startswith(_INSTALLED_PATHS) for path in _paths(module))


def beside_program(module: Any) -> bool:
    """Return whether a module lies in the working folder or in that of the program.

    The program imports it from there, and workers cannot.
    """
    main = getattr(sys.modules["__main__"], "__file__", None)
    folders = {Path.cwd(), *([Path(main).absolute().parent] if main else [])}
    tops = [
        Path(path).parent if path.endswith("__init__.py") else Path(path) for path in _paths(module)
    ]
    return any(top.absolute().parent in folders for top in tops)


def _paths(module: Any) -> list[str]:
    """Return the file of a module, the folders of a package without one, none for a part of Python."""
    file = getattr(module, "__file__", None)
    return [file] if file else [*getattr(module, "__path__", ())]


def fingerprint(*functions: Callable[..., Any] | None) -> str:
    """Return a hash of functions: code, constants, defaults, closures and globals, and the same of
    the functions they call. Installed functions and classes count by name only.
    """
    walk = _Walk()
    for function in functions:
        walk.add(function)
    return walk.hash.hexdigest()


class _Walk:
    """Adds values to a hash, each object once."""

    def __init__(self) -> None:
        self.hash = sha256()
        self.seen: dict[int, Any] = {}

    def add(self, value: Any) -> None:
        """Add a value and, where it holds others, those."""
        self._update(type(value).__name__)
        if isinstance(value, _PLAIN_TYPES):
            self._update(repr(value))
        elif id(value) not in self.seen:
            self.seen[id(value)] = value
            self._add_object(value)

    def _update(self, word: str) -> None:
        self.hash.update(word.encode() + b"\0")

    def _all(self, *values: Any) -> None:
        self._update(str(len(values)))
        for value in values:
            self.add(value)

    def _add_object(self, value: Any) -> None:
        if isinstance(value, ModuleType):
            self._update(value.__name__)
        elif isinstance(value, CodeType):
            self.hash.update(value.co_code)
            self._all(*value.co_names, *value.co_consts)
        elif isinstance(value, Mapping):
            self._all(*(part for item in value.items() for part in item))
        elif isinstance(value, list | tuple):
            self._all(*value)
        elif isinstance(value, set | frozenset):
            self._all(*sorted(map(repr, value)))
        elif isinstance(value, partial):
            self._all(value.func, *value.args, value.keywords)
        elif isinstance(value, MethodType):
            self._all(value.__func__, value.__self__)
        elif hasattr(value, "__array__") and not isinstance(value, type):
            array = np.asarray(value)
            self._all(str(array.dtype), *array.shape, array.tobytes())
        else:
            self._add_named(value)

    def _add_named(self, value: Any) -> None:
        """Add a function, a class or an object of one."""
        self._update(str(getattr(value, "__qualname__", type(value).__qualname__)))
        if _from_a_library(value):
            self._update(str(getattr(value, "__module__", None)))
        elif hasattr(value, "__wrapped__"):
            self.add(value.__wrapped__)
        elif hasattr(value, "__code__"):
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            named = {
                name: value.__globals__.get(name)
                for name in sorted(_referenced_names(value.__code__))
            }
            self._all(value.__code__, value.__defaults__, value.__kwdefaults__, *cells, named)
        elif isinstance(value, type):
            own = {name: part for name, part in vars(value).items() if hasattr(part, "__code__")}
            self._all(*value.__bases__, own)
        else:
            self._all(type(value), getattr(value, "__dict__", None))


def _from_a_library(value: Any) -> bool:
    """Return whether a function or class belongs to an installed module."""
    module = sys.modules.get(str(getattr(value, "__module__", None)))
    qualified = isinstance(getattr(value, "__qualname__", None), str)
    return qualified and module is not None and module.__name__ != "__main__" and installed(module)


def _referenced_names(code: CodeType) -> set[str]:
    """Return the names used by code and the code nested in it."""
    inside = [part for part in code.co_consts if isinstance(part, CodeType)]
    return set(code.co_names).union(*map(_referenced_names, inside))
