"""Converts a configuration of homodyne 2.x or xpcsjax (YAML), or of homodyne-analysis (JSON).

A table says which keys are converted, and why the others are not. An error names the key and its value.
"""

import json
import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AllowInfNan, TypeAdapter, ValidationError

import homodyne_dask as hd
from homodyne_dask.cli.fit_config import FitConfig, read_yaml
from homodyne_dask.errors import OptionError, nearest, shown
from homodyne_dask.request import option_types as types
from homodyne_dask.store import schema
from homodyne_dask.store.files import path_of
from homodyne_dask.text import joined_with_and, wrapped

WHICH_DATA = ("analyzer_parameters", "phi_filtering")
"""Sections of which an unknown key may decide which data are fitted."""
_TABLE = (Path(__file__).parent / "unconverted_keys.txt").read_text(encoding="utf-8")
_ROWS = [[field.strip() for field in line.split("|")] for line in _TABLE.splitlines()[1:]]
REASONS = {section: why for section, why, *keys in _ROWS if not keys} | {
    f"{section}.{key}".removeprefix("."): reason
    for section, why, *keys in _ROWS
    for names, reason in zip(keys, (why, ""), strict=False)
    for key in names.split()
}
"""Key, or whole section → why it is not converted, '' if it is."""


def unconverted_keys(
    content: Mapping[str, object], start: str = ""
) -> tuple[dict[str, str], dict[str, str]]:
    """Return what is not converted: known keys with the reason, unknown ones with a like one."""
    ignored: dict[str, str] = {}
    unknown: dict[str, str] = {}
    names = {key.removeprefix(start).partition(".")[0] for key in REASONS if key.startswith(start)}
    for name, value in content.items():
        path = f"{start}{name}"
        if str(name) not in names:  # nor is a path with dots, which may be one of REASONS
            nested = "did you mean {2!r} inside the section {0!r}?".format(*path.rpartition("."))
            unknown[path] = nested if path in REASONS else nearest(str(name), sorted(names))
        elif path in REASONS:
            ignored |= {path: REASONS[path]} if REASONS[path] else {}
        elif isinstance(value, Mapping):
            inside = unconverted_keys(value, f"{path}.")
            ignored, unknown = ignored | inside[0], unknown | inside[1]
    return ignored, unknown


MODES = {
    **dict.fromkeys(("static", "static_isotropic", "static_anisotropic"), "static"),
    "laminar_flow": "laminar_flow",
    **dict.fromkeys(("two_component", "two-component", "heterodyne"), "two_component_xpcsjax"),
}
"""analysis_mode in lower case → name of the model here."""
ALIASES = {"gamma_dot_0": "gamma_dot_t0", "gamma_dot_offset": "gamma_dot_t_offset", "phi_0": "phi0"}
ELIMINATED = ("contrast", "offset")
"""Parameters of homodyne that are none here."""
_EXACTLY = "contrast and offset are eliminated exactly"
SCALING_OF_MODE = {
    "auto": ("shared", "as in homodyne for three angles or more; for fewer, give individual"),
    "individual": ("individual", _EXACTLY),
    "constant": ("individual", "homodyne freezes its estimates; to freeze them here, give 'fixed'"),
    "fourier": ("fourier", _EXACTLY),
}
"""per_angle_mode of homodyne → the scaling of `fit`, without the order, and a remark on it."""
UNITS = {
    "analyzer_parameters.scattering.q_unit": ("1/A", "a^-1", "a-1", "å⁻¹", "1/å", "1/angstrom"),
    "analyzer_parameters.geometry.gap_unit": ("Å", "a", "angstrom", "angstroms"),
    "analyzer_parameters.dt_unit": ("s", "sec", "second", "seconds"),
    "analyzer_parameters.time_unit": ("s", "sec", "second", "seconds"),
}
"""Units that a file may name, and other words for them."""
SIGMA = 0.01
"""Standard deviation of every pair in homodyne."""
ALL_FRAMES = 1_000_000_000
Finite = Annotated[types.Number, AllowInfNan(False)]
Positive = Annotated[types.Positive, AllowInfNan(False)]


class HomodyneYaml:
    """The content of a file; every method raises OptionError naming the key and the value."""

    def __init__(self, content: Mapping[str, object]) -> None:
        self.content = content
        self.remarks: list[str] = []

    def remark(self, text: str) -> None:
        self.remarks.append(text)

    def get(self, path: str) -> Any:
        value: object = self.content
        for key in path.split("."):
            if value is None:
                return None
            if not isinstance(value, Mapping):
                raise OptionError(f"{path} = {shown(value)} is not a section with keys")
            value = value.get(key)
        return value

    def read(self, path: str, kind: Any, default: Any = None) -> Any:
        """Return a value as a type; null, or no value, is the default, and an error if there is none."""
        value = self.get(path)
        if value is None and default is None:
            raise OptionError(f"{path} is missing: give its value")
        return default if value is None else checked(path, value, kind)


