"""Dataclasses as plain values for JSON, and rebuilt from them: dictionaries, lists, texts, numbers, None."""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

import numpy as np
import xarray

from homodyne_dask.errors import shown


def plain_values(value: Any) -> Any:
    """Return values as JSON takes them; a number that is not finite becomes None.

    Dataclasses and named tuples become their `to_dict()` or dictionaries of their fields, members of an Enum
    their names, arrays lists, and a Dataset {"coords", "columns"} of dims and values by name.
    """
    contents = _contents(value)
    if isinstance(contents, Mapping):
        return {str(key): plain_values(item) for key, item in contents.items()}
    if isinstance(contents, (list, tuple)):
        return [plain_values(item) for item in contents]
    # JSON has no NaN and no infinity: other programs would refuse the file
    return None if isinstance(contents, float) and not math.isfinite(contents) else contents


def _contents(value: Any) -> Any:
    """Return the dictionary, list or scalar that stands for a value; its items may not be plain yet."""
    if isinstance(value, xarray.Dataset):  # before to_dict: its own repeats attributes and dtypes
        return {"coords": _arrays(value.coords), "columns": _arrays(value.data_vars)}
    if isinstance(value, (np.ndarray, np.generic, xarray.DataArray)):
        return getattr(value, "values", value).tolist()
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if is_dataclass(value):  # `asdict` would pass by the to_dict of a record inside
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if hasattr(value, "_asdict"):
        return value._asdict()
    return value.name if isinstance(value, Enum) else value


def _arrays(arrays: Mapping[Any, xarray.DataArray]) -> dict[Any, Any]:
    return {name: {"dims": array.dims, "values": array.values} for name, array in arrays.items()}


def read_fields[T](record: type[T], read: Mapping[str, Any]) -> T:
    """Return a dataclass or named tuple from plain values of its fields; missing ones have their default."""
    hints = get_type_hints(record)
    return record(**{key: read_as(hint, read[key]) for key, hint in hints.items() if key in read})


_PLAIN: dict[Any, Any] = {int: int, str: str, bool: bool, dict: dict, list: list}
_PLAIN |= {float: (int, float)}
"""What a value of a type is in JSON."""


def _require_type(expected: Any, value: Any) -> None:
    json_type = _PLAIN.get(expected, object)
    # Python counts True as an integer, JSON does not
    is_truth_value = isinstance(value, bool) and json_type in (int, (int, float))
    if is_truth_value or not isinstance(value, json_type):
        raise ValueError(f"{shown(value)} is no {getattr(expected, '__name__', expected)}")
    if expected is float:
        float(value)  # OverflowError for an integer of more than 308 digits, which JSON may hold


def read_as(annotation: Any, value: Any) -> Any:
    """Return a value of an annotated type from plain values, else ValueError; None is NaN for a number."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    is_union = origin in (UnionType, Union)
    if value is None and (annotation in (float, Any) or is_union):
        return np.nan if annotation is float else None
    if is_union:
        # the value does not say which of several types it has: only X | None can be read
        first, *alternatives = (member for member in arguments if member is not NoneType)
        return value if alternatives else read_as(first, value)
    _require_type(origin or annotation, value)
    if origin in (dict, tuple):
        return _read_items(origin, arguments, value)
    return _read_class(annotation, value) if isinstance(annotation, type) else value


def _read_items(collection: type, arguments: tuple[Any, ...], items: Any) -> Any:
    if collection is dict:
        return {key: read_as(arguments[1], item) for key, item in items.items()}
    types = arguments[:1] * len(items) if arguments[-1] is ... else arguments
    return tuple(read_as(item_type, item) for item_type, item in zip(types, items, strict=True))


def _read_class(annotation: Any, value: Any) -> Any:
    if annotation is xarray.Dataset:
        return _table(value)
    if hasattr(annotation, "from_plain"):
        return annotation.from_plain(value)
    if issubclass(annotation, Enum):
        return annotation[value]
    is_record = is_dataclass(annotation) or hasattr(annotation, "_fields")
    return read_fields(cast("type[Any]", annotation), value) if is_record else value


def _table(read: Mapping[str, Any]) -> xarray.Dataset:
    coords = {key: (axis["dims"], _array(axis["values"])) for key, axis in read["coords"].items()}
    sizes = {dims[0]: len(values) for dims, values in coords.values() if len(dims) == 1}
    columns = {}
    for key, column in read["columns"].items():
        array, dims = _array(column["values"]), column["dims"]
        if not array.size:  # an empty list has lost all axes but the first
            array = array.reshape([sizes.get(dim, 0) for dim in dims])
        columns[key] = dims, array
    return xarray.Dataset(columns, coords)


def _array(values: Any) -> np.ndarray:
    array = np.array(values)
    # NumPy would turn 1.5 beside "a" into text without a word
    if array.dtype.kind == "U" and not all(
        type(item) is str for item in np.array(values, object).flat
    ):
        raise ValueError("text is among the numbers of a column")
    return array.astype(float) if array.dtype == object else array
