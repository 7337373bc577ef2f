"""A YAML file of homodyne 2.x or xpcsjax → our configuration, and what became of every key."""

import json
import math
import os
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from homodyne_dask import schema
from homodyne_dask.config import FitConfig, from_options
from homodyne_dask.errors import OptionError, nearest
from homodyne_dask.homodyne.keys import leftovers
from homodyne_dask.models import LAMINAR_FLOW, STATIC
from homodyne_dask.units import gap_in_angstrom

MODES = {
    "static": "static",
    "static_isotropic": "static",
    "static_anisotropic": "static",
    "laminar_flow": "laminar_flow",
    "two_component": "two_component",
    "two-component": "two_component",
    "heterodyne": "two_component",
}
"""Their analysis_mode, in small letters → our model."""
NAMES = {
    "static": STATIC.names,
    "laminar_flow": LAMINAR_FLOW.names,
    "two_component": (
        "D0_ref", "alpha_ref", "D_offset_ref", "D0_sample", "alpha_sample", "D_offset_sample",
        "v0", "v_beta", "v_offset", "f0", "f1", "f2", "f3", "phi0_het",
    ),
}  # fmt: skip
ALIASES = {"gamma_dot_0": "gamma_dot_t0", "gamma_dot_offset": "gamma_dot_t_offset", "phi_0": "phi0"}
SCALING = ("contrast", "offset")
SCALINGS = {
    "auto": (
        "shared",
        "theirs is one contrast and offset for all from 3 angles on, and one per angle below (and "
        "per angle whatever is set where there are fewer than 100,000 points); for new work take "
        "'individual': exact, and no slower",
    ),
    "individual": ("individual", "one contrast and offset per angle, eliminated exactly"),
    "constant": (
        "individual",
        "theirs holds contrast and offset at estimates from the data's quantiles; here they are "
        "eliminated exactly, so the answer is another, the least-squares one",
    ),
    "fourier": (
        "individual",
        "theirs lets contrast and offset vary over φ as a Fourier series; here each angle has its "
        "own, eliminated exactly",
    ),
}
"""Their per_angle_mode → our scaling and what to say of it."""
SIGMA = 0.01
"""Noise of every pair, as they take it."""
TO_THE_LAST = 1_000_000_000
"""More frames than any scan has."""


@dataclass(frozen=True)
class Translation:
    """A configuration of homodyne or xpcsjax as one of ours. `print` it for all that was noticed."""

    source: Path
    config: FitConfig
    """Paths are as theirs: relative to the working folder."""
    ingest: str
    """The command that makes the store."""
    remarks: tuple[str, ...]
    """What was carried over and is not quite the same."""
    ignored: dict[str, str]
    """Key → why it is not carried over."""
    unknown: dict[str, str]
    """Key that neither program knows → what may have been meant."""

    def yaml(self, folder: str | Path = ".") -> str:
        """Return the text of a file in `folder` for `homodyne-dask fit`."""
        lines = [f"# from {self.source.name}; the store is made by", f"#   {self.ingest}", ""]
        held = self.config.model_dump(mode="json", exclude_unset=True)
        there = [_relative(path, Path(folder)) for path in self.config.data]
        held["data"] = there[0] if len(there) == 1 else there
        lines += [f"{key}: {json.dumps(value)}" for key, value in held.items()]
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        """Return what became of the file's keys."""
        return "\n".join(
            [
                f"{self.source}, read as a configuration of {self.config.model}.",
                *_paragraph("unknown, and not carried over:", _unknown_lines(self.unknown)),
                *_paragraph("carried over:", self.remarks),
                *_paragraph("not carried over:", _ignored_lines(self.ignored)),
                f"first: {self.ingest}",
            ]
        )