def checked(path: str, value: object, kind: Any) -> Any:
    """Return a value as pydantic reads it as a type; raises OptionError naming the key and the value."""
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as e:
        wrong = e.errors()[0]
        key = ".".join([path, *map(str, wrong["loc"])])
        raise OptionError(f"{key} = {shown(wrong['input'])}: {wrong['msg']}") from None


@dataclass(frozen=True)
class Translation:
    """A configuration of homodyne or xpcsjax, converted; `print` it for all remarks."""

    source: Path
    config: FitConfig
    """Its paths are relative to the working folder, as in homodyne."""
    ingest: str
    """The command that writes the store."""
    remarks: tuple[str, ...]
    """On keys that are converted but differ in some way."""
    ignored: dict[str, str]
    """Key or section → why it is not converted."""
    unknown: dict[str, str]
    """Key of neither program → the most similar one."""

    def yaml(self, folder: str | Path = ".") -> str:
        """Return the text of a file in `folder` for `homodyne-dask fit`."""
        lines = [f"# from {self.source.name}; the store is written by", f"#   {self.ingest}", ""]
        content = self.config.model_dump(mode="json", exclude_unset=True)
        (store,) = self.config.data
        content["data"] = str(store) if store.is_absolute() else os.path.relpath(str(store), folder)
        lines += [f"{key}: {json.dumps(value)}" for key, value in content.items()]
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        """Return all remarks, those that matter first."""
        reasons = {
            why: ", ".join(key for key in self.ignored if self.ignored[key] == why)
            for why in self.ignored.values()
        }
        paragraphs = {
            "unknown keys, ignored:": [f"{key}: {like}" for key, like in self.unknown.items()],
            "converted, with a difference:": self.remarks,
            "not converted:": [f"{keys}: {why}" for why, keys in reasons.items()],
        }
        lines = [f"{self.source}, converted to a configuration of model {self.config.model}."]
        lines += [f"first: {self.ingest}"]
        for title, entries in paragraphs.items():
            lines += ["", title, *wrapped("  ", entries)] if entries else []
        return "\n".join(lines)


def from_homodyne_yaml(path: str | Path) -> Translation:
    """Convert a YAML file of homodyne 2.x or xpcsjax, with remarks on every key.

    path: the YAML file. The converted configuration describes the same fit: the `homodyne` convention, the
    same frames without the first, the same angles, bounds and initial values; for `values: null`, initial
    values are searched in the data. Raises OptionError for any other file, and for invalid values.

    >>> hd.from_homodyne_yaml("homodyne.yaml").config.convention
    'homodyne'
    """
    file = path_of("path", path)
    content = read_yaml(file, "check the name")
    unknown: dict[str, str] = {}
    try:
        content = _of_today(content) if isinstance(content, dict) else {}
        ignored, unknown = unconverted_keys(content)
        theirs = HomodyneYaml(content)
        config, command = _translated(theirs)
    except OptionError as e:
        likely = [f"{key}: {hint}" for key, hint in unknown.items() if "did you mean" in hint]
        raise OptionError("; the file has ".join([f"{file}: {e}", *likely[:3]])) from None
    for key, hint in unknown.items():
        if key.partition(".")[0] in WHICH_DATA:
            raise OptionError(f"{file}: {key} is unknown, and may decide what is fitted; {hint}")
    return Translation(file, config, command, tuple(theirs.remarks), ignored, unknown)


def _of_today(content: dict[str, Any]) -> dict[str, Any]:
    """Return what a file of homodyne-analysis (JSON) or of an older homodyne says as homodyne 2.x says it.

    The mode may be in metadata or be the model of the parameter space, times in a section of their own, and
    values may be those of the active parameters only.
    """
    if "analysis_mode" not in content:
        if {"model", "data"} <= content.keys():
            raise OptionError("it is one of homodyne-dask: run `homodyne-dask fit` with it")
        if "parameters" in content:
            raise OptionError(
                "it is a configuration of heterodyne, which is not converted: the model is "
                "two_component_xpcsjax; give its parameters as initial, bounds and fixed"
            )
    theirs = HomodyneYaml(content)
    mode = theirs.get("metadata.analysis_mode") or theirs.get("parameter_space.model")
    today = {"analysis_mode": mode} | content
    if times := theirs.read("analyzer_parameters.temporal", dict, {}):
        analyzer = {**theirs.read("analyzer_parameters", dict, {})}
        del analyzer["temporal"]
        for key, value in times.items():
            if analyzer.setdefault(key, value) != value:
                raise OptionError(f"analyzer_parameters has {key} twice: remove one")
        today["analyzer_parameters"] = analyzer
    initial = theirs.read("initial_parameters", dict, {})
    keys = ("values", "active_parameters", "parameter_names")
    values, active, names = (
        len(listed) if isinstance(listed := initial.get(key), list) else None for key in keys
    )
    if values is not None and values == active != names:
        today["initial_parameters"] = initial | {"parameter_names": initial["active_parameters"]}
    return today


