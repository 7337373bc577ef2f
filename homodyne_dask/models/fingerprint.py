"""Fingerprints of functions: hashes of their code and of the values that it reads at the moment."""

import dis
import sys
import sysconfig
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from hashlib import sha256
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any
from uuid import uuid4

_INSTALLED_PATHS = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
_UNKNOWN = ", with the unknown state"


class Reading:
    """A hash of functions and all that they read, each object once; what is installed counts by name."""

    def __init__(self, *functions: Callable[..., object] | None) -> None:
        self.functions, self.modules = list[FunctionType](), dict[str, ModuleType]()
        self.attributes, self.opaque, self.hash = set[str](), set[str](), sha256()
        self._seen, self._read = dict[int, tuple[int, Any]](), dict[str, dict[str, Any]]()
        self._add(*functions, by_code=True)  # of these even where they are installed
        hashed, names = set[tuple[str, str]](), self.attributes
        while (
            unhashed := {(m, a) for m, space in self._read.items() for a in names & space.keys()}
            - hashed
        ):
            self._add(*((m, a, self._read[m][a]) for m, a in sorted(unhashed)))
            hashed |= unhashed

    def _add(self, *values: Any, by_code: bool = False) -> None:
        self._add_word(len(values))
        for value in values:
            self._add_word(type(value).__name__)
            # by number where it was seen before: objects may refer to each other in a circle
            plain = isinstance(value, bool | int | float | complex | str | bytes | None)
            if plain or id(value) in self._seen:
                self._add_word(value if plain else self._seen[id(value)][0])
            else:
                self._seen[id(value)] = len(self._seen), value
                self._add(*self._parts_of(value, by_code))

    def _add_word(self, word: Any) -> None:
        data = word if isinstance(word, bytes) else repr(word).encode()
        self.hash.update(b"%d:" % len(data) + data)

    def _parts_of(self, value: Any, by_code: bool) -> Iterable[Any]:
        name, module = getattr(value, "__qualname__", None), _module_of(value)
        if module and not _installed(module):
            self.modules[module.__name__] = module
            self._read |= {value.__name__: vars(value)} if value is module else {}
        elif module and _has_no_state(value) and not (by_code and isinstance(value, FunctionType)):
            return str(name), module.__name__
        if isinstance(value, type):
            return name, *value.__bases__, _attributes_that_count(value)
        if isinstance(value, FunctionType):
            return self._parts_of_function(value)
        if parts_of := _PARTS.get(type(value)):
            return parts_of(value)
        if (wrapped := getattr(value, "__wrapped__", None)) is not None:  # by jax.jit, or cached
            return wrapped, getattr(value, "__dict__", None)
        return self._state_of(value)

    def _state_of(self, value: Any) -> Iterable[Any]:
        try:  # the state of an object, with slots and without, or of a method, as a pickle holds it
            state = value.__reduce_ex__(4)
        except Exception:  # what it raises is its own choice
            self.opaque.add(type(value).__qualname__)
            return (type(value),)
        state = [state] if isinstance(state, str) else state
        return type(value), *state[:3], *(tuple(items) for items in state[3:5] if items)

    def _parts_of_function(self, function: Any) -> Iterable[Any]:
        self.functions.append(function)
        code, empty = function.__code__, CellType()
        names, modules, attributes = (sorted(_names(code, steps)) for steps in _STEPS)
        self.attributes.update(attributes)
        cells = [None if c == empty else c.cell_contents for c in function.__closure__ or ()]
        read = {name: function.__globals__.get(name) for name in names}
        defaults = function.__defaults__, function.__kwdefaults__
        return code, *defaults, vars(function), cells, read, [*map(sys.modules.get, modules)]


# the order of a set is that of hashes of this process
_in_order = partial(sorted, key=lambda o: type(o).__name__ + getattr(o, "__qualname__", repr(o)))
_PARTS: dict[type, Callable[[Any], Iterable[Any]]] = {
    CodeType: lambda code: (code.co_code, *code.co_names, *code.co_varnames, *code.co_consts),
    ModuleType: lambda module: (module.__name__,),
    frozenset: _in_order,
    property: lambda attribute: (attribute.fget,),
    set: _in_order,
    tuple: iter,
}
_STEPS = ("LOAD_GLOBAL", "LOAD_NAME"), ("IMPORT_NAME",), ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM")


def _module_of(value: Any) -> ModuleType | None:
    if isinstance(value, ModuleType):
        return value
    where = getattr(value, "__module__", None)
    script = not getattr(value, "__qualname__", None) or where == "__main__"
    return None if script else sys.modules.get(str(where))


def _has_no_state(value: Any) -> bool:
    return isinstance(getattr(value, "__self__", None), ModuleType | type | None)


def _installed(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    paths = [file] if file else [*getattr(module, "__path__", ())]  # none for a part of Python
    ours = module.__name__.partition(".")[0] == __name__.partition(".")[0]
    return ours or all(path.startswith(_INSTALLED_PATHS) for path in paths)


def _attributes_that_count(cls: type) -> dict[str, Any]:
    """Return functions and plain attributes; not descriptors of slots, which are of instances."""
    attributes = vars(cls).items()
    special = {k for k, v in attributes if k.startswith("__") or hasattr(v, "__objclass__")}
    special.add("_abc_impl")  # caches of abc, whose state nobody can read
    return {k: v for k, v in attributes if k not in special or isinstance(v, FunctionType)}


@lru_cache(maxsize=3000)
def _names(code: CodeType, steps: tuple[str, ...]) -> frozenset[str]:
    # functions within functions, lambdas and comprehensions have code of their own
    inside = [_names(c, steps) for c in code.co_consts if isinstance(c, CodeType)]
    used = {str(i.argval) for i in dis.get_instructions(code) if i.opname.startswith(steps)}
    return frozenset(used.union(*inside))


def fingerprint(*functions: Callable[..., object] | None) -> str:
    """Return a hash of functions and of what they use; one of an object of unknown state is unlike all."""
    reading = Reading(*functions)
    unknown = f"{_UNKNOWN} of {', '.join(sorted(reading.opaque))} ({uuid4().hex})"
    return reading.hash.hexdigest() + unknown * bool(reading.opaque)


def known_part(digest: str) -> str:
    return digest.partition(_UNKNOWN)[0]
