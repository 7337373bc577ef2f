"""Parts of a scan that are fitted each: rings, angles, labels, windows of age, scans of a store."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool

from homodyne_dask.errors import OptionError, SelectionError, require_known, require_type, shown
from homodyne_dask.store.rings import ring_numbers, rings_of
from homodyne_dask.store.scan import Scan

OVER = ("q", "phi", "angle", "label", "age", "scan")
Windows = int | Sequence[tuple[float, float]] | None
_MIN_FRAMES = 3


class Part(NamedTuple):
    """One ring, window of age or scan of a store."""

    name: str
    """For people: 'q = 0.0054 1/Å', '0 to 30 s'."""
    folder: str
    """Name of the folder of its result."""
    at: Mapping[str, Any]
    """Place in the series: q [1/Å] and age, or age, from and to [s]; age: mean time of its frames. The first
    is the axis."""
    scan: Scan

    def members(self, whole: Scan) -> tuple[int, ...]:
        """Return the positions of its bins in the whole selection."""
        return tuple(map(whole.bins.index, self.scan.bins))


def parts_of(scan: Scan, over: str, windows: Windows = None) -> tuple[Part, ...]:
    """Return the rings (over='q'), angles of each ('phi') or of all ('angle'), labels, age windows or scans.

    windows, for age only: the number of windows of equal length in frames, or a list of (from, to) in
    s. Raises OptionError for options that exclude each other, SelectionError where q or φ is unknown or a
    window has fewer than 3 frames.
    """
    require_known(over, OVER, f"over {shown(over)} is unknown")
    if over != "age":
        if windows is not None:
            raise OptionError(
                f"windows = {shown(windows)} applies only to over 'age': leave out windows"
            )
        return tuple(_PARTS[over](scan))
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


def _part(
    scan: Scan, name: str, folder: str, at: dict[str, float], which: Bool[np.ndarray, " bin"]
) -> Part:
    bins = tuple(scan.bins[b] for b in np.flatnonzero(which))
    return Part(name, folder, at | {"age": scan.mean_age}, replace(scan, bins=bins))


def _rings(scan: Scan) -> Iterator[Part]:
    _require_known(scan, "q", scan.q)
    numbers = ring_numbers(scan.q)
    for ring, q in enumerate(rings_of(scan.q).tolist()):
        yield _part(scan, f"q = {q:.6g} 1/Å", f"q_{q:.6g}", {"q": q}, numbers == ring)


def _angles(scan: Scan, axis: str = "phi") -> Iterator[Part]:
    """Yield the bins of each ring, or of all (axis='angle'), at each angle, repeated ones together."""
    _require_known(scan, "φ", scan.phi, ", by phi or label")
    rings = ring_numbers(scan.q) if axis == "phi" else np.zeros(len(scan.bins), int)
    several = axis == "phi" and len(rings_of(scan.q)) > 1
    for ring, phi in sorted(set(zip(rings.tolist(), scan.phi.tolist(), strict=True))):
        which = (rings == ring) & (scan.phi == phi)
        name, folder, at = f"φ = {phi:.6g}°", f"phi_{phi:.6g}", {axis: phi, "age": scan.mean_age}
        if several:
            q = float(scan.q[which][0])
            name, folder, at = f"q = {q:.6g} 1/Å, {name}", f"q_{q:.6g}_{folder}", at | {"q": q}
        yield _part(scan, name, folder, at, which)


def _labels(scan: Scan) -> Iterator[Part]:
    for label in np.unique(scan.label).tolist():
        at = {"label": float(label)}
        yield _part(scan, f"label {label}", f"label_{label}", at, scan.label == label)


def parts_of_scans(*scans: Scan) -> Iterator[Part]:
    """Yield each scan of a store of repeats, or of several stores by numbers from 1."""
    several = [(scan, n) for scan in scans for n in np.unique(scan.scan_number).tolist()]
    if len(several) < 2:
        raise SelectionError(
            f"{scans[0].path} has only one selected scan, but over or per 'scan' and fits together need "
            f"several: ingest the files of all scans into one store, or give several stores"
        )
    for place, (scan, own) in enumerate(several, 1):
        number = own if len(scans) == 1 else place
        name, at = f"scan {number}: {scan.scan_names[own - 1]}", {"scan": float(number)}
        yield _part(scan, name, f"scan_{number:03d}", at, scan.scan_number == own)


_PARTS = {
    "q": _rings,
    "phi": _angles,
    "angle": partial(_angles, axis="angle"),
    "label": _labels,
    "scan": parts_of_scans,
}


def _windows(scan: Scan, windows: Windows) -> Iterator[Part]:
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
    for number, part in enumerate(chosen, 1):
        begin, end = (float(part.time[n]) for n in (part.frames[0], part.frames[1] - 1))
        name, at = f"{begin:.6g} to {end:.6g} s", {"age": part.mean_age, "from": begin, "to": end}
        yield Part(name, f"window_{number:02d}", at, part)
