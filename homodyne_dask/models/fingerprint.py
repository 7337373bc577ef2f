"""Fingerprints of functions: hashes of their code and of the values that it reads at the moment."""

import dis
import sys
import sysconfig
from collections.abc import Callable, Iterable
from functools import lru_cache
from hashlib import sha256
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np

_PLAIN_TYPES = (type(None), bool, int, float, complex, str)
_CONTAINERS = (dict, MappingProxyType, list, tuple, set, frozenset)
_INSTALLED_PATHS = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
_SLOTS = (GetSetDescriptorType, MemberDescriptorType)
"""What a class holds of its instances' values, which are hashed with the instances."""
_UNKNOWN = ", with the unknown state"


def installed(module: ModuleType) -> bool:
    """Return whether a module is installed: of Python, of this package, or of a library."""
    return of_this_package(module) or all(p.startswith(_INSTALLED_PATHS) for p in _paths(module))


def _root(module: ModuleType) -> str:
    return module.__name__.partition(".")[0]


def of_this_package(module: ModuleType) -> bool:
    """Return whether a module is one of homodyne_dask."""
    return _root(module) == __name__.partition(".")[0]


def _paths(module: ModuleType) -> list[str]:
    """Return the file of a module, the folders of a package without one, none for a part of Python."""
    file = getattr(module, "__file__", None)
    return [file] if file else [*getattr(module, "__path__", ())]


def walked(
    functions: Iterable[object], by_name: Callable[[ModuleType], bool] = installed
) -> "Walk":
    """Return the walk over functions; by_name: whether the parts of a module count by name only."""
    walk = Walk(by_name)
    for function in functions:
        walk.add_root(function)
    return walk


class Walk:
    """Adds values to a hash, each object once."""

    def __init__(self, by_name: Callable[[ModuleType], bool]) -> None:
        self.by_name = by_name
        """Whether the parts of a module count by name."""
        self.libraries: set[str] = set()
        """Of which parts were counted by name."""
        self.hash = sha256()
        self.seen: dict[int, tuple[int, Any]] = {}
        self.opaque: list[str] = []
        """Types of the objects whose state is unknown."""
        self.functions: list[FunctionType] = []
        self.named: list[Any] = []
        """Functions and classes that are not of installed packages."""
        self.modules: list[ModuleType] = []
        self.read: set[tuple[int, frozenset[str]]] = set()
        """Modules, and the names of attributes that were looked for in them."""

    def add_root(self, value: object) -> None:
        """Add a function of which the code is read even where it is installed."""
        if isinstance(value, FunctionType):
            self._first(value)
            self._add_function(value)
        else:
            self.add(value)

    def add(self, value: object) -> None:
        """Add a value and, where it holds others, those."""
        self._update(type(value).__name__)
        if isinstance(value, _PLAIN_TYPES):
            self._update(repr(value))
        elif isinstance(value, bytes):
            self._update(value)
        elif id(value) in self.seen:
            self._update(f"#{self.seen[id(value)][0]}")
        else:
            self._first(value)
            self._add_object(value)

    def _first(self, value: Any) -> None:
        self.seen[id(value)] = len(self.seen), value

    def _update(self, word: str | bytes) -> None:
        data = word.encode() if isinstance(word, str) else word
        self.hash.update(b"%d:" % len(data))
        self.hash.update(data)

    def _all(self, *values: Any) -> None:
        self._update(str(len(values)))
        for value in values:
            self.add(value)

    def _add_object(self, value: Any) -> None:
        if isinstance(value, ModuleType):
            self._update(value.__name__)
            self._counted_by_name(value)
        elif isinstance(value, CodeType):
            self._update(value.co_code)
            self._all(*value.co_names, *value.co_varnames, *value.co_consts)
        elif type(value) in _CONTAINERS:
            self._add_container(value)
        elif isinstance(value, property | staticmethod | classmethod | MethodType):
            names = ("fget", "__func__", "__self__")
            self._all(*(getattr(value, name, None) for name in names))
        elif isinstance(value, BuiltinFunctionType) and not isinstance(
            value.__self__, ModuleType | type | None
        ):  # it belongs to an object
            self._all(value.__name__, value.__self__)
        elif hasattr(value, "__qualname__") and self._counted_by_name(_module_of(value)):
            self._all(str(value.__qualname__), str(getattr(value, "__module__", None)))
        elif isinstance(value, FunctionType):
            self._add_function(value)
        elif isinstance(value, type):
            self._add_class(value)
        elif hasattr(value, "__array__"):
            self._add_array(value)
        elif (wrapped := getattr(value, "__wrapped__", None)) is not None:  # by jax.jit, or cached
            self._all(wrapped, getattr(value, "__dict__", None))
        else:
            self._add_state(value)

    def _add_container(self, value: Any) -> None:
        if isinstance(value, dict | MappingProxyType):
            self._all(*(part for item in value.items() for part in item))
        elif isinstance(value, set | frozenset):
            self._all(*sorted(map(self._hash_of, value)))
        else:
            self._all(*value)

    def _counted_by_name(self, module: ModuleType | None) -> bool:
        """Return whether the parts of a module count by name, and keep from which library they are."""
        if module is None or not self.by_name(module):
            return False
        self.libraries.add(_root(module))
        return True

    def _add_function(self, function: FunctionType) -> None:
        self.functions.append(function)
        self.named.append(function)
        code, names = function.__code__, names_used(function.__code__)
        cells = [_content(cell) for cell in function.__closure__ or ()]
        read = {name: function.__globals__.get(name) for name in sorted(names.globals)}
        self._all(
            code, function.__defaults__, function.__kwdefaults__, vars(function), *cells, read
        )
        imported = [sys.modules.get(name) for name in sorted(names.imported)]
        for module in [*read.values(), *cells, *imported]:
            if isinstance(module, ModuleType):
                self._add_module(module, names.attributes)

    def _add_module(self, module: ModuleType, attributes: frozenset[str]) -> None:
        """Add what a function may read of a module that is not installed."""
        if self.by_name(module) or (id(module), attributes) in self.read:
            return
        self.read.add((id(module), attributes))
        self.modules.append(module)
        known = {name: vars(module)[name] for name in sorted(attributes) if name in vars(module)}
        self.add(known)
        for part in known.values():
            if isinstance(part, ModuleType):
                self._add_module(part, attributes)

    def _add_class(self, value: type) -> None:
        self.named.append(value)
        own = {name: part for name, part in vars(value).items() if _counts(name, part)}
        self._all(value.__qualname__, *value.__bases__, own)

    def _hash_of(self, value: Any) -> str:
        """Return the hash of a member of a set, whose order is that of hashes of this process."""
        part = Walk(self.by_name)
        part.libraries = self.libraries
        part.seen, part.opaque, part.functions = dict(self.seen), self.opaque, self.functions
        part.named, part.modules = self.named, self.modules
        part.add(value)
        return part.hash.hexdigest()

    def _add_array(self, value: Any) -> None:
        array = np.asarray(value)
        if array.dtype.hasobject:
            self._all(*array.shape, array.ravel().tolist())
        else:
            self._all(str(array.dtype), *array.shape, array.tobytes())

    def _add_state(self, value: Any) -> None:
        """Add the state of an object, with slots and without, as a pickle holds it."""
        self.add(type(value))
        try:
            parts = value.__reduce_ex__(4)
        except Exception:  # what it raises is its own choice
            self.opaque.append(type(value).__qualname__)
            return
        if isinstance(parts, str):
            self._update(parts)
            return
        make, arguments, state, items, pairs, *_ = *parts, None, None, None, None
        self._all(make, arguments, state, list(items or ()), list(pairs or ()))


