"""Types of the values of options, as they are read from YAML and from the command line."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from pydantic import BeforeValidator

from homodyne_dask.models.units import gap_in_angstrom, length_in_angstrom
from homodyne_dask.store.files import AnyPath, any_path


def _as(read: Callable[[Any], Any]) -> BeforeValidator:
    """Return a validator from a function that raises on a value it cannot read."""

    def checked(value: Any) -> Any:
        try:
            return read(value)
        except (TypeError, OverflowError, AttributeError) as e:
            raise ValueError(str(e)) from e

    return BeforeValidator(checked)


def _number(value: Any) -> float:
    """Return a finite number; text is allowed because YAML reads 1e4 as text."""
    if isinstance(value, bool) or not math.isfinite(float(value)):
        raise ValueError
    return float(value)


def _whole_number(value: Any) -> int:
    number = _number(value)
    if number != int(number):
        raise ValueError
    return int(number)


def _pair(value: Any) -> tuple[float, float]:
    """Return (low, high) from a list of two or from 'low:high'."""
    low, high = value.split(":") if isinstance(value, str) else value
    return _number(low), _number(high)


def _frames(value: Any) -> tuple[int, int]:
    low, high = _pair(value)
    return _whole_number(low), _whole_number(high)


def _angle(value: Any) -> float | tuple[float, float] | list[tuple[float, float]]:
    """Return an angle, a range from two numbers or 'low:high', or a list of ranges."""
    if not isinstance(value, list | tuple):
        return _pair(value) if ":" in str(value) else _number(value)
    if any(isinstance(part, list | tuple) or ":" in str(part) for part in value):
        return [_pair(part) for part in value]
    return _pair(value)


def _several(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _windows(value: Any) -> int | list[tuple[float, float]]:
    parts = value if isinstance(value, list | tuple) else [value]
    if len(parts) == 1 and not isinstance(parts[0], list | tuple) and ":" not in str(parts[0]):
        return _whole_number(parts[0])
    return [_pair(part) for part in parts]


def _jobs(value: Any) -> int | tuple[int, int]:
    """Return a number of jobs, or the least and the most."""
    if isinstance(value, list | tuple) or ":" in str(value):
        return _frames(value)
    return _whole_number(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _gap(value: Any) -> str:
    """Return the gap as it is written; it needs a unit."""
    length_in_angstrom(value)  # a plain number is refused
    gap_in_angstrom(value)
    return value


StorePath = Annotated[AnyPath, _as(partial(any_path, "data"))]
Number = Annotated[float, _as(_number)]
WholeNumber = Annotated[int, _as(_whole_number)]
Pair = Annotated[tuple[float, float], _as(_pair)]
Frames = Annotated[tuple[int, int], _as(_frames)]
Angle = Annotated[float | tuple[float, float] | list[tuple[float, float]], _as(_angle)]
Windows = Annotated[int | list[tuple[float, float]], _as(_windows)]
Jobs = Annotated[int | tuple[int, int], _as(_jobs)]
Text = Annotated[str, _as(_text)]
Gap = Annotated[str, _as(_gap)]
Several = BeforeValidator(_several)

BY_TYPE: dict[Any, Any] = {
    str: Text,
    int: WholeNumber,
    float: Number,
    bool: bool,
    str | float: Gap,
    float | Sequence[float]: Annotated[list[Number], Several],
    tuple[str, ...]: Annotated[list[Text], Several],
    tuple[float, float]: Pair,
    Mapping[str, float]: dict[str, Number],
    Mapping[str, tuple[float, float]]: dict[str, Pair],
    Mapping[str, str | tuple[float, float]]: dict[str, Any],
}
"""The type that reads a value, by the type of an option of a fit."""
