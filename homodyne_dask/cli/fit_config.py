"""The options of `homodyne-dask fit`, each defined once for the command line and for fit.yaml."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema, field_validator
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError
from yaml.error import MarkedYAMLError

from homodyne_dask.errors import OptionError, one_line, why_unreadable
from homodyne_dask.request import option_types as types
from homodyne_dask.request.options import (
    COMMON,
    DATA,
    MODEL,
    OUTPUT,
    PLAN,
    WORKERS,
    FitOptions,
    Options,
    option,
)
from homodyne_dask.store.files import AnyPath, any_path, path_of, read_regular_file

MAX_BYTES = 1_000_000
"""Bytes of the largest file that is read."""
_MAX_REASON = 200
"""Most letters of a reason that a message quotes."""


class _PlainLoader(yaml.SafeLoader):
    """Loads plain values; aliases, by which a small file becomes a huge value, are errors.

    -30:30 and 0:22.5 are text: YAML 1.1 takes them for numbers in base 60, -1830 and 22.5.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            why = "aliases (*name) are not supported: write the value itself"
            raise ComposerError(None, None, why, self.peek_event().start_mark)
        return super().compose_node(parent, index)

    def construct_scalar(self, node: Any) -> Any:
        value = super().construct_scalar(node)
        if isinstance(value, str) and re.search("[\0\ud800-\udfff]", value):
            why = "a character that is not allowed in text"
            raise ConstructorError(None, None, why, node.start_mark)
        return value


def _read_number(read: Any, loader: _PlainLoader, node: Any) -> Any:
    return loader.construct_scalar(node) if ":" in node.value else read(loader, node)


for _tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float"):
    _PlainLoader.add_constructor(_tag, partial(_read_number, _PlainLoader.yaml_constructors[_tag]))


def read_yaml(path: Path, remedy: str) -> Any:
    """Return the content of a YAML file as plain values; remedy: what to do where there is none."""
    try:
        return _PlainLoader(read_regular_file(path, MAX_BYTES).decode()).get_single_data()
    except OSError as e:
        raise OptionError(f"{path} cannot be read ({why_unreadable(e)}): {remedy}") from e
    except yaml.YAMLError as e:
        why = one_line(str(e))
        if isinstance(e, MarkedYAMLError) and (mark := e.problem_mark) is not None:
            words = ", ".join(phrase for phrase in (e.context, e.problem) if phrase)
            why = f"{words} (line {mark.line + 1}, column {mark.column + 1})"
        raise OptionError(f"{path} is not YAML: {why}") from e
    except RecursionError as e:
        raise OptionError(f"{path} is nested too deeply: write plain keys with values") from e
    except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as e:
        # no text; dates such as 2024-99-99, numbers of thousands of digits, values that are not of their tag
        why = why_unreadable(e)[:_MAX_REASON]
        raise OptionError(
            f"{path} cannot be read ({why}): write text with plain values, or put them in quotes"
        ) from e


MODELS = (
    *("brownian", "power_law", "static", "couette", "laminar_flow", "poiseuille"),
    *("poiseuille_flow", "beating", "beating_spline"),
    *("two_component", "two_component_spline", "two_component_xpcsjax", "damped_cosine"),
    *("stretched", "stretched_q", "stretched_ageing", "ballistic", "cumulant", "cumulant_q"),
    *("vibration", "distribution_of_rates", "frozen + brownian", "auto"),
)
"""Names that `model` may have, beside those of installed packages; help lists them and loads no models."""
SITES = ("generic", "perlmutter", "esrf", "alcf")
SELECTION = ("q", "phi", "label", "frames", "time", "scan")
"""Of the options that select bins and frames of a store."""
EXCLUSION = ("exclude_frames", "exclude_time", "exclude_phi", "exclude_label")
_WRITTEN = ("output", "checkpoint")
_RELATIVE = {"scheduler_file", "scan_values", "key", *_WRITTEN}
"""Options that are paths relative to the file, where they are paths."""
_PATH = types.Form("the path of a file or folder", "PATH")
_OF_Q = types.Form("q in 1/Å (1 1/nm is 0.1 1/Å), or a list", "FLOAT")
_ANY_PATH = BeforeValidator(lambda value, about: any_path(str(about.field_name), value))
_LOCAL_PATH = BeforeValidator(lambda value, about: path_of(str(about.field_name), value))
_AS_TEXT, _STRING = PlainSerializer(str), WithJsonSchema({"type": "string"})
PathOrUrl = Annotated[AnyPath, _ANY_PATH, _AS_TEXT, _STRING, _PATH]
LocalPath = Annotated[Path, _LOCAL_PATH, _AS_TEXT, _PATH]
Name = Annotated[str, types.Form("a name", "NAME")]


_AS_LIST = BeforeValidator(lambda value: value if isinstance(value, list | tuple) else [value])
_OF_DATA = types.Form("the path of a store, or a list of them", "PATH")


