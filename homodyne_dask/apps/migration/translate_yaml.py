"""Converts a configuration of homodyne 2.x or xpcsjax (YAML), or of homodyne-analysis (JSON).

A table says which keys are converted, and why the others are not. An error names the key and its value.
"""

import json
import math
import os
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import homodyne_dask as hd
from homodyne_dask.cli.fit_config import FitConfig, read_yaml
from homodyne_dask.errors import OptionError, nearest
from homodyne_dask.store import schema
from homodyne_dask.store.files import path_of

WHICH_DATA = ("analyzer_parameters", "phi_filtering")
"""Sections of which an unknown key may decide which data are fitted."""
_TABLE = (Path(__file__).parent / "unconverted_keys.txt").read_text(encoding="utf-8")
_ROWS = ([part.strip() for part in line.split("|")] for line in _TABLE.splitlines()[1:])
SECTIONS = {name: fields for name, *fields in _ROWS}


def unconverted_keys(
    content: Mapping[str, object], section: str = ""
) -> tuple[dict[str, str], dict[str, str]]:
    """Return what is not converted: known keys with the reason, unknown ones with a like one."""
    ignored: dict[str, str] = {}
    unknown: dict[str, str] = {}
    why, left, converted = (*SECTIONS[section], "")[:3]
    start = f"{section}." if section else ""
    for name, value in content.items():
        path = f"{start}{name}"
        inner = SECTIONS.get(path)
        if inner and len(inner) > 1 and (value is None or isinstance(value, Mapping)):
            inside = unconverted_keys(value or {}, path)
            ignored, unknown = ignored | inside[0], unknown | inside[1]
        elif inner:
            ignored[path] = inner[0]
        elif str(name) in left.split():
            ignored[path] = why
        elif str(name) not in converted.split():
            sections = (of.removeprefix(start) for of in SECTIONS if of and of.startswith(start))
            names = {of.partition(".")[0] for of in sections} | {*left.split(), *converted.split()}
            unknown[path] = nearest(str(name), sorted(names))
    return ignored, unknown


MODES = {
    **dict.fromkeys(("static", "static_isotropic", "static_anisotropic"), "static"),
    "laminar_flow": "laminar_flow",
    **dict.fromkeys(("two_component", "two-component", "heterodyne"), "two_component_xpcsjax"),
}
"""analysis_mode in lower case → name of the model here."""


def read_homodyne_yaml(where: Path) -> "HomodyneYaml":
    content = read_yaml(where, "check the name")
    content = _of_today(where, content) if isinstance(content, dict) else {}
    if "analysis_mode" not in content:
        ours = ": it is a configuration of homodyne-dask; run `homodyne-dask fit` with it"
        raise OptionError(
            f"{where} has no analysis_mode, so it is not a configuration of homodyne or xpcsjax"
            + ours * ({"model", "data"} <= {*content})
            + _misspelled(content, "analysis_mode")
        )
    return HomodyneYaml(content)


