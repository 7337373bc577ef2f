"""Selection of bins and frames by q, φ, label, frame number and time."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.errors import SelectionError
from homodyne_dask.store.rings import format_rings, nearest_ring, rings_of

if TYPE_CHECKING:
    from homodyne_dask.store.scan import Scan


def select_bins(
    scan: "Scan", q: float | Sequence[float] | None, phi: Any, label: int | Sequence[int] | None
) -> Bool[np.ndarray, " bin"]:
    """Return which of the scan's bins are selected (see `Scan.select`); SelectionError if none is."""
    keep = np.ones(len(scan.bins), bool)
    if q is not None:
        keep &= np.logical_or.reduce([_ring(scan, value) for value in np.atleast_1d(q)])
    if phi is not None:
        keep &= _angles(scan, phi)
    if label is not None:
        keep &= _labelled(scan, np.atleast_1d(label))
    if not keep.any():
        raise SelectionError(
            f"no bin has q = {q}, phi = {phi}, label = {label} together; {_available(scan)}"
        )
    return keep


def select_frames(
    scan: "Scan", frames: tuple[int, int] | None, time: tuple[float, float] | None
) -> tuple[int, int]:
    """Return the first frame and the one after the last; SelectionError if fewer than three remain."""
    first, stop = scan.frames
    if frames is not None:
        first, stop = max(first, int(frames[0])), min(stop, int(frames[1]))
    if time is not None:
        inside = np.flatnonzero((scan.time >= time[0]) & (scan.time <= time[1]))
        if len(inside):
            first, stop = max(first, int(inside[0])), min(stop, int(inside[-1]) + 1)
        else:
            first = stop
    if stop - first < 3:
        raise SelectionError(
            f"frames = {frames}, time = {time} s leave fewer than 3 frames; there are "
            f"{scan.n_frames} from {scan.time[0]:g} to {scan.time[-1]:g} s"
        )
    return first, stop


def _ring(scan: "Scan", q: float) -> Bool[np.ndarray, " bin"]:
    keep = np.zeros(len(scan.bins), bool)
    keep[nearest_ring(scan.q, q)] = True
    return keep


def _angles(scan: "Scan", phi: Any) -> Bool[np.ndarray, " bin"]:
    ranges = [phi] if isinstance(phi, tuple) and len(phi) == 2 else phi
    if np.ndim(ranges) == 2:
        return np.logical_or.reduce([_between(scan.phi, *pair) for pair in ranges])
    away = np.abs((scan.phi[:, None] - np.atleast_1d(phi) + 180) % 360 - 180)
    return (away <= 1).any(axis=1)


def _labelled(scan: "Scan", labels: np.ndarray) -> Bool[np.ndarray, " bin"]:
    missing = sorted(set(labels.tolist()) - set(scan.label.tolist()))
    if missing:
        raise SelectionError(f"no bin is labelled {missing[0]}; {_available(scan)}")
    return np.isin(scan.label, labels)


def _available(scan: "Scan") -> str:
    rings, unknown = rings_of(scan.q), int(np.isnan(scan.q).sum())
    labels = [int(label) for label in scan.label]
    some = ", ".join(map(str, labels[:8])) + (", ..." if len(labels) > 8 else "")
    return (
        f"there are {len(scan.bins)} bins: q = "
        + (format_rings(rings) if len(rings) else "unknown")
        + (f" and unknown for {unknown}" if unknown and len(rings) else "")
        + f", phi from {scan.phi.min():g} to {scan.phi.max():g}°, labels {some}"
    )


def _between(phi: Float[np.ndarray, " bin"], low: float, high: float) -> Bool[np.ndarray, " bin"]:
    """Return which angles [degree] lie between low and high, counted upwards from low."""
    return ((phi - low) % 360 <= (high - low) % 360) | (high - low >= 360)