class _Source(Options):
    """The data and the model."""

    data: Annotated[list[PathOrUrl], _AS_LIST, _OF_DATA] = option(
        ..., DATA, "A0123_c2.zarr", COMMON
    )
    """Store written by ingest, or a list of stores, each as a path relative to this file or as a URL such as
    s3://bucket/A0123_c2.zarr."""
    model: Name = option(..., MODEL, "laminar_flow", COMMON, suggestions=MODELS)
    """Name of the model, also of another package, a sum or product of models such as 'static + brownian',
    or auto, the simplest adequate model."""


class FitConfig(FitOptions, _Source):
    """All options of `homodyne-dask fit`, by the names they have in Python, in YAML and as --options."""

    q: Annotated[types.Numbers, _OF_Q] = option(None, DATA, "0.0054", COMMON)
    """Rings to fit, by q in 1/Å; the nearest ring within 2 % is selected; default: all."""
    phi: types.Angles = option(None, DATA, "[-30, 30]", COMMON)
    """Angles to fit, by φ in degrees: an angle (the nearest within 1° is selected), a range, or a list of
    ranges; default: all."""
    label: types.Integers = option(None, DATA, "[2, 3]")
    """Bins to fit, by the numbers that the beamline assigned to them; default: all."""
    scan: types.ScanNames = option(None, DATA, "[1, 2]")
    """Scans of a store of repeats to fit, by number (from 1) or by name; default: all."""
    frames: types.Frames | None = option(None, DATA, "[0, 300]", COMMON)
    """Frames to fit, counted from 0: the first and the one after the last; default: all."""
    time: types.Range | None = option(None, DATA, "[0, 30]")
    """Times to fit in seconds: start and end; the end itself is not included; default: all."""
    exclude_frames: types.FrameRanges = option(None, DATA, "[[51, 61], [100, 101]]", COMMON)
    """Frames to exclude, counted from 0: 2,5 are two, 10-14 five and 10:14 four; or a text file of these."""
    exclude_time: types.Ranges = option(None, DATA, "[[3.0, 3.5]]")
    """Times to exclude in seconds: start and end; the end itself is not excluded."""
    exclude_phi: types.Angles = option(None, DATA, "[80, 100]")
    """Angles to exclude, given as for phi."""
    exclude_label: types.Integers = option(None, DATA, "[7]")
    """Bins to exclude, given as for label."""
    over: Literal["q", "phi", "angle", "label", "age", "scan"] | None = option(
        None, DATA, "q", COMMON
    )
    """Fit each ring (q), angle of each ring (phi) or of all (angle), label, age window (age) or repeated scan
    (scan) separately; default: the whole selection in one fit."""
    over_scans: Name | None = option(None, DATA, "temperature", COMMON)
    """Fit each store, or each scan of one store, and show all against this variable of theirs, such as
    temperature, or the path of a number that `ingest --keep` kept; 'scan' is the number. With over, fit the
    parts of each."""
    scan_values: types.ScanValues = option(None, DATA, "{A0123: 25 C, A0124: 35 C}")
    """With over_scans: its values, as a CSV table of scans and values or one by one; default: those that
    ingest found."""
    per: types.NamesByGroup = option(None, DATA, "{ring: D0}")
    """Parameters that differ between groups of bins (ring, angle, label or scan), in one fit of all bins that
    share the other parameters; contrast and offset may be among them."""
    per_scan: types.Names = option((), DATA, "D0")
    """Parameters that differ between scans, as with per and scan."""
    together: bool = option(False, DATA, "false")
    """Fit all stores, or all scans of a store of repeats, as one fit: they share the parameters but those of
    per_scan; each has its own frames, bins, contrasts and offsets."""
    windows: types.Windows = option(None, DATA, "4")
    """With over age, or over q for each ring in each window: number of windows of equal length, or the start
    and end of each in seconds."""
    workers: types.Count | None = option(None, WORKERS, "4")
    """Number of worker processes on this machine; default: none if the data fit in memory, which threads of
    this process then share."""
    scheduler: Annotated[str, types.Form("an address", "ADDRESS")] | None = option(
        None, WORKERS, "tls://host:8786"
    )
    """Address of a running Dask scheduler; default: this machine."""
    key: Annotated[str, _PATH] | None = option(None, WORKERS, "my_cluster")
    """Folder of the scheduler's TLS key, made by `homodyne-dask key`; none for an unencrypted scheduler."""
    scheduler_file: LocalPath | None = option(None, WORKERS, "scheduler.json", COMMON)
    """File of a persistent scheduler, written by `homodyne-dask cluster start`."""
    site: Name | None = option(None, WORKERS, "perlmutter", COMMON, suggestions=SITES)
    """Site, here or user-defined, whose batch system runs the workers as jobs."""
    jobs: types.Jobs = option(None, WORKERS, "[1, 20]", COMMON)
    """With site: number of jobs, or their minimum and maximum; default: 1."""
    output: LocalPath | None = option(None, OUTPUT, "A0123_fit", COMMON, names=("--output", "-o"))
    """Folder of the result, or of all results of several stores; default: A0123_fit beside A0123_c2.zarr, or
    beside the YAML file if the data are outside its folder."""
    overwrite: bool = option(False, OUTPUT, "false", COMMON)
    """Replace an earlier result in that folder."""
    checkpoint: LocalPath | None = option(None, OUTPUT, "A0123_checkpoint.json")
    """File from which an interrupted fit resumes; default: checkpoint.json in the output folder."""
    pictures: Literal["png", "pdf", "svg", "none"] | None = option(None, OUTPUT, "pdf", COMMON)
    """Format of the figures of each fit, which are also drawn as PNG, or none (--no-pictures); default: png,
    but none for more than 4 fits at once. `show FOLDER --pictures` draws them later."""
    nexus: bool | None = option(None, OUTPUT, "false")
    """Also write result.nx.h5, a NeXus file (NXxpcs, NXfit)."""
    strict: bool | None = option(None, OUTPUT, "false")
    """Let `fit` exit with status 4 if a fit converged, but its model does not describe the data."""

    @field_validator("gap", mode="before")
    @classmethod
    def _has_unit(cls, value: Any) -> Any:
        return value if value is None or types.length_in_angstrom(value) else None

    @property
    def picture_format(self) -> str:
        """The format of figures, '' for none."""
        return "" if self.pictures == "none" else self.pictures or "png"

    def selection(self) -> dict[str, Any]:
        """Return the arguments of `Scan.select`."""
        exclude = {name.removeprefix("exclude_"): getattr(self, name) for name in EXCLUSION}
        return {name: getattr(self, name) for name in SELECTION} | {"exclude": exclude}

    def plan_options(self) -> dict[str, Any]:
        """Return the options of `plan` beside data, model and client."""
        options = FitOptions.options()
        return {name: value for name, value in self.values().items() if PLAN in options[name].use}

    def replaced(self, **changes: Any) -> "FitConfig":
        """Return the configuration with other values of options."""
        return self.model_copy(update=changes)