def _of_today(where: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Return what a file of homodyne-analysis (JSON) or of an older homodyne says as homodyne 2.x says it.

    The mode may be in metadata or be the model of the parameter space, times in a section of their own, and
    values may be those of the active parameters only.
    """
    if "parameters" in content and "analysis_mode" not in content:
        raise OptionError(
            f"{where} is a configuration of heterodyne, which is not converted: the model is "
            "two_component_xpcsjax; give its parameters as initial, bounds and fixed"
        )
    held, found = HomodyneYaml(content), dict(content)
    mode = held.get("metadata.analysis_mode") or held.get("parameter_space.model")
    if mode is not None:
        found.setdefault("analysis_mode", mode)
    times = held.collection("analyzer_parameters.temporal", dict)
    if times:
        of_analyzer = {**held.collection("analyzer_parameters", dict)}
        del of_analyzer["temporal"]
        for key, value in times.items():
            if of_analyzer.setdefault(key, value) != value:
                raise OptionError(f"{where}: analyzer_parameters has {key} twice: remove one")
        found["analyzer_parameters"] = of_analyzer
    initial = held.collection("initial_parameters", dict)
    keys = ("values", "active_parameters", "parameter_names")
    values, active, names = (
        len(given) if isinstance(given := initial.get(key), list) else None for key in keys
    )
    if values is not None and values == active != names:
        found["initial_parameters"] = initial | {"parameter_names": initial["active_parameters"]}
    return found


class HomodyneYaml:
    """The content of a file; every method raises OptionError naming the key and the value."""

    def __init__(self, content: Mapping[str, object]) -> None:
        self.content = content

    def get(self, path: str) -> object:
        found: object = self.content
        for key in path.split("."):
            if found is None:
                return None
            if not isinstance(found, Mapping):
                raise OptionError(f"{path} = {found!r} is not a section with keys")
            found = found.get(key)
        return found

    def number(self, path: str) -> float:
        value = self.get(path)
        if value is None:
            raise OptionError(f"{path} is missing: give a number{_misspelled(self.content, path)}")
        number = finite_number(path, value)
        if number <= 0:
            raise OptionError(f"{path} = {value!r} must be above 0")
        return number

    def collection[Of: (list[Any], dict[str, Any])](self, path: str, of: type[Of]) -> Of:
        found = self.get(path)
        if found is None:
            return of()
        if not isinstance(found, of):
            raise OptionError(f"{path} = {found!r} must be a {of.__name__}, or null")
        return found

    def model(self) -> str:
        mode = self.get("analysis_mode")
        if str(mode).lower() not in MODES:
            raise OptionError(f"analysis_mode {mode!r} is unknown; {nearest(str(mode), MODES)}")
        return MODES[str(mode).lower()]

    def data(self) -> Path:
        """Return the file of the data; folder and name precede file_path, as in homodyne."""
        keys = ("data_folder_path", "data_file_name", "file_path")
        folder, name, file = (self.get(f"experimental_data.{key}") for key in keys)
        if folder is not None and name is not None:
            return Path(str(folder), str(name))
        if file is None:
            like = _misspelled(self.content, "experimental_data.file_path")
            raise OptionError(
                f"experimental_data.file_path is missing: give the file with the data{like}"
            )
        return Path(str(file))

    def ranges(self) -> list[tuple[float, float]]:
        """Return ranges of angles [°], [] for all; one that goes down is one around ±180°, and two here."""
        if not self.get("phi_filtering.enabled"):
            return []
        found = []
        for n, item in enumerate(self.collection("phi_filtering.target_ranges", list)):
            path = f"phi_filtering.target_ranges[{n}]"
            if not isinstance(item, Mapping):
                raise OptionError(f"{path} has no min_angle, max_angle")
            low = finite_number(f"{path}.min_angle", item.get("min_angle", -180))
            high = finite_number(f"{path}.max_angle", item.get("max_angle", 180))
            found += [(low, high)] if low <= high else [(low, 180.0), (-180.0, high)]
        return found

    def whole(self, path: str, default: int) -> int:
        value = self.get(path)
        number = finite_number(path, default if value is None else value)
        if number != int(number):
            raise OptionError(f"{path} = {value!r} is not a whole number")
        return int(number)


def _misspelled(content: Mapping[str, Any], path: str) -> str:
    """Return which unknown key of a file may be meant by a missing one, or by its section; '' for none."""
    unknown, start = unconverted_keys(content)[1], ""
    for key in path.split("."):
        here = [one.removeprefix(start) for one in unknown if one.startswith(start)]
        for one in get_close_matches(key, [name for name in here if "." not in name], n=1):
            return f"; the file has {one!r}: is it {key!r}?"
        start += f"{key}."
    return ""


def finite_number(path: str, value: object) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise OptionError(f"{path} = {value!r} is not a finite number")
    return number


NAMES = {
    name: hd.MODELS[name].names for name in ("static", "laminar_flow", "two_component_xpcsjax")
}
ALIASES = {"gamma_dot_0": "gamma_dot_t0", "gamma_dot_offset": "gamma_dot_t_offset", "phi_0": "phi0"}
SCALING = ("contrast", "offset")
_ELIMINATED = "contrast and offset are eliminated exactly"
SCALING_OF_MODE = {
    "auto": ("shared", "as in homodyne for three angles or more; for fewer, give individual"),
    "individual": ("individual", _ELIMINATED),
    "constant": (
        "individual",
        "homodyne's 'constant' freezes estimates of each angle; here contrast and offset of each "
        "angle are eliminated exactly ('individual'); to freeze them, use 'fixed'",
    ),
}
"""per_angle_mode of homodyne → the scaling of `fit`, and a remark on it."""
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
        by_reason: dict[str, list[str]] = {}
        for key, why in self.ignored.items():
            by_reason.setdefault(why, []).append(key)
        paragraphs = {
            "unknown keys, ignored:": [f"{key}: {like}" for key, like in self.unknown.items()],
            "converted, with a difference:": self.remarks,
            "not converted:": [f"{', '.join(keys)}: {why}" for why, keys in by_reason.items()],
        }
        fill = partial(textwrap.fill, width=100, initial_indent="  ", subsequent_indent="    ")
        lines = [
            f"{self.source}, converted to a configuration of model {self.config.model}.",
            f"first: {self.ingest}",
        ]
        for title, entries in paragraphs.items():
            lines += [f"\n{title}", *map(fill, entries)] if entries else []
        return "\n".join(lines)


def from_homodyne_yaml(path: str | Path) -> Translation:
    """Convert a YAML file of homodyne 2.x or xpcsjax, with remarks on every key.

    path: the YAML file. The converted configuration describes the same fit: the `homodyne` convention, the
    same frames without the first, the same angles, bounds and initial values; for `values: null`, initial
    values are searched in the data. Raises OptionError for any other file, and for invalid values.

    >>> hd.from_homodyne_yaml("homodyne.yaml").config.convention
    'homodyne'
    """
    where = path_of("path", path)
    theirs = read_homodyne_yaml(where)
    try:
        return _translated(where, theirs)
    except OptionError as e:
        raise OptionError(f"{where}: {e}") from None


def _translated(where: Path, theirs: HomodyneYaml) -> Translation:
    model, source = theirs.model(), theirs.data()
    for path, unit in UNITS.items():
        given = theirs.get(path)
        if given is not None and str(given).lower() not in map(str.lower, unit):
            raise OptionError(
                f"{path} = {given!r} is not converted: give the number, and {unit[0]} here"
            )
    remarks = [
        f"weights: homodyne uses σ = {SIGMA} for every pair, hence --sigma {SIGMA} of ingest; without it "
        f"ingest estimates σ of each bin from counts or scatter, which weights the bins correctly"
    ]
    if not source.exists():
        remarks.append(
            f"data: {source} does not exist, seen from here: check its folder and name, or run the command "
            f"where homodyne ran"
        )
    options: dict[str, Any] = {"data": [str(schema.store_beside(source))], "model": model}
    frames, offset = _frames(theirs, source, remarks)
    scaling, on_scaling = _scaling(theirs)
    remarks.append(f"scaling {scaling}: {on_scaling}")
    if model == hd.LAMINAR_FLOW.name:
        gap = theirs.number("analyzer_parameters.geometry.stator_rotor_gap")
        options["gap"] = f"{gap:.12g} A"
    if model != "two_component_xpcsjax":
        options["convention"] = "homodyne"
        remarks.append(
            "convention homodyne, to continue a series; the physical convention, for new work, gives a γ̇ "
            "smaller by a factor of about 2.22"
        )
    options["scaling"] = scaling
    options["q"] = [theirs.number("analyzer_parameters.scattering.wavevector_q")]
    remarks.append("q: the nearest ring within 2 %; homodyne uses the nearest at any distance")
    if ranges := theirs.ranges():
        options["phi"] = ranges
        remarks.append(
            "phi: ranges of angles in degrees; a range with min_angle above max_angle, around ±180°, "
            "becomes two ranges"
        )
    loss = theirs.get("optimization.nlsq.loss")
    if loss not in (None, "linear"):
        remarks.append(
            f"loss {loss}: a sum of squares here; add `loss: {loss}` for a robust loss, if there are "
            f"outliers (huber, soft_l1 or cauchy)"
        )
    options |= {"frames": frames} | _parameters(theirs, NAMES[model], remarks)
    words = ["homodyne-dask ingest", str(source), f"--sigma {SIGMA}"]
    words += [f'--gap "{options["gap"]}"'] if "gap" in options else []
    words += [f"--time-offset {offset:.12g}"] if offset else []
    ignored, unknown = unconverted_keys(theirs.content)
    for key, like in unknown.items():
        if key.partition(".")[0] in WHICH_DATA:
            raise OptionError(f"{key} is unknown, and may decide which data are fitted; {like}")
    return Translation(
        where, FitConfig(**options), " ".join(words), tuple(remarks), ignored, unknown
    )


def _frames(
    theirs: HomodyneYaml, source: Path, remarks: list[str]
) -> tuple[tuple[int, int], float]:
    """Return frames counted from 0 and seconds to add to all times, and add remarks."""
    first = max(theirs.whole("analyzer_parameters.start_frame", 1), 1)
    last = theirs.whole("analyzer_parameters.end_frame", -1)
    if 0 <= last <= first + 2:
        raise OptionError(f"analyzer_parameters.end_frame = {last} leaves no frames to fit")
    if source.suffix == ".npz":
        remarks.append("frames: all of the .npz without the first, as in homodyne")
        return (1, ALL_FRAMES), 0.0
    remarks.append(
        f"frames {first} to {'the last' if last < 0 else last} inclusive, counted from 1, without "
        f"the first, which homodyne excludes from a fit; here they are counted from 0, end excluded"
    )
    offset = 0.0
    if first > 1:
        offset = -(first - 1) * theirs.number("analyzer_parameters.dt")
        remarks.append(
            f"times: homodyne counts them from frame {first}, but the store counts from its first frame; "
            f"rates depend on this origin, hence --time-offset {offset:.12g} below"
        )
    return (first, ALL_FRAMES if last < 0 else last), offset


def _scaling(theirs: HomodyneYaml) -> tuple[str, str]:
    path = "optimization.nlsq.anti_degeneracy"
    mode = theirs.get(f"{path}.per_angle_mode")
    mode = "auto" if mode is None else str(mode)
    if mode in SCALING_OF_MODE:
        return SCALING_OF_MODE[mode]
    if mode != "fourier":
        known = (*SCALING_OF_MODE, "fourier")
        raise OptionError(f"{path}.per_angle_mode {mode!r} is unknown; {nearest(mode, known)}")
    order = theirs.whole(f"{path}.fourier_order", 2)
    if order not in (1, 2, 3):
        raise OptionError(f"{path}.fourier_order = {order} is not supported: give 1, 2 or 3")
    return f"fourier{order}", _ELIMINATED


def _parameters(
    theirs: HomodyneYaml, names: tuple[str, ...], remarks: list[str]
) -> dict[str, dict[str, Any]]:
    """Return the options initial, fixed and bounds that are not empty, and add remarks."""
    path = "initial_parameters"
    start = _start(theirs, names, remarks)
    given = theirs.collection(f"{path}.fixed_parameters", dict)
    fixed = _by_name(f"{path}.fixed_parameters", given, names)
    key = f"{path}.active_parameters"
    active = [_name(key, name, names) for name in theirs.collection(key, list)]
    for name in names if active else ():
        if name in active or name in fixed:
            continue
        if name not in start:
            raise OptionError(
                f"{key} excludes {name}, which has no value: add it to fixed_parameters"
            )
        fixed[name] = start[name]
    if fixed:
        remarks.append(
            f"{', '.join(fixed)} fixed at the given value, as in xpcsjax; homodyne 2.23 still varies them "
            f"in its least squares"
        )
    if scaling := sorted({*SCALING} & {*given, *active}):
        remarks.append(
            f"{' and '.join(scaling)}: not fixed but eliminated; to fix them give scaling: fixed and values"
        )
    initial = {name: value for name, value in start.items() if name not in fixed}
    options = {"initial": initial, "fixed": fixed, "bounds": _bounds(theirs, names)}
    return {key: value for key, value in options.items() if value}


def _start(theirs: HomodyneYaml, names: tuple[str, ...], remarks: list[str]) -> dict[str, float]:
    path = "initial_parameters.values"
    values = theirs.get(path)
    if values is None:
        remarks.append(
            "initial values are searched for in the data; homodyne starts in the middle of the bounds"
        )
        return {}
    listed = theirs.collection("initial_parameters.parameter_names", list)
    if not isinstance(values, list) or len(values) != len(listed):
        raise OptionError(
            f"{path} must have one value for each of the {len(listed)} parameter_names: {values!r}"
        )
    return _by_name(path, dict(zip(listed, values, strict=True)), names)


def _bounds(theirs: HomodyneYaml, names: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    path, found = "parameter_space.bounds", {}
    # static configurations of homodyne may contain bounds of the parameters of flow
    known = (*names, *hd.LAMINAR_FLOW.names[3:])
    for n, item in enumerate(theirs.collection(path, list)):
        if not isinstance(item, Mapping) or not {"name", "min", "max"} <= set(item):
            raise OptionError(f"{path}[{n}] needs name, min and max: {item!r}")
        name = _name(f"{path}[{n}].name", item["name"], known)
        if name in names:
            ends = (finite_number(f"{path} of {name}, {key}", item[key]) for key in ("min", "max"))
            found[name] = tuple(ends)
    return found


def _by_name(path: str, given: Mapping[Any, Any], names: tuple[str, ...]) -> dict[str, float]:
    """Return numbers by parameter name; contrast and offset are not parameters here."""
    return {
        name: finite_number(f"{path} of {key}", value)
        for key, value in given.items()
        if (name := _name(path, key, names)) not in SCALING
    }


def _name(path: str, given: Any, names: tuple[str, ...]) -> str:
    name = ALIASES.get(given, given)
    if name not in (*names, *SCALING):
        raise OptionError(f"{path}: unknown parameter {given!r}; {nearest(str(given), names)}")
    return name
