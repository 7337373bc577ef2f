"""Pictures of a measurement that some layouts hold: its intensity in each frame, its mean over the frames.

No fit needs them: what is absent or damaged is left out.
"""

import contextlib
from collections.abc import Sequence

import h5py
import numpy as np
from jaxtyping import Float

from homodyne_dask.errors import SourceError
from ingest.readers import hdf5
from ingest.readers.source import Pictures

MAX_SIDE = 256
"""Pixels along a side of an image that is kept."""


def pictures_in(
    file: h5py.File, flux: Sequence[str], image: Sequence[str], n_frames: int, begin: int = 0,
    stride: int = 1, avg: int = 1,
) -> Pictures:  # fmt: skip
    """Return the pictures in the first of the datasets of these names that exists.

    begin: first detector frame, counted from 0; stride, avg: as of `Source`.
    """
    intensity, mean = numbers_in(file, flux), numbers_in(file, image)
    return Pictures(
        None if intensity is None else by_frame(intensity, n_frames, begin, stride, avg),
        None if mean is None else _reduced(mean),
    )


def numbers_in(file: h5py.File, names: Sequence[str]) -> np.ndarray | None:
    """Return the first of these datasets that exists as float64; None without one, or if it is damaged."""
    for name in names:
        with contextlib.suppress(SourceError):
            held = hdf5.optional(file, name)
            if held is not None and held.size:
                return held.astype(np.float64)
    return None


def by_frame(
    held: np.ndarray, n_frames: int, begin: int, stride: int, avg: int
) -> Float[np.ndarray, " t"] | None:
    """Return the intensity of each analysed frame, None where it does not cover them.

    held: one number per analysed or per detector frame, after a row of their numbers where it has two rows.
    """
    rows = np.atleast_2d(np.squeeze(held))
    if rows.ndim != 2 or min(rows.shape) > 2:
        return None
    flux = (rows[:, -1] if rows.shape[1] == 2 < len(rows) else rows[-1]).astype(np.float64)
    if len(flux) == n_frames:
        return flux
    frames = begin + stride * np.arange(n_frames * avg)
    if frames[-1] >= len(flux):
        return None
    return flux[frames].reshape(n_frames, avg).mean(axis=1)


def _reduced(held: np.ndarray) -> Float[np.ndarray, "y x"] | None:
    """Return an image, the first of several, as means over squares of pixels that are known."""
    while held.ndim > 2:
        held = held[0]
    if held.ndim != 2 or min(held.shape) < 3:
        return None
    side = -(-max(held.shape) // MAX_SIDE)
    rows, columns = (-(-length // side) for length in held.shape)
    padded = np.full((rows * side, columns * side), np.nan)
    padded[: held.shape[0], : held.shape[1]] = held
    blocks = padded.reshape(rows, side, columns, side).transpose(0, 2, 1, 3)
    blocks = blocks.reshape(rows, columns, side**2)
    known = np.isfinite(blocks) & (blocks >= 0)
    count = known.sum(axis=-1)
    total = np.where(known, blocks, 0).sum(axis=-1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan) if count.any() else None