def read_config(
    path: str | Path,
    options: Mapping[str, Any] | None = None,
    data: Sequence[AnyPath] | None = None,
) -> FitConfig:
    """Return the configuration in a YAML file; `options` and `data` replace those of the file.

    Paths in the file are relative to the file, and what it has written is below its folder: results
    of data elsewhere lie beside the file.
    """
    file = Path(path)
    content = read_yaml(file, f"`homodyne-dask config {file}` writes a template")
    if not isinstance(content, dict):
        raise OptionError(
            f"{file} does not consist of keys with values: `homodyne-dask config -` prints a template"
        )
    values: dict[str, Any] = {str(key): v for key, v in content.items() if v is not None}
    values |= {} if data is None else {"data": list(data)}
    try:
        config = FitConfig(**values)
    except OptionError as e:
        raise OptionError(f"{file}: {e}") from None
    _stay_below(file, config)
    in_file = _with_paths_from(file.parent, config)
    values = in_file | dict(options or {})
    for name in {"contrast", "offset"} & values.keys():  # bounds and prior are given each by itself
        of_file, of_both = in_file.get(name), getattr(FitConfig(**values), name)
        if isinstance(of_file, dict) and isinstance(of_both, dict):
            values[name] = of_file | of_both
    return _with_output_below(file.parent, FitConfig(**values))


def _with_paths_from(folder: Path, config: FitConfig) -> dict[str, Any]:
    in_file = {name: getattr(config, name) for name in config.model_fields_set}
    for name in in_file.keys() & _RELATIVE:
        value = in_file[name]
        if isinstance(value, str | Path) and (name, value) != ("key", "none"):
            in_file[name] = type(value)(folder / value)
    return in_file | {"data": [folder / store for store in config.data]}


def _stay_below(file: Path, config: FitConfig) -> None:
    """Raise OptionError if a file, perhaps of someone else, writes outside its own folder."""
    folder = file.parent.resolve()
    for name in _WRITTEN:
        path = getattr(config, name)
        if path is not None and not (folder / path).resolve().is_relative_to(folder):
            raise OptionError(
                f"{file}: {name} = {str(path)!r} is outside the folder of the file: "
                f"give --{name} on the command line instead"
            )


def _with_output_below(folder: Path, config: FitConfig) -> FitConfig:
    from homodyne_dask.results.files.result_folder import default_folder  # lazy: it loads xarray

    outputs = [default_folder(store, config.over) for store in config.data]
    inside = [path.resolve().is_relative_to(folder.resolve()) for path in outputs]
    if config.output is not None or all(inside):
        return config
    return config.replaced(output=folder / outputs[0].name if len(outputs) == 1 else folder)


def template() -> str:
    """Return a commented YAML file with all options; its data are an example."""
    lines = [
        "# A fit: run `homodyne-dask fit` with this file. Options on the command line override those below."
    ]
    for name, defined in FitConfig.options().items():
        mark = "" if name in ("data", "model", "gap") else "# "
        about = textwrap.fill(defined.description, 98, initial_indent="# ", subsequent_indent="# ")
        lines += ["", about, f"{mark}{name}: {defined.example}"]
    return "\n".join(lines) + "\n"
