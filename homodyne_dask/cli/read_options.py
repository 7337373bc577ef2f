"""Reads the options of `homodyne-dask fit` from a YAML file or from the command line, and checks them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, replace
from functools import partial
from pathlib import Path
from typing import Any

from homodyne_dask.cli.fit_config import FitConfig, config_options
from homodyne_dask.errors import OptionError, nearest, shown
from homodyne_dask.request.options import Option
from homodyne_dask.store.files import AnyPath, any_path


class _UnreadableValueError(ValueError):
    """A part of a value cannot be read: where it is inside, as '.D0', and the part."""


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
    parts = value if isinstance(value, list | tuple) else [value]
    if len(parts) == 1 and not isinstance(parts[0], list | tuple):
        return _pair(parts[0]) if ":" in str(parts[0]) else _number(parts[0])
    if any(isinstance(part, list | tuple) or ":" in str(part) for part in value):
        return [_pair(part) for part in value]
    return _pair(value)


def _angles(value: Any) -> Any:
    """Return what `_angle` does, and of several angles as options a list of them."""
    words = value if isinstance(value, list | tuple) else [value]
    if len(words) > 1 and all(isinstance(word, str) for word in words):
        parts = [_angle(word) for word in words]
        # a list of two numbers may be meant as a range
        plain = len(parts) == 2 and not any(isinstance(part, tuple) for part in parts)
        return [*parts, parts[1]] if plain else parts
    if len(words) > 2 and not any(isinstance(word, list | tuple | str) for word in words):
        return [_number(word) for word in words]
    return _angle(value)


def _ranges(read: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    """Return a function that reads 'low:high', two numbers, or a list of such ranges, as a list."""

    def read_all(value: Any) -> list[Any]:
        several = isinstance(value, list | tuple) and any(
            isinstance(part, list | tuple | str) for part in value
        )
        return [_part(read, "", one) for one in (value if several else [value])]

    return read_all


def _several(read: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    """Return a function that reads one value or a list of them as a list."""

    def read_all(values: Any) -> list[Any]:
        listed = values if isinstance(values, list | tuple) else [values]
        return [_part(read, "", value) for value in listed]

    return read_all


def _by_name(read: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any] | None]:
    """Return a function that reads a value for each of some names; None of no name."""

    def read_all(values: Any) -> dict[str, Any] | None:
        return {_text(name): _part(read, f".{name}", one) for name, one in values.items()} or None

    return read_all


def _part(read: Callable[[Any], Any], inside: str, value: Any) -> Any:
    try:
        return read(value)
    except (ValueError, TypeError, OverflowError, AttributeError) as e:
        raise _UnreadableValueError(inside, value) from e


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


def _yes_or_no(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _number_or_name(value: Any) -> int | str:
    return value if isinstance(value, str) and not value.isdecimal() else _whole_number(value)


def _gap(value: Any) -> str:
    """Return the gap as it is written; it needs a unit."""
    from homodyne_dask.models.units import gap_in_angstrom, length_in_angstrom  # they load NumPy

    length_in_angstrom(value)  # a plain number is refused
    gap_in_angstrom(value)
    return value


_READ: dict[Any, Callable[[Any], Any]] = {
    str: _text,
    int: _whole_number,
    float: _number,
    bool: _yes_or_no,
    str | float: _gap,
    Path: Path,
    AnyPath: partial(any_path, "output"),
    float | Sequence[float]: _several(_number),
    Sequence[float]: _several(_number),
    Sequence[int]: _several(_whole_number),
    Sequence[int | str]: _several(_number_or_name),
    Sequence[AnyPath]: _several(partial(any_path, "data")),
    tuple[str, ...]: _several(_text),
    tuple[float, float]: _pair,
    tuple[int, int]: _frames,
    int | tuple[int, int]: _jobs,
    float | tuple[float, float] | Sequence[tuple[float, float]]: _angles,
    Sequence[tuple[int, int]]: _ranges(_frames),
    Sequence[tuple[float, float]]: _ranges(_pair),
    int | Sequence[tuple[float, float]]: _windows,
    Mapping[str, float]: _by_name(_number),
    Mapping[str, tuple[float, float]]: _by_name(_pair),
    Mapping[str, str]: _by_name(str),
    Mapping[str, str | tuple[float, float]]: _by_name(lambda value: value),
}
"""What reads a value, as YAML has it or as it is typed, by the type of the option."""


def read_value(option: Option, value: Any, origin: str = "--") -> Any:
    """Return the value of an option; raises OptionError, whose message has `origin` before the name."""
    if isinstance(value, bool) and option.choices == ("on", "off"):  # as YAML reads them
        value = "on" if value else "off"
    try:
        return _READ[option.value_type](value)
    except OptionError as e:
        raise OptionError(f"{origin}{e}") from None
    except _UnreadableValueError as e:
        inside, value = e.args
        if origin == "--":
            inside = inside.replace(".", " ", 1)  # --bounds D0, not --bounds.D0
    except (ValueError, TypeError, OverflowError, AttributeError):
        inside = ""
    raise OptionError(
        f"{_named(option, origin)}{inside} = {shown(value)} cannot be used: give {option.form}"
    )


def _named(option: Option, origin: str) -> str:
    return origin + (option.name.replace("_", "-") if origin == "--" else option.name)


_WRITTEN = ("output", "checkpoint")
_PATHS = ("scheduler_file", *_WRITTEN)


def from_options(given: Mapping[str, Any]) -> FitConfig:
    """Return the configuration from options of the command line; raises OptionError for mistakes."""
    values = _read_all(given, "--")
    _require_all(values, "--")
    return FitConfig(**values, given=frozenset(values))


def read_config(
    path: str | Path, given: Mapping[str, Any] | None = None, data: Sequence[AnyPath] | None = None
) -> FitConfig:
    """Return the configuration in a YAML file; options in `given`, and `data`, replace those of the file.

    Paths in the file are relative to the file, and what it has written is below its folder: results
    of data elsewhere lie beside the file.
    Raises OptionError for mistakes, naming the file.
    """
    from homodyne_dask.cli.yaml_file import read_yaml  # it loads PyYAML

    where = Path(path)
    read = read_yaml(where, f"`homodyne-dask config {where}` writes a template")
    if not isinstance(read, dict):
        raise OptionError(
            f"{where} does not consist of keys with values: `homodyne-dask config -` prints a template"
        )
    origin = f"{where}: "
    in_file = _read_all(read if data is None else read | {"data": list(data)}, origin)
    _require_all(in_file, origin)
    _stay_below(where, in_file)
    relative: dict[str, Any] = {
        name: where.parent / in_file[name] for name in _PATHS if name in in_file
    }
    if in_file.get("key", "none") != "none":
        relative["key"] = str(where.parent / in_file["key"])
    relative["data"] = [where.parent / store for store in in_file["data"]]
    values = in_file | relative | _read_all(given or {}, "--")
    return _with_output_below(where.parent, FitConfig(**values, given=frozenset(values)))


def _stay_below(file: Path, values: Mapping[str, Any]) -> None:
    """Raise OptionError if a file, which may be from someone else, writes outside its own folder."""
    folder = file.parent.resolve()
    for name in _WRITTEN:
        path = values.get(name)
        if path is not None and not (folder / path).resolve().is_relative_to(folder):
            raise OptionError(
                f"{file}: {name} = {str(path)!r} is outside the folder of the file: "
                f"give --{name} on the command line instead"
            )


def _with_output_below(folder: Path, config: FitConfig) -> FitConfig:
    """Return the configuration with results beside its file where its data lie outside that folder."""
    from homodyne_dask.results.files.folder import default_folder  # it loads xarray

    beside = [default_folder(store, config.over) for store in config.data]
    inside = [path.resolve().is_relative_to(folder.resolve()) for path in beside]
    if config.output is not None or all(inside):
        return config
    output = folder / beside[0].name if len(beside) == 1 else folder
    return replace(config, output=output)


def _read_all(given: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Return the values that are given; messages have `origin` before the name."""
    options = config_options()
    for key in given:
        if key not in options:
            raise OptionError(f"{origin}unknown key {shown(key)}; {nearest(shown(key), options)}")
    return {
        name: read_value(option, given[name], origin)
        for name, option in options.items()
        if given.get(name) is not None
    }


def _require_all(values: Mapping[str, Any], origin: str) -> None:
    for option in config_options().values():
        if option.default is MISSING and option.name not in values:
            raise OptionError(f"{_named(option, origin)} is missing: give {option.form}")
