"""Fingerprints of functions: hashes of their code and of the values that it reads at the moment."""

import dis
import sys
import sysconfig
from collections.abc import Callable, Iterable
from functools import lru_cache
from hashlib import sha256
from types import CellType, CodeType, FunctionType, MappingProxyType, ModuleType
from typing import Any
from uuid import uuid4

_PLAIN_TYPES = (type(None), bool, int, float, complex, str, bytes)
_INSTALLED_PATHS = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
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
    property: lambda attribute: (attribute.fget,),
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


class Reading:
    """A walk over functions and all that they read, each object once, and its hash."""

    def __init__(self, *functions: Callable[..., object] | None) -> None:
        self.hash = sha256()
        self.opaque: set[str] = set()
        """Types of the objects whose state is unknown."""
        self.functions: list[FunctionType] = []
        """Those given, and those they use that are not installed."""
        self.modules: dict[str, ModuleType] = {}
        """Not installed ones, whose functions, classes and values are used, by name."""
        self.attributes: set[str] = set()
        """Names of the attributes that the functions read, of whatever objects."""
        self._seen: dict[int, tuple[int, Any]] = {}
        self._read_of: set[tuple[int, str]] = set()
        """Modules, and the names of attributes that were read of them."""
        for function in functions:
            if isinstance(function, FunctionType):  # its code is read even where it is installed
                self._seen[id(function)] = len(self._seen), function
                self._add(*self._parts_of_function(function))
            else:
                self._add(function)

    def _add(self, *values: Any) -> None:
        self._add_word(len(values))
        for value in values:
            self._add_word(type(value).__name__)
            if isinstance(value, _PLAIN_TYPES):
                self._add_word(value)
            elif id(value) in self._seen:
                self._add_word(self._seen[id(value)][0])
            else:
                self._seen[id(value)] = len(self._seen), value
                self._add(*_PARTS.get(type(value), self._parts_of_object)(value))

    def _add_word(self, word: Any) -> None:
        data = word if isinstance(word, bytes) else repr(word).encode()
        self.hash.update(b"%d:" % len(data))
        self.hash.update(data)

    def _parts_of_object(self, value: Any) -> Iterable[Any]:
        if isinstance(value, ModuleType):
            return (value.__name__,)
        module = _module_of(value) if hasattr(value, "__qualname__") else None
        owner = getattr(value, "__self__", None)
        if _installed(module) and isinstance(owner, ModuleType | type | None):
            return str(value.__qualname__), str(value.__module__)
        if isinstance(value, FunctionType):
            return self._parts_of_function(value)
        if isinstance(value, type):
            self._use(module)
            counting = {name: part for name, part in vars(value).items() if _counts(name, part)}
            return value.__qualname__, *value.__bases__, counting
        if (wrapped := getattr(value, "__wrapped__", None)) is not None:  # by jax.jit, or cached
            return wrapped, getattr(value, "__dict__", None)
        try:  # the state of an object, with slots and without, or of a method, as a pickle holds it
            state = value.__reduce_ex__(4)
        except Exception:  # what it raises is its own choice
            self.opaque.add(type(value).__qualname__)
            return (type(value),)
        if isinstance(state, str):
            return type(value), state
        return type(value), *state[:3], *(list(items) for items in state[3:5] if items)

    def _parts_of_function(self, function: FunctionType) -> Iterable[Any]:
        self.functions.append(function)
        self._use(_module_of(function))
        code = function.__code__
        closed_over = function.__closure__ or ()  # one that has no value yet is like an empty cell
        cells = [None if cell == CellType() else cell.cell_contents for cell in closed_over]
        names = sorted(_names(code, "LOAD_GLOBAL", "LOAD_NAME"))
        read = {name: function.__globals__.get(name) for name in names}
        imported = [sys.modules.get(name) for name in sorted(_names(code, "IMPORT_NAME"))]
        attributes = sorted(_names(code, "LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"))
        self.attributes.update(attributes)
        values = [
            self._parts_read(part, attributes) for part in (*read.values(), *cells, *imported)
        ]
        own = function.__defaults__, function.__kwdefaults__, vars(function)
        return code, *own, cells, read, values

    def _parts_read(self, module: Any, attributes: list[str]) -> dict[str, Any]:
        """Return what a function may read of a module that is not installed; nothing of another value."""
        if not isinstance(module, ModuleType) or _installed(module):
            return {}
        self._use(module)
        names = [name for name in attributes if name in vars(module)]
        new = {n: vars(module)[n] for n in names if (id(module), n) not in self._read_of}
        self._read_of |= {(id(module), name) for name in names}
        inside = {f"{name}.": self._parts_read(part, attributes) for name, part in new.items()}
        return new | inside

    def _use(self, module: ModuleType | None) -> None:
        if module is not None and not _installed(module):
            self.modules[module.__name__] = module


def _module_of(value: Any) -> ModuleType | None:
    """Return the module of a function or class; None where it is unknown or the script."""
    name = str(getattr(value, "__module__", None))
    return None if name == "__main__" else sys.modules.get(name)


def _counts(name: str, part: Any) -> bool:
    """Return whether an attribute of a class may change what its objects compute."""
    special = name.startswith("__") and name.endswith("__")
    slot = hasattr(part, "__objclass__")  # a descriptor, of instances
    return isinstance(part, FunctionType) or not (special or name == "_abc_impl" or slot)


@lru_cache(maxsize=3000)
def _names(code: CodeType, *steps: str) -> frozenset[str]:
    """Return the names that some instructions of code, and of the code nested in it, use."""
    named = {
        str(step.argval) for step in dis.get_instructions(code) if step.opname.startswith(steps)
    }
    inside = [_names(part, *steps) for part in code.co_consts if isinstance(part, CodeType)]
    return frozenset(named.union(*inside))


def fingerprint(*functions: Callable[..., object] | None) -> str:
    """Return a hash of functions: code, constants, defaults, attributes, closures and globals, and
    the same of the functions and objects they use.

    Of installed packages only the functions given are read; others count by name. An object whose
    state Python cannot read (one that cannot be pickled) is named in what is returned, which is then
    unlike every other: such functions are compiled anew for each fit, and not resumed.
    """
    reading = Reading(*functions)
    digest = reading.hash.hexdigest()
    if not reading.opaque:
        return digest
    return f"{digest}{_UNKNOWN} of {', '.join(sorted(reading.opaque))} ({uuid4().hex})"


def known_part(digest: str) -> str:
    """Return the part of a fingerprint that does not depend on objects of unknown state."""
    return digest.partition(_UNKNOWN)[0]
