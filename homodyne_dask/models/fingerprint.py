"""Fingerprints of functions: hashes of their code and of the values that it reads at the moment."""

import dis
import sys
import sysconfig
from collections.abc import Callable, Iterable
from functools import lru_cache
from hashlib import sha256
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any
from uuid import uuid4

import numpy as np

_PLAIN_TYPES = (type(None), bool, int, float, complex, str)
_INSTALLED_PATHS = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
_GLOBALS, _IMPORTED = ("LOAD_GLOBAL", "LOAD_NAME"), ("IMPORT_NAME",)
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM")
"""Instructions by what they name."""
_UNKNOWN = ", with the unknown state"
_PARTS: dict[type, Callable[[Any], Iterable[Any]]] = {
    CodeType: lambda code: (code.co_code, *code.co_names, *code.co_varnames, *code.co_consts),
    list: iter,
    tuple: iter,
    dict: lambda table: (part for item in table.items() for part in item),
    MappingProxyType: lambda table: (part for item in table.items() for part in item),
    # the order of a set is that of hashes of this process
    set: lambda members: sorted(members, key=_order),
    frozenset: lambda members: sorted(members, key=_order),
    property: lambda of: (of.fget,),
    staticmethod: lambda of: (of.__func__,),
    classmethod: lambda of: (of.__func__,),
    MethodType: lambda of: (of.__func__, of.__self__),
}
"""What values of some types are made of."""


def _order(value: Any) -> str:
    return type(value).__name__ + getattr(value, "__qualname__", repr(value))


def _installed(module: ModuleType | None) -> bool:
    """Return whether a module is of Python, of this package or of a library: its parts count by name."""
    if module is None:
        return False
    file = getattr(module, "__file__", None)
    paths = [file] if file else [*getattr(module, "__path__", ())]  # none for a part of Python
    ours = module.__name__.partition(".")[0] == __name__.partition(".")[0]
    return ours or all(path.startswith(_INSTALLED_PATHS) for path in paths)


def _module_of(value: Any) -> ModuleType | None:
    """Return the module of a function or class; None where it is unknown or the script."""
    name = str(getattr(value, "__module__", None))
    return None if name == "__main__" else sys.modules.get(name)


class _Walk:
    """Adds functions, and all that they read, to a hash, each object once."""

    def __init__(self, functions: Iterable[object]) -> None:
        self.hash = sha256()
        self.seen: dict[int, tuple[int, Any]] = {}
        self.opaque: set[str] = set()
        """Types of the objects whose state is unknown."""
        self.functions: list[FunctionType] = []
        self.used: list[Any] = []
        """Functions and classes, and modules of which attributes are read, that are not installed."""
        self.read: set[tuple[int, str]] = set()
        """Modules, and the names of attributes that were read of them."""
        for function in functions:
            if isinstance(function, FunctionType):  # its code is read even where it is installed
                self.seen[id(function)] = len(self.seen), function
                self._add(*self._parts_of_function(function))
            else:
                self._add(function)

    def _add(self, *values: Any) -> None:
        self._add_word(str(len(values)))
        for value in values:
            self._add_word(type(value).__name__)
            if isinstance(value, bytes):
                self._add_word(value)
            elif isinstance(value, _PLAIN_TYPES):
                self._add_word(repr(value))
            elif id(value) in self.seen:
                self._add_word(f"#{self.seen[id(value)][0]}")
            else:
                self.seen[id(value)] = len(self.seen), value
                parts = _PARTS.get(type(value), self._parts_of_object)
                self._add(*parts(value))

    def _add_word(self, word: str | bytes) -> None:
        data = word.encode() if isinstance(word, str) else word
        self.hash.update(b"%d:" % len(data))
        self.hash.update(data)

    def _parts_of_object(self, value: Any) -> Iterable[Any]:
        if isinstance(value, ModuleType):
            return (value.__name__,)
        if isinstance(value, BuiltinFunctionType) and not isinstance(
            value.__self__, ModuleType | type | None
        ):  # it belongs to an object
            return value.__name__, value.__self__
        if hasattr(value, "__qualname__") and _installed(_module_of(value)):
            return str(value.__qualname__), str(value.__module__)
        if isinstance(value, FunctionType):
            return self._parts_of_function(value)
        if isinstance(value, type):
            self.used.append(value)
            own = {name: part for name, part in vars(value).items() if _counts(name, part)}
            return value.__qualname__, *value.__bases__, own
        if hasattr(value, "__array__"):
            array = np.asarray(value)
            objects = array.dtype.hasobject
            return str(array.dtype), *array.shape, array.tolist() if objects else array.tobytes()
        if (wrapped := getattr(value, "__wrapped__", None)) is not None:  # by jax.jit, or cached
            return wrapped, getattr(value, "__dict__", None)
        return type(value), *self._state(value)

    def _state(self, value: Any) -> Iterable[Any]:
        """Return the state of an object, with slots and without, as a pickle holds it."""
        try:
            parts = value.__reduce_ex__(4)
        except Exception:  # what it raises is its own choice
            self.opaque.add(type(value).__qualname__)
            return ()
        if isinstance(parts, str):
            return (parts,)
        make, arguments, state, items, pairs, *_ = *parts, None, None, None, None
        return make, arguments, state, list(items or ()), list(pairs or ())

    def _parts_of_function(self, function: FunctionType) -> Iterable[Any]:
        self.functions.append(function)
        self.used.append(function)
        code = function.__code__
        closed_over = function.__closure__ or ()  # one that has no value yet is like an empty cell
        cells = [None if cell == CellType() else cell.cell_contents for cell in closed_over]
        names = sorted(_names(code, *_GLOBALS))
        read = {name: function.__globals__.get(name) for name in names}
        imported = [sys.modules.get(name) for name in sorted(_names(code, *_IMPORTED))]
        attributes = sorted(_names(code, *_ATTRIBUTES))
        values = [self._read(part, attributes) for part in (*read.values(), *cells, *imported)]
        own = function.__defaults__, function.__kwdefaults__, vars(function)
        return code, *own, cells, read, values

    def _read(self, module: Any, attributes: list[str]) -> dict[str, Any]:
        """Return what a function may read of a module that is not installed; nothing of another value."""
        if not isinstance(module, ModuleType) or _installed(module):
            return {}
        self.used.append(module)
        names = [name for name in attributes if name in vars(module)]
        known = {n: vars(module)[n] for n in names if (id(module), n) not in self.read}
        self.read |= {(id(module), name) for name in names}
        inside = {f"{name}.": self._read(part, attributes) for name, part in known.items()}
        return known | inside