def _translated(theirs: HomodyneYaml) -> tuple[FitConfig, str]:
    """Return the options of `fit`, and the command that writes the store; what differs is remarked upon."""
    model, source = _model(theirs), _data(theirs)
    for path, words in UNITS.items():
        unit, ours = theirs.get(path), words[0]
        if unit is not None and str(unit).lower() not in map(str.lower, words):
            raise OptionError(f"{path} = {shown(unit)} is not converted: give a number in {ours}")
    theirs.remark(
        f"weights: σ = {SIGMA} as in homodyne, hence --sigma; without it ingest estimates σ"
    )
    if not source.exists():
        theirs.remark(f"data: {source} does not exist, seen from here: check its folder and name")
    options: dict[str, Any] = {"data": [str(schema.store_beside(source))], "model": model}
    command = ["homodyne-dask ingest", shlex.quote(str(source)), f"--sigma {SIGMA}"]
    *options["frames"], offset = _frames(theirs, source)
    options["scaling"] = _scaling(theirs)
    if model == hd.LAMINAR_FLOW.name:
        gap = theirs.read("analyzer_parameters.geometry.stator_rotor_gap", Positive)
        options["gap"] = f"{gap:.12g} A"
        command.append(f'--gap "{options["gap"]}"')
    if model != "two_component_xpcsjax":
        options["convention"] = "homodyne"
        theirs.remark("convention homodyne; for new work: physical, with about 1/2.22 of its γ̇")
    command += [f"--time-offset {offset:.12g}"] * bool(offset)
    options["q"] = [theirs.read("analyzer_parameters.scattering.wavevector_q", Positive)]
    theirs.remark("q: the nearest ring within 2 %; homodyne uses the nearest at any distance")
    if ranges := _ranges(theirs):
        options["phi"] = ranges
        theirs.remark("phi: a range from min_angle across ±180° to max_angle becomes two")
    loss = theirs.get("optimization.nlsq.loss")
    if loss not in (None, "linear"):
        theirs.remark(f"loss {loss}: a sum of squares here; for outliers, give one such as huber")
    options |= _parameters(theirs, hd.MODELS[model].names)
    return FitConfig(**options), " ".join(command)


def _model(theirs: HomodyneYaml) -> str:
    mode = theirs.get("analysis_mode")
    if mode is None:
        raise OptionError("without analysis_mode, it is not a configuration of homodyne or xpcsjax")
    if str(mode).lower() not in MODES:
        raise OptionError(f"analysis_mode {mode!r} is unknown; {nearest(str(mode), MODES)}")
    return MODES[str(mode).lower()]


def _data(theirs: HomodyneYaml) -> Path:
    """Return the file of the data; folder and name precede file_path, as in homodyne."""
    keys = ("data_folder_path", "data_file_name", "file_path")
    folder, name, file = (theirs.get(f"experimental_data.{key}") for key in keys)
    if folder is not None and name is not None:
        return Path(str(folder), str(name))
    if file is None:
        raise OptionError("experimental_data.file_path is missing: give the file with the data")
    return Path(str(file))


def _ranges(theirs: HomodyneYaml) -> list[tuple[float, float]]:
    """Return ranges of angles [°], [] for all; one that goes down is one around ±180°, and two here."""
    if not theirs.get("phi_filtering.enabled"):
        return []
    ranges, path = [], "phi_filtering.target_ranges"
    keys = Literal["min_angle", "max_angle", "description"]
    for item in theirs.read(path, list[dict[keys, Any]], []):
        low = checked(f"{path}: min_angle", item.get("min_angle", -180), Finite)
        high = checked(f"{path}: max_angle", item.get("max_angle", 180), Finite)
        ranges += [(low, high)] if low <= high else [(low, 180.0), (-180.0, high)]
    return ranges


