"""Values that are handed out: who has them cannot change what a fit goes on with, or what it wrote."""

from dataclasses import is_dataclass
from typing import Any, NoReturn

import numpy as np


class _Refusing:
    """A dictionary or list that refuses changes; copies of it are plain ones."""

    def _refuse(self, *_given: Any, **_named: Any) -> NoReturn:
        raise TypeError("results, events and stores are read-only: change a copy, or make it anew")

    __setitem__ = __delitem__ = __ior__ = __iadd__ = __imul__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse
    append = extend = insert = remove = reverse = sort = _refuse


class ReadOnlyDict(_Refusing, dict[Any, Any]):
    """A dictionary that refuses changes."""

    def __reduce__(self) -> Any:
        return ReadOnlyDict, (dict(self),)


class ReadOnlyList(_Refusing, list[Any]):
    """A list that refuses changes; unlike a tuple it equals the list that it was made from."""

    def __reduce__(self) -> Any:
        return ReadOnlyList, (list(self),)


class HandedOut:
    """A dataclass whose fields and properties cannot be changed through what it hands out.

    Tables of xarray, whose columns can be exchanged, are handed out as copies that share the arrays.
    """

    def __post_init__(self) -> None:
        make_read_only(self)

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, name)
        return value if name.startswith("_") else _handed_out(value)


def _handed_out(value: Any) -> Any:
    if _is_table(value):
        return read_only(value).copy(deep=False)
    if isinstance(value, dict) and any(map(_is_table, value.values())):
        return ReadOnlyDict({name: _handed_out(table) for name, table in value.items()})
    if type(value) in (dict, list) or isinstance(value, np.ndarray):
        return read_only(value)
    return value


def _is_table(value: Any) -> bool:
    return type(value).__module__.startswith("xarray.")


def make_read_only(one: Any) -> None:
    """Make the fields of a dataclass read-only (`read_only`)."""
    vars(one).update({name: read_only(part) for name, part in vars(one).items()})


def read_only(value: Any) -> Any:
    """Return a value that refuses changes, as do the parts of dataclasses, tuples, lists and dictionaries.

    Dictionaries and lists are others than those given; arrays, also those of tables, are the same.
    """
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    elif _is_table(value):
        for node in getattr(value, "subtree", (value,)):
            columns = node.variables if hasattr(node, "variables") else {"": node.variable}
            for column in columns.values():
                read_only(column.data)
    elif isinstance(value, dict):
        return ReadOnlyDict({name: read_only(part) for name, part in value.items()})
    elif isinstance(value, list):
        return ReadOnlyList(map(read_only, value))
    elif isinstance(value, tuple):
        parts = [read_only(part) for part in value]
        make = getattr(value, "_make", type(value))  # of a named tuple
        return make(parts)
    elif is_dataclass(value) and not isinstance(value, type | HandedOut):
        make_read_only(value)
    return value