def _module_of(value: Any) -> ModuleType | None:
    """Return the module of a function or class; None where it is unknown or the script."""
    name = str(getattr(value, "__module__", None))
    return None if name == "__main__" else sys.modules.get(name)


def _counts(name: str, part: Any) -> bool:
    """Return whether an attribute of a class may change what its objects compute."""
    special = name.startswith("__") and name.endswith("__")
    return isinstance(part, FunctionType) or not (
        special or name == "_abc_impl" or isinstance(part, _SLOTS)
    )


def _content(cell: Any) -> Any:
    """Return the value of a variable that is closed over; None while it has none."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


class _Names(NamedTuple):
    """The names that code and the code nested in it use."""

    globals: frozenset[str]
    attributes: frozenset[str]
    imported: frozenset[str]


@lru_cache(maxsize=1000)
def names_used(code: CodeType) -> _Names:
    """Return the names that code uses."""
    used = [(step.opname, str(step.argval)) for step in dis.get_instructions(code)]
    inside = [names_used(part) for part in code.co_consts if isinstance(part, CodeType)]

    def of(*words: str) -> frozenset[str]:
        return frozenset(name for step, name in used if step.startswith(words))

    here = _Names(
        of("LOAD_GLOBAL", "LOAD_NAME"),
        of("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"),
        of("IMPORT_NAME"),
    )
    return _Names(*(one.union(*more) for one, *more in zip(here, *inside, strict=True)))


def fingerprint(*functions: Callable[..., object] | None) -> str:
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


def functions_of(*functions: Callable[..., object] | None) -> list[FunctionType]:
    """Return the functions and those they use, without those of installed packages."""
    return walked(functions).functions


def modules_of(*functions: Callable[..., object] | None) -> list[ModuleType]:
    """Return the modules, not installed, whose functions, classes and values the functions use."""
    walk = walked(functions)
    used = [sys.modules.get(str(getattr(f, "__module__", None))) for f in walk.named]
    return list({id(m): m for m in [*used, *walk.modules] if m and not installed(m)}.values())


def attributes_read(*functions: Callable[..., object] | None) -> set[str]:
    """Return the names of the attributes that the functions read, of whatever objects."""
    return {name for f in functions_of(*functions) for name in names_used(f.__code__).attributes}
