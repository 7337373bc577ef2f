"""Subsets of a scan that are fitted each: rings, angles, labels, windows of age, scans of a store.

A variable of scans as the axis of their fits, from stores or a table; scans whose data count twice.
"""

import csv
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, combinations, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool

from homodyne_dask.errors import (
    OptionError,
    SelectionError,
    StoreError,
    in_line,
    require_known,
    require_type,
    shown,
)
from homodyne_dask.plugins import PackageWarning
from homodyne_dask.results.data.series import UNITS
from homodyne_dask.store.rings_and_clusters import ring_numbers, rings_of
from homodyne_dask.store.same_noise import (
    BinPlace,
    Signs,
    from_frame,
    measured_twice,
    signs_of_curves,
    signs_of_noise,
)
from homodyne_dask.store.scan import Chunk, Scan
from homodyne_dask.store.schema import tile_side
from homodyne_dask.text import joined_with_and, some_of

OVER = ("q", "phi", "angle", "label", "age", "scan")
Windows = int | Sequence[tuple[float, float]] | None
_MIN_FRAMES = 3


class Subset(NamedTuple):
    """One ring, window of age or scan of a store."""

    name: str
    """'q = 0.0054 1/Å', '0 to 30 s'."""
    folder: str
    axis_values: Mapping[str, Any]
    """In the series, the axis first: q [1/Å] and age (mean time of its frames), or age, from, to [s]."""
    scan: Scan

    def members(self, whole: Scan) -> tuple[int, ...]:
        return tuple(map(whole.bins.index, self.scan.bins))


def subsets_of(scan: Scan, over: str, windows: Windows = None) -> tuple[Subset, ...]:
    """Return the subsets; windows, of age or each ring: their number, equally long, or (from, to) in s."""
    require_known(over, OVER, f"over {shown(over)} is unknown")
    if over == "q" and windows is not None:
        return tuple(chain.from_iterable(_rings_in(window) for window in _windows(scan, windows)))
    if over != "age":
        if windows is not None:
            raise OptionError(
                f"windows = {shown(windows)} applies only to over 'age' and 'q': leave out windows"
            )
        return tuple(_SUBSETS[over](scan))
    if windows is None:
        raise OptionError(
            "over 'age' needs windows: give their number, or the start and end of each in seconds"
        )
    return tuple(_windows(scan, windows))


def _require_known(scan: Scan, symbol: str, values: np.ndarray, by: str = "") -> None:
    unknown = int(np.isnan(values).sum())
    if unknown:
        raise SelectionError(
            f"{symbol} is unknown for {unknown} of {len(scan.bins)} selected bins: select only bins with a "
            f"known {symbol}{by}"
        )


def _subset(
    scan: Scan, name: str, folder: str, axes: dict[str, float], which: Bool[np.ndarray, " bin"]
) -> Subset:
    bins = tuple(scan.bins[b] for b in np.flatnonzero(which))
    return Subset(name, folder, axes | {"age": scan.mean_age}, replace(scan, bins=bins))


def _rings(scan: Scan) -> Iterator[Subset]:
    _require_known(scan, "q", scan.q)
    numbers = ring_numbers(scan.q)
    for ring, q in enumerate(rings_of(scan.q).tolist()):
        yield _subset(scan, f"q = {q:.6g} 1/Å", f"q_{q:.6g}", {"q": q}, numbers == ring)


def _rings_in(window: Subset) -> Iterator[Subset]:
    for name, folder, axes, ring in _rings(window.scan):
        axes = {**window.axis_values, "q": axes["q"]}
        yield Subset(f"{name}, {window.name}", f"{folder}_{window.folder}", axes, ring)


