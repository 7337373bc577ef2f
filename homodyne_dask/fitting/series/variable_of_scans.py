"""A variable of scans, such as temperature, as the axis of their fits: values from stores or a table."""

import csv
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from homodyne_dask.errors import OptionError, in_line, require_type, shown
from homodyne_dask.fitting.series.parts import Part
from homodyne_dask.plugins import PackageWarning
from homodyne_dask.results.data.series import UNITS
from homodyne_dask.text import joined_with_and, some_of

MOST_NAMED = 6
"""Names without a scan that are listed."""
Values = Mapping[str, Any] | str | Path | None
_TAKEN = {
    *(UNITS.keys() - {"scan"}),
    *("fit", "param", "unit", "value", "outcome", "method", "message", "folder"),
}
"""Names of other columns of a series."""
_VALUE = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([^\s\d].*)?")
_UNITS = {"c": "°C", "°c": "°C", "degc": "°C", "celsius": "°C", "k": "K", "kelvin": "K"}
"""Units of temperature as they are written."""


def axis_of(variable: str) -> str:
    """Return the name of a variable in tables: the last word of a path."""
    require_type("over_scans", variable, str, "the name of a variable, such as 'temperature'")
    return variable.rpartition("/")[2]


def places_of(
    variable: str, parts: Sequence[Part], values: Values, apart: bool
) -> list[dict[str, Any]]:
    """Return the value of a variable at each of some scans by its name, and its unit where it has one.

    variable: a word, or the path of a number in HDF5 files that ingest has kept. values: by names of scans,
    or the path of a table of them; by default those of the stores; of those of no scan a PackageWarning
    tells. apart: whether the scans are those of one store. Raises OptionError where a value is missing or no
    number, or in another unit than the first.
    """
    axis = axis_of(variable)
    require_type(
        "scan_values", values, Mapping | str | Path | None, "values by scan, or a table's path"
    )
    if axis in _TAKEN or not axis.strip():
        raise OptionError(
            f"over_scans = {shown(variable)} cannot name a variable: give a word such as temperature, or a "
            f"path such as /entry/sample/humidity"
        )
    given = _table(Path(values), axis) if isinstance(values, str | Path) else values
    places = [_value_of(variable, n, part, given, apart) for n, part in enumerate(parts, 1)]
    unused = {*(given or {})}.difference(*(_names_of(part, apart) for part in parts))
    if unused:
        named = some_of(sorted(map(str, unused)), MOST_NAMED, "others")
        why = f"scan_values of {in_line(named)} are not used: no scan that is fitted is named so"
        warnings.warn(why, PackageWarning, stacklevel=2)
    for part, (_, unit) in zip(parts, places, strict=True):
        if unit != places[0][1]:
            raise OptionError(
                f"{variable} of {in_line(part.name)} is in {unit or 'no unit'}, but of "
                f"{in_line(parts[0].name)} in {places[0][1] or 'no unit'}: give all in one unit"
            )
    return [{axis: at} | ({f"{axis}_unit": unit} if unit else {}) for at, unit in places]


def _names_of(part: Part, apart: bool) -> list[str]:
    """Return the names that a scan may have among values; apart: it is one of those of a store."""
    scan, stem = part.scan, Path(part.scan.path).name.removesuffix(".zarr")
    if not apart:
        return [part.name, stem, stem.removesuffix("_c2"), f"{stem}.zarr"]
    number = int(scan.scan_number[0])
    name = scan.scan_names[number - 1]
    return [name, Path(name).stem, str(number)]


def _value_of(
    variable: str, number: int, part: Part, given: Mapping[str, Any] | None, apart: bool
) -> tuple[float, str]:
    """Return the value of a variable of a scan, and its unit; apart: of one of the scans of a store."""
    scan, of = part.scan, int(part.scan.scan_number[0]) - 1
    names, held, unit = _names_of(part, apart), None, ""
    if given is not None:
        held = next((given[name] for name in names if name in given), None)
    elif variable == "scan":
        held = float(of + 1 if apart else number)
    else:
        known = scan.attrs.get("experiment", {}).get(variable, {})
        held, unit = known.get("value"), known.get("units", "")
        each = isinstance(held, list)  # one for each scan of the store
        held = held[of] if each else None if apart else held
    ways = (
        f"give it with --scan-values '{names[0]}=VALUE', or there the path of a table (CSV) "
        f"of scans and values"
    )
    if held is None:
        if "/" in variable:
            ways = f"ingest with --keep {variable}, or {ways}"
        there = sorted(scan.attrs.get("experiment", {}))
        known_too = f" (the store has {joined_with_and(there)})" if there else ""
        raise OptionError(f"{variable} of {in_line(part.name)} is unknown{known_too}: {ways}")
    read = _VALUE.fullmatch(str(held))
    if read is None or not np.isfinite(float(read[1])):
        raise OptionError(
            f"{variable} of {in_line(part.name)} is {shown(held)}, not a number: {ways}"
        )
    unit = (read[2] or str(unit)).strip()
    return float(read[1]), _UNITS.get(unit.lower(), unit)


def _table(path: Path, variable: str) -> dict[str, str]:
    """Return the values of a variable by scan from a table: the column of its name, or the second of two.

    The name may be followed by a unit in brackets, 'temperature [K]'.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [[cell.strip() for cell in row] for row in csv.reader(file) if any(row)]
    except (OSError, UnicodeDecodeError) as e:
        raise OptionError(
            f"scan_values = {shown(str(path))} cannot be read ({in_line(str(e))}): "
            f"give the path of a CSV table"
        ) from None
    head, columns = rows[0] if rows else [], {}
    for n, cell in enumerate(head):
        name, _, unit = cell.replace("(", "[").partition("[")
        columns[name.strip()] = n, unit.rstrip(" ])")
    n, unit = columns.get(variable, (1, "") if len(head) == 2 else (0, ""))
    if not n:
        raise OptionError(
            f"{path} has no column {variable}: give a table with the names of the scans in the first column"
        )
    found = {row[0]: row[n] for row in rows if len(row) > n and row[n]}
    if not _VALUE.fullmatch(head[n]):
        found.pop(head[0], None)
    plain = {name for name, cell in found.items() if (of := _VALUE.fullmatch(cell)) and not of[2]}
    return {name: f"{cell} {unit}" if name in plain else cell for name, cell in found.items()}
