"""Bins that hold the data of another bin: raw and processed, a copy, a matrix and its transpose."""

from collections.abc import Sequence

import numpy as np

from homodyne_dask.store.same_noise import are_opposite, have_one_noise, measured_twice
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
        curves = [curve.tobytes() for curve in source.g2]
        first = [curves.index(curve) for curve in curves]
        return {n: (m, 0) for n, m in enumerate(first) if m != n}
    signs = {
        n: np.frombuffer(bytes.fromhex(record["signs"]), np.int8).reshape(source.n_frames, -1)
        for n, record in enumerate(records)
        if record["signs"]
    }
    if not signs:
        return {}
    numbers, bins = [*signs], len(records) // max(len(source.scans), 1)
    starts = range(0, len(records), bins)
    scans = [{(float(k), 0.0): signs[n + k] for k in range(bins) if n + k in signs} for n in starts]
    shifted = {
        m * bins + k: (n * bins + k, shift)
        for m, n, shift in measured_twice(scans)
        for k in range(bins)
        if shift and {n * bins + k, m * bins + k} <= signs.keys()
    }
    step = max((source.n_frames - 1) * signs[numbers[0]].shape[1] // PAIRS, 1)
    flat = np.array([each[:-1:step].ravel() for each in signs.values()])
    neighbours = np.array([each[1::step].ravel() for each in signs.values()])
    places = [*zip(source.q.tolist(), source.phi.tolist(), strict=True)]
    equal = dict[int, tuple[int, int]]()
    for start in range(0, len(numbers), BINS):
        alike = have_one_noise(flat[start : start + BINS], flat[start:], neighbours[start:])
        for n, m in np.array(numbers)[start + np.argwhere(np.triu(alike, 1))].tolist():
            if not are_opposite(places[n], places[m]):
                equal.setdefault(m, (n, 0))
    return shifted | equal
