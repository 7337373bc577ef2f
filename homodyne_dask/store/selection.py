"""Selection of bins and frames by q, φ, label, frame number and time."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from homodyne_dask.errors import SelectionError, nearest, shown
from homodyne_dask.read_only import read_only
from homodyne_dask.store.rings_and_clusters import (
    format_rings,
    nearest_angles,
    nearest_ring,
    rings_of,
)
from homodyne_dask.store.schema import Attributes
from homodyne_dask.text import counted

ROUNDING_OF_TIMES = 1e-6
"""Of the spacing of frames: a frame so little before the start of a selection belongs to it."""
FrameRange = tuple[int | None, int | None] | slice
"""(first, after the last), counted from 0; None is the first frame, and the end."""
TimeRange = tuple[float | None, float | None] | slice
"""(from, to) in s; None is the first frame, and the end."""
FrameRanges = tuple[tuple[int, int], ...]
"""Ranges (first, after the last) in ascending order that do not touch."""
TABLES = ("table", "residuals")
"""Sources of σ that tables of g2 have."""
TABLE_HAS_NO_FRAMES = (
    "frames and times select those of two-time data, but a table of g2 has only delays: leave them out, or "
    "remove the lines of the other delays from the table"
)
EXCLUSIONS = ("frames", "phi", "label", "time")


def datum_of(sigma_source: str) -> str:
    return "points" if sigma_source in TABLES else "pairs"


def _of_selected(name: str) -> cached_property[np.ndarray]:
    return cached_property(lambda scan: read_only(scan.all_bins[name][list(scan.bins)]))


@dataclass(frozen=True, kw_only=True)
class BinsAndFrames:
    """The parts of a scan by which bins and frames are selected."""

    attributes: Attributes
    time: Float[np.ndarray, " t"]
    """Seconds since the first stored frame; selecting frames does not move the origin."""
    bins: tuple[int, ...]
    """Positions of the selected bins in the store."""
    frames: tuple[int, int]
    all_bins: dict[str, np.ndarray]
    """Every per-bin array of the store, all bins."""

    q = _of_selected("q")
    """Wavevector transfer of the selected bins in 1/Å; NaN if unknown."""
    q_or_one = cached_property(lambda scan: read_only(np.where(np.isfinite(scan.q), scan.q, 1.0)))
    """The same, but 1 where it is unknown: parameters are then q²·D instead of D."""
    phi = _of_selected("phi")
    """Azimuth of the selected bins in degrees."""
    label = _of_selected("label")
    """The beamline's number of each selected bin."""
    n_pixels = _of_selected("n_pixels")
    """Pixels of each selected bin; 0 where unknown."""
    sigma_row = _of_selected("sigma_row")
    """(bin, t): sigma(t1, t2) = sigma_row(t1)·sigma_row(t2)."""

    scan_number = cached_property(
        lambda scan: read_only(np.array(scan.bins) // scan._bins_per_scan + 1)
    )
    """Number (from 1) of the scan of each selected bin in a store of repeats; otherwise 1."""

    @property
    def has_repeats(self) -> bool:
        """Whether the store has several scans that repeat one measurement."""
        return self.attributes.scans is not None

    @property
    def is_table(self) -> bool:
        """Whether it is a table of g2(delay): c2 of the first frame with one at each delay."""
        return self.attributes.sigma_source in TABLES

    @property
    def datum(self) -> str:
        return datum_of(self.attributes.sigma_source)

    @property
    def _bins_per_scan(self) -> int:
        return len(self.all_bins["q"]) // len(self.scan_names)

    @property
    def scan_names(self) -> list[str]:
        """Names of the scans in a store of repeats; for a store of one scan, the name of its file."""
        return self.attributes.scans or [self.attributes.source_file]


def select_bins(
    scan: BinsAndFrames,
    q: float | Sequence[float] | None = None,
    phi: Any = None,
    label: int | Sequence[int] | None = None,
    scans: int | str | Sequence[int | str] | None = None,
) -> tuple[int, ...]:
    """Return the positions in the store of the selected bins, in the order of labels if these are given."""
    keep = np.ones(len(scan.bins), bool)
    if q is not None:
        targets = _numbers("q", q, "a number in 1/Å, or a list of them")
        near = np.concatenate([nearest_ring(scan.q, target) for target in targets])
        keep &= np.isin(np.arange(len(keep)), near)
    if phi is not None:
        keep &= _angles(scan, phi)
    if scans is not None:
        keep &= np.isin(scan.scan_number, _scan_numbers(scan, scans))
    if label is None:
        chosen = np.flatnonzero(keep)
    else:
        labels = _numbers("label", label, "a whole number, or a list of them", whole=True)
        chosen = _labelled(scan, labels.astype(int), keep)
    if not len(chosen):
        raise SelectionError(
            f"no bin has {_given(q=q, phi=phi, label=label, scan=scans)}; {_available(scan)}"
        )
    return tuple(scan.bins[b] for b in chosen)


def select_frames(
    scan: BinsAndFrames, frames: FrameRange | None, time: TimeRange | None
) -> tuple[int, int]:
    if scan.is_table:
        raise SelectionError(TABLE_HAS_NO_FRAMES)
    first, stop = _interval(scan, frames, time)
    if stop - first < 3:
        raise SelectionError(
            f"{_given(frames=frames, time=time)} leaves fewer than 3 frames; {_available_frames(scan)}"
        )
    return first, stop


def excluded_from(scan: BinsAndFrames, exclude: Any) -> tuple[set[int], FrameRanges]:
    """Return the positions of the bins that are excluded, and the ranges of frames (see `Scan.select`)."""
    if not isinstance(exclude, Mapping):
        raise SelectionError(
            f"exclude = {shown(exclude)} cannot be used: give a dictionary, such as {{'frames': (51, 61)}}"
        )
    bins, ranges = set[int](), list[tuple[int, int]]()
    for key, value in exclude.items():
        if key not in EXCLUSIONS:
            raise SelectionError(f"exclude: {shown(key)} is unknown; {nearest(key, EXCLUSIONS)}")
        if value is None:
            continue
        if key in ("phi", "label"):
            bins.update(select_bins(scan, **{key: value}))
        else:
            ranges += _excluded_ranges(scan, key, value)
    return bins, tuple(ranges)


def _excluded_ranges(scan: BinsAndFrames, key: str, value: Any) -> Iterator[tuple[int, int]]:
    if scan.is_table:
        raise SelectionError(TABLE_HAS_NO_FRAMES)
    for interval in _frames_and_ranges(scan, value) if key == "frames" else _time_ranges(value):
        first, stop = _interval(scan, **{key: interval})
        if stop <= first:
            raise SelectionError(
                f"exclude: {_given(**{key: interval})} contains no frame; {_available_frames(scan)}"
            )
        yield first, stop


def _time_ranges(value: Any) -> list[Any]:
    several = isinstance(value, list | tuple) and all(
        isinstance(interval, list | tuple | slice) for interval in value
    )
    return list(value) if several else [value]


def _frames_and_ranges(scan: BinsAndFrames, frames: Any) -> list[Any]:
    """Return the ranges that are a frame, a range (first, after the last), several of both, or a mask."""
    if isinstance(frames, np.ndarray):
        frames = _frames_in_array(scan, frames)
    is_range = _is_range_of_frames(frames)
    if is_range and isinstance(frames, list) and None not in frames:
        a, b = frames
        raise SelectionError(
            f"exclude: frames = [{a}, {b}] may be a range or two frames: write ({a}, {b}) for the "
            f"range, {{{a}, {b}}} for the frames"
        )
    several = isinstance(frames, list | tuple | set | frozenset | range) and not is_range
    intervals: list[Any] = list(frames) if several else [frames]
    if not all(_is_number(item) or isinstance(item, list | tuple | slice) for item in intervals):
        raise SelectionError(
            f"exclude: frames = {shown(frames)} cannot be used: give whole numbers, ranges (first, after "
            "the last), or a list of both"
        )
    return [(item, item + 1) if _is_number(item) else item for item in intervals]


def _is_range_of_frames(frames: Any) -> bool:
    pair = isinstance(frames, list | tuple) and len(frames) == 2
    return pair and all(end is None or _is_number(end) for end in frames)


def _frames_in_array(scan: BinsAndFrames, frames: np.ndarray) -> set[Any] | list[Any]:
    if frames.dtype == bool and frames.shape != scan.time.shape:
        raise SelectionError(
            f"exclude: the mask of frames has shape {frames.shape}, not {scan.time.shape}"
        )
    return {*np.flatnonzero(frames)} if frames.dtype == bool else frames.tolist()


def merged(ranges: Iterable[tuple[int, int]], frames: tuple[int, int]) -> FrameRanges:
    """Return ranges in ascending order, those that touch as one, as far as they lie in `frames`."""
    joined: list[tuple[int, int]] = []
    for first, stop in sorted(ranges):
        first, stop = max(first, frames[0]), min(stop, frames[1])
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(stop, joined[-1][1])
        elif first < stop:
            joined.append((first, stop))
    return tuple(joined)


def _available_frames(scan: BinsAndFrames) -> str:
    first, stop = scan.frames
    return f"the frames are {first} to {stop - 1}, at {scan.time[first]:g} to {scan.time[stop - 1]:g} s"


def _interval(
    scan: BinsAndFrames, frames: FrameRange | None = None, time: TimeRange | None = None
) -> tuple[int, int]:
    first, stop = scan.frames
    if frames is not None:
        low, high = _range("frames", frames, 0)
        if not low.is_integer() or not (high.is_integer() or high == math.inf):
            raise SelectionError(f"frames = {low:g}:{high:g} are not whole numbers")
        _check_not_negative("frames", low, high)
        # the end may be infinite, which is no whole number
        first, stop = max(first, int(low)), int(min(stop, high))
    if time is not None:
        low, high = _range("time", time, scan.time[0])
        if scan.time[0] >= 0:  # times may be negative by --time-offset
            _check_not_negative("time", low, high)
        rounding = ROUNDING_OF_TIMES * float(np.median(np.diff(scan.time)))
        inside = np.searchsorted(scan.time, np.array([low, high]) - rounding)
        first, stop = max(first, int(inside[0])), min(stop, int(inside[1]))
    return first, stop


def _given(**criteria: Any) -> str:
    named = (f"{name} = {shown(value)}" for name, value in criteria.items() if value is not None)
    return " and ".join(named)


def _numbers(criterion: str, value: Any, form: str, whole: bool = False) -> np.ndarray:
    several = isinstance(value, Sequence | np.ndarray) and not isinstance(value, str | bytes)
    items: list[Any] = np.ravel(value).tolist() if several else [value]
    numbers = [item for item in items if _is_number(item) and not (whole and item != int(item))]
    if not items or len(numbers) < len(items):
        raise SelectionError(f"{criterion} = {shown(value)} cannot be selected: give {form}")
    return np.array(numbers)


def _range(criterion: str, value: Any, first: float | None = None) -> tuple[float, float]:
    """Return (low, high) of a range; first: in place of a missing start, by default both are needed."""
    if isinstance(value, slice) and value.step is None and first is not None:
        value = value.start, value.stop
    pair: list[Any] = [math.nan, math.nan]
    if isinstance(value, Sequence | np.ndarray) and len(value) == 2:
        pair = list(value)
    if first is not None:
        pair = [first if pair[0] is None else pair[0], math.inf if pair[1] is None else pair[1]]
    if not all(map(_is_number, pair)):
        raise SelectionError(
            f"{criterion} = {shown(value)} is not a range: give two numbers, (low, high)"
        )
    low, high = map(float, pair)
    if criterion != "phi" and not low < high:
        raise SelectionError(
            f"{criterion} = {low:g}:{high:g} is empty: the first number is the start, the second the end"
        )
    return low, high


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and not math.isnan(value)


def _are_two_numbers(values: Sequence[Any] | np.ndarray) -> bool:
    return len(values) == 2 and all(map(_is_number, values))


def _check_not_negative(criterion: str, low: float, high: float) -> None:
    if low < 0:
        raise SelectionError(
            f"{criterion} = {low:g}:{high:g} begins below 0, but the first frame of "
            f"the store is at 0: give 0:{high:g} for everything up to {high:g}"
        )


def _angles(scan: BinsAndFrames, phi: Any) -> Bool[np.ndarray, " bin"]:
    if _is_number(phi):
        return nearest_angles(scan.q, scan.phi, float(phi))
    if isinstance(phi, tuple) and _are_two_numbers(phi):
        low, high = _turn(phi)  # counted upwards from low
        return ((scan.phi - low) % 360 <= (high - low) % 360) | (high - low >= 360)
    if not isinstance(phi, Sequence | np.ndarray) or isinstance(phi, str) or not len(phi):
        raise SelectionError(
            f"phi = {shown(phi)} is neither an angle in degrees, nor a range (low, high), nor a list of these"
        )
    if _are_two_numbers(phi):
        a, b = phi
        raise SelectionError(
            f"phi = [{a:g}, {b:g}] may be a range or two angles: write ({a:g}, {b:g}) for the range, "
            f"[({a - 1:g}, {a + 1:g}), ({b - 1:g}, {b + 1:g})] for the angles"
        )
    # an item that is no angle is a range, also as a list: nothing else is meant within a list
    angles = [item if _is_number(item) else _range("phi", item) for item in phi]
    return np.logical_or.reduce([_angles(scan, angle) for angle in angles])


def _turn(pair: tuple[float, float]) -> tuple[float, float]:
    low, high = pair
    if not (math.isfinite(low) and math.isfinite(high)) or high - low > 360:
        raise SelectionError(
            f"phi = {low:g}:{high:g} spans more than a full turn: leave out phi to select all angles"
        )
    if low > high and (high - low) % 360 > 180:
        raise SelectionError(
            f"phi = {low:g}:{high:g} is a decreasing range, which around ±180° would be more than half a "
            f"turn: give {high:g}:{low:g}, or, for all angles outside it, {low:g}:180 and -180:{high:g}"
        )
    return low, high


def _scan_numbers(scan: BinsAndFrames, value: Any) -> list[int]:
    items: Any = [value] if isinstance(value, str | Real) else value
    if not isinstance(items, Sequence | np.ndarray) or not len(items):
        raise SelectionError(
            f"scan = {shown(value)} cannot be selected: give a number, a name, or a list"
        )
    names, present = scan.scan_names, sorted(set(scan.scan_number.tolist()))
    numbers = {names[n - 1]: n for n in present} | {str(n): n for n in present}
    if unknown := [item for item in items if str(item) not in numbers]:
        choices = [f"{n} ({names[n - 1]})" for n in present[:4]] + ["..."] * (len(present) > 4)
        raise SelectionError(
            f"there is no scan {shown(unknown[0])}; choose from {', '.join(choices)}"
        )
    return [numbers[str(item)] for item in items]


def _labelled(
    scan: BinsAndFrames, labels: np.ndarray, keep: Bool[np.ndarray, " bin"]
) -> Int[np.ndarray, " selected"]:
    missing = sorted(set(labels.tolist()) - set(scan.label.tolist()))
    if missing:
        raise SelectionError(f"no bin is labelled {missing[0]}; {_available(scan)}")
    if len(set(labels.tolist())) < len(labels):
        raise SelectionError(f"label = {labels.tolist()} names a bin twice: name each bin once")
    return np.concatenate([np.flatnonzero(keep & (scan.label == label)) for label in labels])


def _available(scan: BinsAndFrames) -> str:
    rings, unknown = rings_of(scan.q), int(np.isnan(scan.q).sum())
    labels = [int(label) for label in scan.label]
    listed = ", ".join(map(str, labels[:8])) + (", ..." if len(labels) > 8 else "")
    return (
        f"there {'is' if len(scan.bins) == 1 else 'are'} {counted(len(scan.bins), 'bin')}: q = "
        + (format_rings(rings) if len(rings) else "unknown")
        + (f" and unknown for {unknown}" if unknown and len(rings) else "")
        + f", φ from {scan.phi.min():g} to {scan.phi.max():g}°, labels {listed}"
    )