def from_homodyne_yaml(path: str | Path) -> Translation:
    """Return a homodyne 2.x or xpcsjax YAML file as our configuration, with notes on every key.

    The fit it describes is theirs: the `homodyne` convention, their frames without the first, their
    angles, bounds and first values; `values: null` becomes our search in the data. Raises OptionError
    for a file that is none of theirs, and for values that cannot be meant.
    """
    where = Path(path)
    held = _read(where)
    try:
        return _translated(where, held)
    except OptionError as e:
        raise OptionError(f"{where}: {e}") from None


def _read(where: Path) -> dict[str, Any]:
    try:
        held = yaml.safe_load(where.read_text())
    except OSError as e:
        raise OptionError(f"{where} cannot be read ({e.strerror}): check the name") from e
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        raise OptionError(f"{where} is not YAML: {e}") from e
    if not isinstance(held, dict) or "analysis_mode" not in held:
        ours = isinstance(held, dict) and "model" in held and "data" in held
        raise OptionError(
            f"{where} has no analysis_mode, so it is no configuration of homodyne or xpcsjax"
            + (": it is one of ours, run `homodyne-dask fit` with it" if ours else "")
        )
    return held


def _translated(where: Path, held: dict[str, Any]) -> Translation:
    theirs = _Theirs(held)
    model = theirs.model()
    source = theirs.data()
    frames, offset, on_frames = _frames(theirs, source)
    scaling, on_scaling = _scaling(theirs)
    options: dict[str, Any] = {"data": [str(schema.store_beside(source))], "model": model}
    remarks = [
        f"the weights: homodyne takes σ = {SIGMA} for every pair, hence --sigma {SIGMA} below; "
        f"without it σ comes from the counts or the scatter, and bins get the weight they deserve",
        *on_frames,
        f"scaling {scaling}: {on_scaling}",
    ]
    if model == LAMINAR_FLOW.name:
        gap = theirs.number("analyzer_parameters.geometry.stator_rotor_gap")
        options["gap"] = f"{gap_in_angstrom(gap):.12g} A"
    if model != "two_component":
        options["convention"] = "homodyne"
        remarks.append(
            "convention homodyne, to continue a series; in the physical one, for new work, γ̇ is "
            "smaller by up to 2.22"
        )
    options["scaling"] = scaling
    options["q"] = [theirs.number("analyzer_parameters.scattering.wavevector_q")]
    remarks.append("q: the nearest ring within 2 %; theirs is the nearest however far")
    if ranges := theirs.ranges():
        options["phi"] = ranges
        remarks.append("phi: ranges of angles in degrees, around ±180° where low is above high")
    options["frames"] = frames
    found, on_parameters = _parameters(theirs, NAMES[model])
    left = list(leftovers(held))
    return Translation(
        source=where,
        config=from_options(options | found),
        ingest=_ingest(source, options.get("gap"), offset),
        remarks=(*remarks, *on_parameters),
        ignored={one.key: one.why for one in left if one.known},
        unknown={one.key: one.why for one in left if not one.known},
    )


class _Theirs:
    """Their file, read key by key; each mistake names its key."""

    def __init__(self, held: dict[str, Any]) -> None:
        self.held = held

    def get(self, path: str) -> Any:
        """Return the value of a key such as 'output.formats', None where there is none."""
        found: Any = self.held
        for key in path.split("."):
            if found is None:
                return None
            if not isinstance(found, Mapping):
                raise OptionError(f"{path} = {found!r} is no section with keys")
            found = found.get(key)
        return found

    def number(self, path: str) -> float:
        """Return a positive number."""
        value = self.get(path)
        if value is None:
            raise OptionError(f"{path} is missing: give a number")
        number = _number(path, value)
        if number <= 0:
            raise OptionError(f"{path} = {value!r} must be above 0")
        return number

    def listed(self, path: str, kind: type) -> Any:
        """Return a list or dict, an empty one where there is none."""
        found = self.get(path)
        if found is None:
            return kind()
        if not isinstance(found, kind):
            raise OptionError(f"{path} = {found!r} must be a {kind.__name__}, or null")
        return found

    def model(self) -> str:
        mode = self.get("analysis_mode")
        if str(mode).lower() not in MODES:
            raise OptionError(f"analysis_mode {mode!r} is unknown; {nearest(str(mode), MODES)}")
        return MODES[str(mode).lower()]

    def data(self) -> Path:
        """Return the file of the data; folder and name win over file_path, as they do there."""
        folder, name = (
            self.get(f"experimental_data.{key}") for key in ("data_folder_path", "data_file_name")
        )
        if folder is not None and name is not None:
            return Path(str(folder), str(name))
        file = self.get("experimental_data.file_path")
        if file is None:
            raise OptionError("experimental_data.file_path is missing: say where the data are")
        return Path(str(file))

    def ranges(self) -> list[tuple[float, float]]:
        """Return the ranges of angles that are selected, none where all are."""
        if not self.get("phi_filtering.enabled"):
            return []
        found = []
        for n, held in enumerate(self.listed("phi_filtering.target_ranges", list)):
            if not isinstance(held, Mapping):
                raise OptionError(f"phi_filtering.target_ranges[{n}] has no min_angle, max_angle")
            path = f"phi_filtering.target_ranges[{n}]"
            low = _number(f"{path}.min_angle", held.get("min_angle", -180))
            found.append((low, _number(f"{path}.max_angle", held.get("max_angle", 180))))
        return found


