"""Models made of a user's functions: their identity, and their way to workers."""

import io
import pickle
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from threading import Lock
from types import ModuleType
from typing import Any, Self

import cloudpickle
from cloudpickle import register_pickle_by_value, unregister_pickle_by_value
from zict import LRU

from homodyne_dask.models.fingerprint import attributes_read, fingerprint, modules_of
from homodyne_dask.models.parameters import Parametrized

_UNPACKED: LRU[str, Any] = LRU(32, {})
"""Models that this process received, by digest."""
_LOCK = Lock()


@dataclass(frozen=True, eq=False, repr=False)
class UserDefined(Parametrized):
    """A model whose functions are a user's. What they read may change between two fits: each
    fit is of the model as it is at its beginning (`current`), and its digest tells them apart.
    """

    digest: str = field(default="", kw_only=True)
    """Of the functions and all that they read (see `fingerprint`); '' before a fit."""
    received: bool = field(default=False, kw_only=True)
    """Whether it came from another process, with its own copy of what the functions read."""

    @property
    @abstractmethod
    def functions(self) -> tuple[Callable[..., Any] | None, ...]:
        """The functions that the model computes with."""

    def current(self) -> Self:
        """Return the model with the digest of its functions and of what they read now."""
        if self.received:
            return self
        digest = fingerprint(*self.functions)
        return self if digest == self.digest else replace(self, digest=digest)

    def __eq__(self, other: object) -> bool:
        """Return whether both compute the same; models of which that is unknown equal themselves."""
        if not (isinstance(other, UserDefined) and self.digest and other.digest):
            return self is other
        return self._key == other._key

    def __hash__(self) -> int:
        return hash((self.name, self.digest))

    @property
    def _key(self) -> tuple[Any, ...]:
        return type(self), self.name, self.parameters, self.power_laws, self.digest

    @cached_property
    def _packed(self) -> bytes:
        made_of = {one.name: getattr(self, one.name) for one in fields(self)}
        return _by_value(made_of, *self.functions)

    def __copy__(self) -> Self:
        """Return itself: it does not change, and a copy must see what its functions read as it does."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickle by value, for workers."""
        now = self if self.digest else self.current()
        return _unpacked, (type(self), now.digest, now._packed)


def _unpacked(made: type[UserDefined], digest: str, packed: bytes) -> UserDefined:
    """Return the model of these bytes: of one digest always the same object, so that it is compiled once."""
    with _LOCK:
        if digest not in _UNPACKED:
            _UNPACKED[digest] = made(**pickle.loads(packed) | {"received": True})
        return _UNPACKED[digest]


class _Pickler(cloudpickle.Pickler):
    """Pickles the modules of a user, of which workers may have other values, with the attributes used."""

    def __init__(self, file: io.BytesIO, modules: list[ModuleType], attributes: set[str]) -> None:
        super().__init__(file)
        self.modules, self.attributes = modules, attributes

    def reducer_override(self, obj: Any) -> Any:
        """Return how an object is made again."""
        if isinstance(obj, ModuleType) and any(obj is one for one in self.modules):
            used = {name: part for name, part in vars(obj).items() if name in self.attributes}
            return ModuleType, (obj.__name__,), used
        return super().reducer_override(obj)


def _by_value(value: Any, *functions: Callable[..., Any] | None) -> bytes:
    """Return a pickle that holds the code of functions written in scripts, notebooks and folders,
    and the values of theirs and of modules that the functions read.

    Code of installed packages is pickled by name: workers have them.
    """
    modules, file = modules_of(*functions), io.BytesIO()
    for module in modules:
        register_pickle_by_value(module)
    try:
        _Pickler(file, modules, attributes_read(*functions)).dump(value)
    finally:
        for module in modules:
            unregister_pickle_by_value(module)
    return file.getvalue()