def _angles(scan: Scan, axis: str = "phi") -> Iterator[Subset]:
    """Yield the bins of each ring, or of all (axis='angle'), at each angle, repeated ones together."""
    _require_known(scan, "φ", scan.phi, ", by phi or label")
    rings = ring_numbers(scan.q) if axis == "phi" else np.zeros(len(scan.bins), int)
    several = axis == "phi" and len(rings_of(scan.q)) > 1
    for ring, phi in sorted(set(zip(rings.tolist(), scan.phi.tolist(), strict=True))):
        which = (rings == ring) & (scan.phi == phi)
        name, folder, axes = f"φ = {phi:.6g}°", f"phi_{phi:.6g}", {axis: phi, "age": scan.mean_age}
        if several:
            q = float(scan.q[which][0])
            name, folder, axes = f"q = {q:.6g} 1/Å, {name}", f"q_{q:.6g}_{folder}", axes | {"q": q}
        yield _subset(scan, name, folder, axes, which)


def _labels(scan: Scan) -> Iterator[Subset]:
    for label in np.unique(scan.label).tolist():
        axes = {"label": float(label)}
        yield _subset(scan, f"label {label}", f"label_{label}", axes, scan.label == label)


def subsets_of_scans(*scans: Scan) -> Iterator[Subset]:
    """Yield each scan of a store of repeats, or of several stores by numbers from 1."""
    several = [(scan, n) for scan in scans for n in np.unique(scan.scan_number).tolist()]
    if len(several) < 2:
        raise SelectionError(
            f"{scans[0].path} has only one selected scan, but over or per 'scan' and fits together need "
            f"several: ingest the files of all scans into one store, or give several stores"
        )
    for position, (scan, number_in_store) in enumerate(several, 1):
        number = number_in_store if len(scans) == 1 else position
        name = f"scan {number}: {scan.scan_names[number_in_store - 1]}"
        which = scan.scan_number == number_in_store
        yield _subset(scan, name, f"scan_{number:03d}", {"scan": float(number)}, which)


_SUBSETS = {
    "q": _rings,
    "phi": _angles,
    "angle": partial(_angles, axis="angle"),
    "label": _labels,
    "scan": subsets_of_scans,
}


def _windows(scan: Scan, windows: Windows) -> Iterator[Subset]:
    first, stop = scan.frames
    if isinstance(windows, int | np.integer) and not isinstance(windows, bool):
        most = (stop - first) // _MIN_FRAMES
        if not 1 <= windows <= most:
            raise OptionError(
                f"{windows} windows of at least {_MIN_FRAMES} frames each do not fit into the {stop - first} "
                f"selected frames: give a number from 1 to {most}"
            )
        edges = np.linspace(first, stop, windows + 1).round().astype(int)
        chosen = [scan.select(frames=(a, b)) for a, b in pairwise(edges)]
    else:
        form = "their number, or a list of (start, end) in seconds"
        require_type("windows", windows, list | tuple | np.ndarray, form)
        times: Any = windows
        chosen = [scan.select(time=window) for window in times]
    if not chosen:
        raise OptionError("windows is an empty list: give the start and end of each in seconds")
    for number, window in enumerate(chosen, 1):
        begin, end = (float(window.time[n]) for n in (window.frames[0], window.frames[1] - 1))
        axes = {"age": window.mean_age, "from": begin, "to": end}
        yield Subset(f"{begin:.6g} to {end:.6g} s", f"window_{number:02d}", axes, window)


MOST_NAMED = 6
Values = Mapping[str, Any] | str | Path | None
_TAKEN = {
    *(UNITS.keys() - {"scan"}),
    *("fit", "param", "unit", "value", "outcome", "method", "message", "folder"),
}
_VALUE = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([^\s\d].*)?")
_UNITS = {"c": "°C", "°c": "°C", "degc": "°C", "celsius": "°C", "k": "K", "kelvin": "K"}


def axis_of(variable: str | None, over: str | None = None, windows: Windows = None) -> str:
    """Return what a series is over: a variable of scans, else age where there are windows, else over."""
    if variable is None:
        return "age" if windows is not None and over == "q" else str(over or "")
    require_type("over_scans", variable, str, "the name of a variable, such as 'temperature'")
    return variable.rpartition("/")[2]