def _number(path: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise OptionError(f"{path} = {value!r} is not a finite number")
    return number


def _frames(theirs: _Theirs, source: Path) -> tuple[tuple[int, int], float, list[str]]:
    """Return frames counted from 0, seconds to add to all times, and what to say."""
    first, last = (
        _whole(theirs, f"analyzer_parameters.{key}", default)
        for key, default in (("start_frame", 1), ("end_frame", -1))
    )
    first = max(first, 1)
    if 0 <= last <= first + 2:
        raise OptionError(f"analyzer_parameters.end_frame = {last} leaves no frames to fit")
    if source.suffix == ".npz":
        return (
            (1, TO_THE_LAST),
            0.0,
            [
                "frames: all of the .npz, as homodyne takes it, without the first, which it leaves out"
            ],
        )
    stop = TO_THE_LAST if last < 0 else last
    remarks = [
        f"frames {first} to {'the last' if last < 0 else last} inclusive, counted from 1, without "
        f"the first, which homodyne leaves out of a fit: ours are counted from 0, end excluded"
    ]
    if first == 1:
        return (1, stop), 0.0, remarks
    offset = -(first - 1) * theirs.number("analyzer_parameters.dt")
    remarks.append(
        f"times: homodyne counts them from frame {first}, the store from frame 1, and rates depend "
        f"on it: hence --time-offset {offset:.12g} below"
    )
    return (first, stop), offset, remarks


def _whole(theirs: _Theirs, path: str, default: int) -> int:
    value = theirs.get(path)
    number = _number(path, default if value is None else value)
    if number != int(number):
        raise OptionError(f"{path} = {value!r} is not a whole number")
    return int(number)


def _scaling(theirs: _Theirs) -> tuple[str, str]:
    path = "optimization.nlsq.anti_degeneracy.per_angle_mode"
    mode = theirs.get(path)
    mode = "auto" if mode is None else mode
    if mode not in SCALINGS:
        raise OptionError(f"{path} {mode!r} is unknown; {nearest(str(mode), SCALINGS)}")
    return SCALINGS[mode]


def _parameters(
    theirs: _Theirs, names: tuple[str, ...]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return our initial, fixed and bounds, and what to say."""
    start, remarks = _start(theirs, names)
    given = theirs.listed("initial_parameters.fixed_parameters", dict)
    fixed = _by_name("initial_parameters.fixed_parameters", given, names)
    active = [
        _name("initial_parameters.active_parameters", name, names)
        for name in theirs.listed("initial_parameters.active_parameters", list)
    ]
    for name in names if active else ():
        if name in active or name in fixed:
            continue
        if name not in start:
            raise OptionError(
                f"initial_parameters.active_parameters leaves {name} out and nothing says its "
                f"value: add it to fixed_parameters"
            )
        fixed[name] = start[name]
    bounds = _bounds(theirs, names)
    if fixed:
        remarks.append(
            f"{', '.join(fixed)} held at the value given, as xpcsjax does; homodyne 2.23 varies them "
            f"in its least squares all the same"
        )
    scaling = {name for name in SCALING if name in (*given, *active)}
    if scaling:
        remarks.append(f"{' and '.join(sorted(scaling))} cannot be held: eliminated per angle")
    initial = {name: value for name, value in start.items() if name not in fixed}
    found = {"initial": initial, "fixed": fixed, "bounds": bounds}
    return {key: value for key, value in found.items() if value}, remarks


def _start(theirs: _Theirs, names: tuple[str, ...]) -> tuple[dict[str, float], list[str]]:
    path = "initial_parameters.values"
    values = theirs.get(path)
    if values is None:
        return {}, [
            "first values are searched in the data; homodyne begins in the middle of the bounds"
        ]
    listed = theirs.listed("initial_parameters.parameter_names", list)
    if not isinstance(values, list) or len(values) != len(listed):
        raise OptionError(
            f"{path} must have one value for each of the {len(listed)} parameter_names: {values!r}"
        )
    return _by_name(path, dict(zip(listed, values, strict=True)), names), []


def _bounds(theirs: _Theirs, names: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    path, found = "parameter_space.bounds", {}
    for n, held in enumerate(theirs.listed(path, list)):
        if not isinstance(held, Mapping) or not {"name", "min", "max"} <= set(held):
            raise OptionError(f"{path}[{n}] needs name, min and max: {held!r}")
        name = _name(f"{path}[{n}].name", held["name"], (*names, *_FLOW_ONLY))
        if name in names:
            ends = (_number(f"{path} of {name}, {key}", held[key]) for key in ("min", "max"))
            found[name] = tuple(ends)
    return found


_FLOW_ONLY = LAMINAR_FLOW.names[3:]
"""Their static files may keep the bounds of the flow."""


def _by_name(path: str, given: Mapping[Any, Any], names: tuple[str, ...]) -> dict[str, float]:
    """Return numbers by our names; contrast and offset are no parameters here."""
    found = {}
    for key, value in given.items():
        name = _name(path, key, names)
        if name not in SCALING:
            found[name] = _number(f"{path} of {key}", value)
    return found


def _name(path: str, given: Any, names: tuple[str, ...]) -> str:
    name = ALIASES.get(given, given)
    if name not in (*names, *SCALING):
        raise OptionError(f"{path}: unknown parameter {given!r}; {nearest(str(given), names)}")
    return name


def _ingest(source: Path, gap: str | None, offset: float) -> str:
    words = ["homodyne-dask ingest", str(source), f"--sigma {SIGMA}"]
    words += [f'--gap "{gap}"'] if gap else []
    words += [f"--time-offset {offset:.12g}"] if offset else []
    return " ".join(words)


def _relative(path: Path, folder: Path) -> str:
    return str(path) if path.is_absolute() else os.path.relpath(path, folder)


def _paragraph(title: str, lines: Any) -> Iterator[str]:
    lines = list(lines)
    if lines:
        yield f"\n{title}"
    for line in lines:
        yield textwrap.fill(line, 100, initial_indent="  ", subsequent_indent="    ")


def _unknown_lines(unknown: Mapping[str, str]) -> Iterator[str]:
    return (f"{key}: {meant}" for key, meant in unknown.items())


def _ignored_lines(ignored: Mapping[str, str]) -> Iterator[str]:
    """Yield one line for each reason, with the keys by section."""
    by_reason: dict[str, dict[str, list[str]]] = {}
    for key, why in ignored.items():
        section, _, name = key.rpartition(".")
        by_reason.setdefault(why, {}).setdefault(section, []).append(name)
    for why, sections in by_reason.items():
        places = (f"{name or 'top'}: {', '.join(keys)}" for name, keys in sections.items())
        yield f"{why} - {'; '.join(places)}"