def _frames(theirs: HomodyneYaml, source: Path) -> tuple[int, int, float]:
    """Return the first frame from 0, the end, and seconds to add to all times."""
    first = max(theirs.read("analyzer_parameters.start_frame", types.Integer, 1), 1)
    last = theirs.read("analyzer_parameters.end_frame", types.Integer, -1)
    if 0 <= last <= first + 2:
        raise OptionError(f"analyzer_parameters.end_frame = {last} leaves no frames to fit")
    if source.suffix == ".npz":
        theirs.remark("frames: all of the .npz without the first, as in homodyne")
        return 1, ALL_FRAMES, 0.0
    theirs.remark(
        f"frames {first} to {'the last' if last < 0 else last} inclusive, counted from 1, without "
        f"the first, which homodyne excludes from a fit; here they are counted from 0, end excluded"
    )
    offset = 0.0
    if first > 1:
        offset = -(first - 1) * theirs.read("analyzer_parameters.dt", Positive)
        theirs.remark(
            f"times: homodyne counts them from frame {first}, but the store counts from its first frame; "
            f"rates depend on this origin, hence --time-offset {offset:.12g} below"
        )
    return first, ALL_FRAMES if last < 0 else last, offset


def _scaling(theirs: HomodyneYaml) -> str:
    path = "optimization.nlsq.anti_degeneracy"
    mode = theirs.read(f"{path}.per_angle_mode", Literal[*SCALING_OF_MODE], "auto")
    scaling, remark = SCALING_OF_MODE[mode]
    if mode == "fourier":
        order = theirs.read(f"{path}.fourier_order", types.Integer, 2)
        scaling += str(checked(f"{path}.fourier_order", order, Literal[1, 2, 3]))
    theirs.remark(f"scaling {scaling}: {remark}")
    return scaling


def _parameters(theirs: HomodyneYaml, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the options initial, fixed and bounds that are not empty."""
    start = _start(theirs, names)
    key = "initial_parameters.fixed_parameters"
    of_file = theirs.read(key, dict, {})
    fixed = _by_name(key, of_file.items(), names)
    key = "initial_parameters.active_parameters"
    active = [_name(key, name, names) for name in theirs.read(key, list, [])]
    for name in names if active else ():
        if name not in (*active, *fixed, *start):
            raise OptionError(f"{key} excludes {name}, which has no value: give it as fixed")
        if name not in (*active, *fixed):
            fixed[name] = start[name]
    if fixed:
        theirs.remark(f"{', '.join(fixed)} fixed, as in xpcsjax; homodyne 2.23 still varies them")
    if not_fixed := sorted({*ELIMINATED} & {*of_file, *active}):
        theirs.remark(f"{joined_with_and(not_fixed)}: eliminated; scaling: fixed would fix them")
    initial = {name: value for name, value in start.items() if name not in fixed}
    options = {"initial": initial, "fixed": fixed, "bounds": _bounds(theirs, names)}
    return {option: values for option, values in options.items() if values}


def _start(theirs: HomodyneYaml, names: tuple[str, ...]) -> dict[str, float]:
    path = "initial_parameters.values"
    if theirs.get(path) is None:
        theirs.remark("initial values: searched for in the data; homodyne starts amid the bounds")
        return {}
    values = theirs.read(path, list)
    listed = theirs.read("initial_parameters.parameter_names", list[str], [])
    if len(values) != len(listed):
        raise OptionError(f"{path} has {len(values)} values: give {len(listed)}, one for each name")
    return _by_name(path, zip(listed, values, strict=True), names)


def _bounds(theirs: HomodyneYaml, names: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    path, bounds = "parameter_space.bounds", {}
    # static configurations of homodyne may contain bounds of the parameters of flow
    usual = (*names, *hd.LAMINAR_FLOW.names[3:])
    for item in theirs.read(path, list[dict[str, Any]], []):
        name = _name(f"{path}: name", item.get("name"), usual)
        if name in bounds:
            raise OptionError(f"{path} has {name} twice: remove one")
        if name in names:
            low = checked(f"{path} of {name}: min", item.get("min"), Finite)
            high = checked(f"{path} of {name}: max", item.get("max"), Finite)
            bounds[name] = low, high
    return bounds


def _by_name(path: str, pairs: Iterable[Any], names: tuple[str, ...]) -> dict[str, float]:
    """Return numbers by parameter name; contrast and offset are not parameters here."""
    numbers: dict[str, float] = {}
    for key, value in pairs:
        if (name := _name(path, key, names)) in numbers:
            raise OptionError(f"{path} has {name} twice: remove one")
        if name not in ELIMINATED:
            numbers[name] = checked(f"{path} of {key}", value, Finite)
    return numbers


def _name(path: str, spelled: Any, names: tuple[str, ...]) -> str:
    name = ALIASES.get(str(spelled), str(spelled))
    if name not in (*names, *ELIMINATED):
        raise OptionError(f"{path}: unknown parameter {spelled!r}; {nearest(spelled, names)}")
    return name