def places_of(
    variable: str, subsets: Sequence[Subset], values: Values, apart: bool
) -> list[dict[str, Any]]:
    """Return the value of a variable, and its unit, of each subset.

    variable: a word, or the path of a number in HDF5 files that ingest kept. apart: whether the subsets are
    scans of one store. values: by names of scans, or the path of a table of them; by default those of the
    stores. A PackageWarning names values of no scan.
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
    value_by_name = _table(Path(values), axis) if isinstance(values, str | Path) else values
    places = [
        _value_of(variable, n, subset, value_by_name, apart) for n, subset in enumerate(subsets, 1)
    ]
    unused = {*(value_by_name or {})}.difference(*(_names_of(subset, apart) for subset in subsets))
    if unused:
        named = some_of(sorted(map(str, unused)), MOST_NAMED, "others")
        why = f"scan_values of {in_line(named)} are not used: no scan that is fitted is named so"
        warnings.warn(why, PackageWarning, stacklevel=2)
    _require_one_unit(variable, subsets, [unit for _, unit in places])
    return [{axis: value} | ({f"{axis}_unit": unit} if unit else {}) for value, unit in places]


def _require_one_unit(variable: str, subsets: Sequence[Subset], units: Sequence[str]) -> None:
    for subset, unit in zip(subsets, units, strict=True):
        if unit != units[0]:
            raise OptionError(
                f"{variable} of {in_line(subset.name)} is in {unit or 'no unit'}, but of "
                f"{in_line(subsets[0].name)} in {units[0] or 'no unit'}: give all in one unit"
            )


def _names_of(subset: Subset, apart: bool) -> list[str]:
    scan, stem = subset.scan, Path(subset.scan.path).name.removesuffix(".zarr")
    if not apart:
        return [subset.name, stem, stem.removesuffix("_c2"), f"{stem}.zarr"]
    number = int(scan.scan_number[0])
    name = scan.scan_names[number - 1]
    return [name, Path(name).stem, str(number)]


def _value_of(
    variable: str, number: int, subset: Subset, value_by_name: Mapping[str, Any] | None, apart: bool
) -> tuple[float, str]:
    names = _names_of(subset, apart)
    if value_by_name is not None:
        value = next((value_by_name[name] for name in names if name in value_by_name), None)
        unit = ""
    elif variable == "scan":
        value, unit = float(subset.scan.scan_number[0] if apart else number), ""
    else:
        value, unit = _stored_value(variable, subset.scan, apart)
    ways = (
        f"give it with --scan-values '{names[0]}=VALUE', or there the path of a table (CSV) "
        f"of scans and values"
    )
    if value is None:
        if "/" in variable:
            ways = f"ingest with --keep {variable}, or {ways}"
        stored = sorted(subset.scan.attributes.experiment)
        present = f" (the store has {joined_with_and(stored)})" if stored else ""
        raise OptionError(f"{variable} of {in_line(subset.name)} is unknown{present}: {ways}")
    read = _VALUE.fullmatch(str(value))
    if read is None or not np.isfinite(float(read[1])):
        raise OptionError(
            f"{variable} of {in_line(subset.name)} is {shown(value)}, not a number: {ways}"
        )
    unit = (read[2] or str(unit)).strip()
    return float(read[1]), _UNITS.get(unit.lower(), unit)


def _stored_value(variable: str, scan: Scan, apart: bool) -> tuple[Any, str]:
    stored = scan.attributes.experiment.get(variable, {})
    value, unit = stored.get("value"), stored.get("units", "")
    if isinstance(value, list):  # of each scan of the store
        return value[int(scan.scan_number[0]) - 1], unit
    # one value for all scans of a store says nothing of their order
    return None if apart else value, unit


def _rows_of_table(path: Path) -> list[list[str]]:
    try:
        # spreadsheets write a byte-order mark, which would be part of the first name
        with path.open(newline="", encoding="utf-8-sig") as file:
            return [[cell.strip() for cell in row] for row in csv.reader(file) if any(row)]
    except (OSError, UnicodeDecodeError) as e:
        raise OptionError(
            f"scan_values = {shown(str(path))} cannot be read ({in_line(str(e))}): "
            f"give the path of a CSV table"
        ) from None


def _table(path: Path, variable: str) -> dict[str, str]:
    """Return the values of a variable by scan from a table: its column ('T [K]'), or the second of two."""
    rows = _rows_of_table(path)
    head = rows[0] if rows else []
    n, unit = _column_and_unit(head).get(variable, (1, "") if len(head) == 2 else (0, ""))
    if not n:
        raise OptionError(
            f"{path} has no column {variable}: give a table with the names of the scans in the first column"
        )
    cells = {row[0]: row[n] for row in rows if len(row) > n and row[n]}
    if not _VALUE.fullmatch(head[n]):  # it is a heading: a table without one begins with a value
        cells.pop(head[0], None)
    return {name: _with_unit(cell, unit) for name, cell in cells.items()}


def _with_unit(cell: str, unit: str) -> str:
    """Return a cell with the unit of its column, unless it has one, or is no number."""
    value = _VALUE.fullmatch(cell)
    return f"{cell} {unit}" if value and not value[2] else cell


def _column_and_unit(head: Sequence[str]) -> dict[str, tuple[int, str]]:
    columns = {}
    for n, cell in enumerate(head):
        name, _, unit = cell.replace("(", "[").partition("[")
        columns[name.strip()] = n, unit.rstrip(" ])")
    return columns


BINS_READ = 4
"""Bins of each scan whose noise is read, preferably those that other scans have, too."""


def check_measured_once(scans: Sequence[Scan]) -> None:
    """Raise OptionError where two scans hold the same data, whose errors would shrink for nothing."""
    if len(scans) < 2:
        return
    # the same files, or copies, have the same checksums; those ingested anew are told by their noise
    data = [{scan.manifest.checksums[1][b].tobytes() for b in scan.bins} for scan in scans]
    for n, m in combinations(range(len(scans)), 2):
        if data[n] & data[m] and (scans[n].use & scans[m].use).any():
            _refuse(scans[m], scans[n], 0)
    places = [_places(scan) for scan in scans]
    number = Counter(chain.from_iterable(places))
    signs = [
        {
            place: _signs(scan, bins[place])
            for place in sorted(bins, key=lambda place: -number[place])[:BINS_READ]
        }
        for scan, bins in zip(scans, places, strict=True)
    ]
    for m, n, shift in measured_twice(signs):
        _refuse(scans[m], scans[n], shift)


def _refuse(scan: Scan, first: Scan, shift: int) -> None:
    raise OptionError(
        f"{scan.path} holds data of {first.path}{from_frame(shift)}, too, but a measurement counts only "
        f"once: leave out one of them"
    )


def _places(scan: Scan) -> dict[BinPlace, int]:
    """Return the position in the store of a bin at each q and φ, as they are rounded; -1 where unknown."""
    q, phi = (np.nan_to_num(values, nan=-1.0).tolist() for values in (scan.q, scan.phi % 360))
    rounded = [(float(f"{q:.4g}"), float(f"{phi:.4g}")) for q, phi in zip(q, phi, strict=True)]
    return dict(zip(rounded, scan.bins, strict=True))


def _signs(scan: Scan, b: int) -> Signs:
    """Return the signs of the noise of a bin at the frames in use; of tables, which are short, of several."""
    if scan.is_table:
        return signs_of_curves(scan.table[:BINS_READ, 1:])
    side, rows = tile_side(scan.n_frames), []
    for i in range(-(-scan.n_frames // side)):
        chunk = np.full((side, side), np.nan, np.float32)
        with suppress(StoreError):  # the fit says what is damaged
            scan.read_chunk(Chunk(1, b, i, i), chunk)
        rows.append(signs_of_noise(chunk, scan.n_frames))
    return np.concatenate(rows)[: scan.n_frames] * scan.use[:, None]
