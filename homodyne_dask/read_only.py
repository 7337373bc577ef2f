"""Read-only values: through what results and events hand out, nobody changes what a fit uses or wrote."""

from collections.abc import Callable
from dataclasses import is_dataclass
from functools import cached_property, wraps
from typing import Any, NoReturn

import numpy as np


class _Refusing:
    """A dictionary or list that refuses changes; copies of it are plain ones."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("results, events and stores are read-only: change a copy, or make it anew")

    __setitem__ = __delitem__ = __ior__ = __iadd__ = __imul__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse
    append = extend = insert = remove = reverse = sort = _refuse

    def __reduce__(self) -> Any:
        return type(self), (type(self).__bases__[1](self),)


class ReadOnlyDict(_Refusing, dict[Any, Any]):
    """A dictionary that refuses changes."""


class ReadOnlyList(_Refusing, list[Any]):
    """A list that refuses changes; unlike a tuple it equals the list that it was made from."""


class HandedOut:
    """A dataclass that cannot be changed through what it hands out: its fields are made read-only once.

    Dictionaries, lists and arrays refuse changes, also the arrays of tables. A table itself can be given
    other columns or attributes, as any of xarray: change a copy, `table.copy()`. A copy at each access would
    take four fifths of the time of a report.
    """

    def __post_init__(self) -> None:
        make_read_only(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)  # of a copy, whose arrays are others
        self.__post_init__()


def cached_read_only[T](compute: Callable[[Any], T]) -> cached_property[T]:
    """Return a property that is computed once, and whose value refuses changes as a field does."""
    return cached_property(wraps(compute)(lambda instance: read_only(compute(instance))))


def make_read_only(values: Any) -> None:
    vars(values).update({name: read_only(value) for name, value in vars(values).items()})


def _freeze_columns(table: Any) -> None:
    for node in getattr(table, "subtree", (table,)):
        columns = node.variables if hasattr(node, "variables") else {"": node.variable}
        for column in columns.values():
            read_only(column.data)


def read_only(value: Any) -> Any:
    """Return a value that refuses changes, as do the fields of dataclasses and items of collections in it.

    Dictionaries and lists are copied; arrays, also those of tables, are made read-only in place.
    """
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    elif value is None or isinstance(value, HandedOut | float | int | str):
        return value
    elif type(value).__module__.startswith("xarray."):  # by name: it need not be loaded
        _freeze_columns(value)
    elif isinstance(value, dict):
        return ReadOnlyDict({name: read_only(item) for name, item in value.items()})
    elif isinstance(value, list):
        return ReadOnlyList(map(read_only, value))
    elif isinstance(value, tuple):
        make = getattr(value, "_make", type(value))  # of a named tuple
        return make([read_only(item) for item in value])
    elif is_dataclass(value) and not isinstance(value, type):
        make_read_only(value)
    return value
