"""Reads a configuration of homodyne 2.x or xpcsjax (YAML), or of homodyne-analysis (JSON).

An error names the key and its value.
"""

import math
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from homodyne_dask.apps.migration.known_keys import unconverted_keys
from homodyne_dask.cli.yaml_file import read_yaml
from homodyne_dask.errors import OptionError, nearest

MODES = {
    "static": "static",
    "static_isotropic": "static",
    "static_anisotropic": "static",
    "laminar_flow": "laminar_flow",
    "two_component": "two_component_xpcsjax",
    "two-component": "two_component_xpcsjax",
    "heterodyne": "two_component_xpcsjax",
}
"""analysis_mode in lower case → name of the model here."""


def read_homodyne_yaml(where: Path) -> "HomodyneYaml":
    """Return the file; raises OptionError for one that is not a configuration of homodyne or xpcsjax."""
    content = read_yaml(where, "check the name")
    if isinstance(content, dict):
        content = _of_today(where, content)
    if not isinstance(content, dict) or "analysis_mode" not in content:
        converted = isinstance(content, dict) and "model" in content and "data" in content
        ours = ": it is a configuration of homodyne-dask; run `homodyne-dask fit` with it"
        raise OptionError(
            f"{where} has no analysis_mode, so it is not a configuration of homodyne or xpcsjax"
            + ours * converted
            + (_misspelled(content, "analysis_mode") if isinstance(content, dict) else "")
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
    values, names, active = (
        initial.get(key) for key in ("values", "parameter_names", "active_parameters")
    )
    if not isinstance(values, list) or not isinstance(active, list):
        return found
    of_names = isinstance(names, list) and len(names) == len(values)
    if len(values) == len(active) and not of_names:
        found["initial_parameters"] = initial | {"parameter_names": active}
    return found


class HomodyneYaml:
    """The content of a file; every method raises OptionError naming the key and the value."""

    def __init__(self, content: Mapping[str, object]) -> None:
        self.content = content

    def get(self, path: str) -> object:
        """Return the value of a key such as 'output.formats', None where there is none."""
        found: object = self.content
        for key in path.split("."):
            if found is None:
                return None
            if not isinstance(found, Mapping):
                raise OptionError(f"{path} = {found!r} is not a section with keys")
            found = found.get(key)
        return found

    def number(self, path: str) -> float:
        """Return a positive number."""
        value = self.get(path)
        if value is None:
            raise OptionError(f"{path} is missing: give a number{_misspelled(self.content, path)}")
        number = finite_number(path, value)
        if number <= 0:
            raise OptionError(f"{path} = {value!r} must be above 0")
        return number

    def collection[Of: (list[Any], dict[str, Any])](self, path: str, of: type[Of]) -> Of:
        """Return the list or dict of a key, an empty one where the key is missing."""
        found = self.get(path)
        if found is None:
            return of()
        if not isinstance(found, of):
            raise OptionError(f"{path} = {found!r} must be a {of.__name__}, or null")
        return found

    def model(self) -> str:
        """Return the name of the model here."""
        mode = self.get("analysis_mode")
        if str(mode).lower() not in MODES:
            raise OptionError(f"analysis_mode {mode!r} is unknown; {nearest(str(mode), MODES)}")
        return MODES[str(mode).lower()]

    def data(self) -> Path:
        """Return the file of the data; folder and name precede file_path, as in homodyne."""
        folder, name = (
            self.get(f"experimental_data.{key}") for key in ("data_folder_path", "data_file_name")
        )
        if folder is not None and name is not None:
            return Path(str(folder), str(name))
        file = self.get("experimental_data.file_path")
        if file is None:
            like = _misspelled(self.content, "experimental_data.file_path")
            raise OptionError(
                f"experimental_data.file_path is missing: give the file with the data{like}"
            )
        return Path(str(file))

    def ranges(self) -> list[tuple[float, float]]:
        """Return the selected ranges of angles in degrees, an empty list for all angles.

        A range that goes down there goes around ±180°, and is two here.
        """
        if not self.get("phi_filtering.enabled"):
            return []
        found = []
        for n, item in enumerate(self.collection("phi_filtering.target_ranges", list)):
            if not isinstance(item, Mapping):
                raise OptionError(f"phi_filtering.target_ranges[{n}] has no min_angle, max_angle")
            path = f"phi_filtering.target_ranges[{n}]"
            low = finite_number(f"{path}.min_angle", item.get("min_angle", -180))
            high = finite_number(f"{path}.max_angle", item.get("max_angle", 180))
            found += [(low, high)] if low <= high else [(low, 180.0), (-180.0, high)]
        return found

    def whole(self, path: str, default: int) -> int:
        """Return a whole number."""
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
    """Return the value of a key as a finite number."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise OptionError(f"{path} = {value!r} is not a finite number")
    return number
