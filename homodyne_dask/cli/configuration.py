"""The configuration of `homodyne-dask fit`, checked, from a YAML file or from the command line."""

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model
from pydantic.config import JsonDict

from homodyne_dask.cli.yaml_file import read_yaml
from homodyne_dask.errors import OptionError, nearest, shown
from homodyne_dask.fitting.options import Option, fit_options, plan_options
from homodyne_dask.models.units import gap_in_angstrom, length_in_angstrom
from homodyne_dask.store.files import AnyPath, any_path, path_of


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


def _option(what: str, form: str, example: str, default: Any = ...) -> Any:
    """Return a field with its description, the form of its value in words, and an example in YAML."""
    more: JsonDict = {"form": form, "example": example}
    return Field(default, description=what, json_schema_extra=more)


class _Source(BaseModel):
    """The data and the model."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    data: Annotated[list[StorePath], Several] = _option(
        "store written by ingest, or a list of stores: a path, relative to this file, or a URL as s3://",
        "the path of a store, or a list of them",
        "A0123_c2.zarr",
    )
    model: Text = _option(
        "model: brownian, power_law, static, laminar_flow, two_component, stretched, stretched_q, "
        "stretched_ageing, one of a package, or auto, the simplest that the data ask for",
        "static, laminar_flow or another model's name",
        "laminar_flow",
    )


def _field(option: Option) -> tuple[Any, Any]:
    """Return type and field for an option of a fit."""
    read = BY_TYPE[option.value_type]
    if option.by_name:
        return read, _option(option.description, option.form, option.example, {})
    default = None if option.default == () else option.default
    return read | None, _option(option.description, option.form, option.example, default)


_FIELDS: dict[str, Any] = {option.key: _field(option) for option in fit_options()}
_WithFitOptions = create_model("_WithFitOptions", __base__=_Source, **_FIELDS)


class FitConfig(_WithFitOptions):
    """All options of `homodyne-dask fit`, by the names they have on the command line."""

    q: Annotated[list[Number], Several] | None = _option(
        "rings in 1/Å, the nearest within 2 %; default: all",
        "a number in 1/Å, or a list",
        "0.0054",
        None,
    )
    phi: Angle | None = _option(
        "the angle φ in degrees nearest to this, a range [low, high], or a list of ranges; default: all",
        "degrees, or a range: -30:30, in a file also [-30, 30] or [[-30, 30], [150, -150]]",
        "[-30, 30]",
        None,
    )
    label: Annotated[list[WholeNumber], Several] | None = _option(
        "bin numbers of the beamline; default: all", "a whole number, or a list", "[2, 3]", None
    )
    frames: Frames | None = _option(
        "first frame, counted from 0, and the frame after the last; default: all",
        "two whole numbers: 0:300, in a file also [0, 300]",
        "[0, 300]",
        None,
    )
    time: Pair | None = _option(
        "start and end of the selected times in seconds, without the frame at the end; default: all",
        "two numbers in seconds: 0:30, in a file also [0, 30]",
        "[0, 30]",
        None,
    )
    over: Text | None = _option(
        "fit each ring (q) or each window of age (age) separately; default: the whole selection in one fit",
        "q or age",
        "q",
        None,
    )
    windows: Windows | None = _option(
        "with over age: the number of windows of equal length, or start and end of each in seconds",
        "a number: 4, or windows in seconds: 0:30 and 30:60 as options, [[0, 30], [30, 60]] in a file",
        "4",
        None,
    )
    scheduler: Text | None = _option(
        "address of a running Dask scheduler; default: workers on this machine",
        "an address as tls://host:8786",
        "tls://host:8786",
        None,
    )
    key: Text | None = _option(
        "folder of the scheduler's TLS key, made by `homodyne-dask key`; none: unencrypted",
        "the path of a folder, or none",
        "my_cluster",
        None,
    )
    scheduler_file: Path | None = _option(
        "file of a persistent scheduler, written by `homodyne-dask cluster start`",
        "the path of a file",
        "scheduler.json",
        None,
    )
    site: Text | None = _option(
        "workers as jobs of a batch system at this site: generic, perlmutter, esrf, alcf, or user-defined",
        "the name of a site",
        "perlmutter",
        None,
    )
    jobs: Jobs | None = _option(
        "with site: the number of jobs, or the least and the most; default: 1",
        "a whole number, or two: 1:20 as an option, [1, 20] in a file",
        "[1, 20]",
        None,
    )
    output: StorePath | None = _option(
        "folder of the result, or of all results of several stores; default: A0123_fit beside A0123_c2.zarr, "
        "or beside this file where the data lie outside its folder",
        "the path of a folder",
        "A0123_fit",
        None,
    )
    overwrite: bool = _option(
        "replace an earlier result in that folder", "true or false", "false", False
    )
    checkpoint: Path | None = _option(
        "file from which an interrupted fit resumes; default: checkpoint.json in the output folder",
        "the path of a file",
        "A0123_checkpoint.json",
        None,
    )

    def selection(self) -> dict[str, Any]:
        """Return the arguments of `Scan.select`."""
        return self.model_dump(include={"q", "phi", "label", "frames", "time"})

    @property
    def folder(self) -> Path | None:
        """`output`, where it is a folder on disk; OptionError for a URL, which only `fit` writes to."""
        return None if self.output is None else path_of("output", self.output)

    def fit_options(self) -> dict[str, Any]:
        """Return the options of `fit` beside data, model, client and checkpoint."""
        return self._of(fit_options())

    def plan_options(self) -> dict[str, Any]:
        """Return the options of `plan` beside data, model and client."""
        return self._of(plan_options())

    def _of(self, options: Sequence[Option]) -> dict[str, Any]:
        values = ((option, getattr(self, option.key)) for option in options)
        return {o.name: o.default if value in (None, {}) else value for o, value in values}


_WRITTEN = ("output", "checkpoint")
_PATHS = ("data", "scheduler_file", *_WRITTEN)


def from_options(given: Mapping[str, Any]) -> FitConfig:
    """Return the configuration from options of the command line; raises OptionError for mistakes."""
    return _checked(given, "--")


def read_config(
    path: str | Path,
    given: Mapping[str, Any] | None = None,
    data: Sequence[AnyPath] | None = None,
) -> FitConfig:
    """Return the configuration in a YAML file; options in `given`, and `data`, replace those of the file.

    Paths in the file are relative to the file, and what it has written is below its folder: results
    of data elsewhere lie beside the file.
    Raises OptionError for mistakes, naming the file.
    """
    where = Path(path)
    read = read_yaml(where, f"`homodyne-dask config {where}` writes a template")
    if not isinstance(read, dict):
        raise OptionError(
            f"{where} has no keys with values: `homodyne-dask config -` prints a template"
        )
    in_file = _checked(read if data is None else read | {"data": list(data)}, f"{where}: ")
    _stay_below(where, in_file)
    there = _relative_to(where.parent, in_file)
    if given:
        there = _checked(there.model_dump(exclude_unset=True) | dict(given), "--")
    return _with_output_below(where.parent, there)


def _stay_below(file: Path, config: FitConfig) -> None:
    """Raise OptionError if a file, which may be from someone else, writes outside its own folder."""
    folder = file.parent.resolve()
    for name in _WRITTEN:
        path = getattr(config, name)
        if path is not None and not (folder / path).resolve().is_relative_to(folder):
            raise OptionError(
                f"{file}: {name} = {str(path)!r} is outside the folder of the file: "
                f"give --{name} on the command line instead"
            )


def _with_output_below(folder: Path, config: FitConfig) -> FitConfig:
    """Return the configuration with results beside its file where its data lie outside that folder."""
    from homodyne_dask.results.files.folder import default_folder

    beside = [default_folder(store, config.over) for store in config.data]
    inside = [path.resolve().is_relative_to(folder.resolve()) for path in beside]
    if config.output is not None or all(inside):
        return config
    output = folder / beside[0].name if len(beside) == 1 else folder
    return config.model_copy(update={"output": output})


def template() -> str:
    """Return a commented YAML file with all options; its data are an example."""
    active = ("data", "model", "gap")
    lines = [
        "# A fit: run `homodyne-dask fit` with this file. Options of the command line replace those here.",
        "",
    ]
    for name, field in FitConfig.model_fields.items():
        mark = "" if name in active else "# "
        lines += textwrap.wrap(
            field.description or "", 98, initial_indent="# ", subsequent_indent="# "
        )
        lines += [f"{mark}{name}: {_more(field)['example']}", ""]
    return "\n".join(lines[:-1]) + "\n"


def _relative_to(folder: Path, config: FitConfig) -> FitConfig:
    changed = {}
    for name in config.model_fields_set & set(_PATHS):
        value = getattr(config, name)
        changed[name] = (
            [folder / one for one in value] if name == "data" else value and folder / value
        )
    if config.key not in (None, "none"):
        changed["key"] = str(folder / config.key)
    return config.model_copy(update=changed)


def _checked(given: Mapping[str, Any], origin: str) -> FitConfig:
    """Return the checked configuration; messages have `origin` before the key."""
    for key in given:
        if key not in FitConfig.model_fields:
            raise OptionError(
                f"{origin}unknown key {shown(key)}; {nearest(shown(key), FitConfig.model_fields)}"
            )
    given = {key: value for key, value in given.items() if value is not None}
    try:
        return FitConfig.model_validate(given)
    except ValidationError as e:
        raise OptionError(_sentence(e, origin)) from e
    except OptionError as e:
        raise OptionError(f"{origin}{e}") from None


def _sentence(error: ValidationError, origin: str) -> str:
    first = error.errors()[0]
    key, value = str(first["loc"][0]), first["input"]
    form = _more(FitConfig.model_fields[key])["form"]
    named = origin + (key.replace("_", "-") if origin == "--" else key)
    if first["type"] == "missing":
        return f"{named} is missing: give {form}"
    inside = "".join(f".{part}" for part in first["loc"][1:] if isinstance(part, str))
    return f"{named}{inside} = {shown(value)} cannot be used: give {form}"


def _more(field: Any) -> dict[str, str]:
    return field.json_schema_extra