def _counts(name: str, part: Any) -> bool:
    """Return whether an attribute of a class may change what its objects compute."""
    special = name.startswith("__") and name.endswith("__")
    slot = isinstance(part, GetSetDescriptorType | MemberDescriptorType)  # of instances
    return isinstance(part, FunctionType) or not (special or name == "_abc_impl" or slot)


@lru_cache(maxsize=3000)
def _names(code: CodeType, *steps: str) -> frozenset[str]:
    """Return the names that some instructions of code, and of the code nested in it, use."""
    here = {str(at.argval) for at in dis.get_instructions(code) if at.opname.startswith(steps)}
    inside = [_names(part, *steps) for part in code.co_consts if isinstance(part, CodeType)]
    return frozenset(here.union(*inside))


def fingerprint(*functions: Callable[..., object] | None) -> str:
    """Return a hash of functions: code, constants, defaults, attributes, closures and globals, and
    the same of the functions and objects they use.

    Of installed packages only the functions given are read; others count by name. An object whose
    state Python cannot read (one that cannot be pickled) is named in what is returned, which is then
    unlike every other: such functions are compiled anew for each fit, and not resumed.
    """
    walk = _Walk(functions)
    digest = walk.hash.hexdigest()
    if not walk.opaque:
        return digest
    return f"{digest}{_UNKNOWN} of {', '.join(sorted(walk.opaque))} ({uuid4().hex})"


def known_part(digest: str) -> str:
    """Return the part of a fingerprint that does not depend on objects of unknown state."""
    return digest.partition(_UNKNOWN)[0]


def functions_of(*functions: Callable[..., object] | None) -> list[FunctionType]:
    """Return the functions and those they use, without those of installed packages."""
    return _Walk(functions).functions


def modules_of(*functions: Callable[..., object] | None) -> list[ModuleType]:
    """Return the modules, not installed, whose functions, classes and values the functions use."""
    used = _Walk(functions).used
    found = [
        one if isinstance(one, ModuleType) else sys.modules.get(str(one.__module__)) for one in used
    ]
    return list(
        {id(module): module for module in found if module and not _installed(module)}.values()
    )


def attributes_read(*functions: Callable[..., object] | None) -> set[str]:
    """Return the names of the attributes that the functions read, of whatever objects."""
    return {name for f in functions_of(*functions) for name in _names(f.__code__, *_ATTRIBUTES)}
