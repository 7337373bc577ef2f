"""Frames and weights of the levels of a store: what of a selection a frame of a level stands for."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.store import schema
from homodyne_dask.store.scan import Scan


def coarse_use(scan: Scan, factor: int) -> Bool[np.ndarray, " t"]:
    """Return the frames of a level that are inside the selection, at least half of their frames in use."""
    if factor == 1:
        return scan.use
    of = _by_cell(scan, factor)
    inside = np.zeros(scan.n_frames, bool)
    inside[slice(*scan.frames)] = True
    return (of(scan.use).sum(-1) >= factor / 2) & of(inside).all(-1)


def coarse_weights(
    scan: Scan, factor: int, members: Sequence[int]
) -> Float[np.ndarray, "member t"]:
    """Return 1/sigma_row² of some bins, summed over the used frames of each frame of a level."""
    weights = 1 / scan.all_bins["sigma_row"][[scan.bins[b] for b in members]] ** 2
    return weights if factor == 1 else _by_cell(scan, factor)(weights * scan.use).sum(-1)


def _by_cell(scan: Scan, factor: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that splits the last axis into the frames of a level."""
    m = schema.level_frames(scan.n_frames, factor)
    return lambda values: values[..., : m * factor].reshape(*values.shape[:-1], m, factor)
