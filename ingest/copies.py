"""Bins that hold the data of another bin: raw and processed, a copy, a matrix and its transpose."""

from collections.abc import Sequence

import numpy as np

from homodyne_dask.store.same_noise import (
    BINS_COMPARED,
    are_opposite,
    have_one_noise,
    measured_twice,
)
from ingest.noise import Record
from ingest.readers.source import Source

PAIRS = 256
"""Pairs of frames at which signs of all bins are compared."""
BINS = 500
"""Bins that are compared with all others at once: with 100,000, each of the arrays takes 200 MB."""


def copies(source: Source, records: Sequence[Record]) -> dict[int, tuple[int, int]]:
    """Return the bins whose data are those of another one, with the first such bin of each.

    And the frame of that bin at which it begins. Bins 180° apart at one q see one speckle, and count as one
    cluster in a fit: they are no copies.
    """
    if source.g2 is not None:
        first_with: dict[bytes, int] = {}
        at = [first_with.setdefault(of.tobytes(), n) for n, of in enumerate(source.g2)]
        return {n: (one, 0) for n, one in enumerate(at) if one != n}
    signs = {n: _signs(record, source) for n, record in enumerate(records) if record["signs"]}
    if len(signs) < 2:
        return {}
    held, frames = [*signs], source.n_frames
    lags = signs[held[0]].shape[1]
    rows = np.linspace(0, frames - 2, min(frames - 1, PAIRS // lags)).astype(int)
    here, beside = (np.array([of[rows + by].ravel() for of in signs.values()]) for by in (0, 1))
    found: dict[int, tuple[int, int]] = {}
    for start in range(0, len(held), BINS):
        alike = np.triu(have_one_noise(here[start : start + BINS], here[start:], beside[start:]), 1)
        for first, other in np.array(held)[start + np.argwhere(alike)].tolist():
            one, two = ((float(source.q[n]), float(source.phi[n])) for n in (first, other))
            if first not in found and not are_opposite(one, two):
                found.setdefault(other, (first, 0))
    bins = len(records) // max(len(source.scans), 1)
    scans = [
        {(float(k), 0.0): signs[n + k] for k in range(min(bins, BINS_COMPARED)) if n + k in signs}
        for n in range(0, len(records), bins)
    ]
    windows = {
        m * bins + k: (n * bins + k, shift)
        for m, n, shift in measured_twice(scans)
        for k in range(bins)
        if shift and n * bins + k in signs and m * bins + k in signs
    }
    return windows | found


def _signs(record: Record, source: Source) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(record["signs"]), np.int8).reshape(source.n_frames, -1)
