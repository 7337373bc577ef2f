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
    if isinstance(value, xarray.Dataset):
        value = {"coords": _arrays(value.coords), "columns": _arrays(value.data_vars)}
    elif isinstance(value, (np.ndarray, np.generic, xarray.DataArray)):
        value = getattr(value, "values", value).tolist()
    elif hasattr(value, "to_dict"):
        value = value.to_dict()
    elif is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    elif isinstance(value, Enum):
        value = value.name
    if isinstance(value, Mapping):
        return {str(key): plain_values(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_values(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _arrays(arrays: Mapping[Any, xarray.DataArray]) -> dict[Any, Any]:
    return {name: {"dims": array.dims, "values": array.values} for name, array in arrays.items()}


def read_fields[T](kind: type[T], read: Mapping[str, Any]) -> T:
    """Return a dataclass or named tuple from plain values of its fields."""
    types = {name: annotation for name, annotation in get_type_hints(kind).items() if name in read}
    return kind(**{name: read_as(annotation, read[name]) for name, annotation in types.items()})


_PLAIN: dict[Any, Any] = {int: int, str: str, bool: bool, dict: dict, list: list}
_PLAIN |= {float: (int, float)}
"""What a value of a type is in JSON."""


def _require_type(kind: Any, value: Any) -> None:
    wanted = _PLAIN.get(kind, object)
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted in (int, (int, float))):
        raise ValueError(f"{shown(value)} is no {getattr(kind, '__name__', kind)}")
    if kind is float:
        float(value)  # of too many digits


def read_as(kind: Any, value: Any) -> Any:
    """Return a value of an annotated type from plain values, else ValueError; None is NaN for a number."""
    origin, args = get_origin(kind), get_args(kind)
    of_several = origin in (UnionType, Union)
    if value is None and (kind in (float, Any) or of_several):
        return np.nan if kind is float else None
    if of_several:
        first, *others = (each for each in args if each is not NoneType)
        return value if others else read_as(first, value)
    value = cast("Any", value)
    _require_type(origin or kind, value)
    if origin is tuple:
        kinds = args[:1] * len(value) if args[-1] is ... else args
        return tuple(read_as(item_type, item) for item_type, item in zip(kinds, value, strict=True))
    if origin is dict:
        return {key: read_as(args[1], item) for key, item in value.items()}
    return _read_class(kind, value) if isinstance(kind, type) else value


def _read_class(kind: Any, value: Any) -> Any:
    if kind is xarray.Dataset:
        return _table(value)
    if hasattr(kind, "from_plain"):
        return kind.from_plain(value)
    if issubclass(kind, Enum):
        return kind[value]
    record = is_dataclass(kind) or hasattr(kind, "_fields")
    return read_fields(cast("type[Any]", kind), value) if record else value


def _table(read: Mapping[str, Any]) -> xarray.Dataset:
    coords = {key: (each["dims"], _array(each["values"])) for key, each in read["coords"].items()}
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
    if array.dtype.kind == "U" and not all(
        type(item) is str for item in np.array(values, object).flat
    ):
        raise ValueError("text is among the numbers of a column")
    return array.astype(float) if array.dtype == object else array
