"""The scatter of a pair in one matrix, from its neighbours along the lag diagonal."""

import numpy as np
from jaxtyping import Float, Float32

from homodyne_dask.store.arrays import is_uneven

MIN_FLOAT32 = float(np.finfo(np.float32).tiny)
"""Anything smaller counts as 0."""
BAND_ROWS = 64
"""Rows processed together where whole rows are needed: small enough for the cache."""
SAMPLES = 200_000
MIN_DIFFERENCES = 10
"""Fewest differences from which the scatter is estimated."""
NEIGHBOURS = 3
"""On each side along a lag diagonal, for frames that are not even in time."""
MIN_LEFT = 0.05
"""Share of the variance of a pair that a curve through it must leave."""


def measure_scatter(
    c2: Float32[np.ndarray, "t t"], time: Float[np.ndarray, " t"] | None = None
) -> float | None:
    """Return σ of one pair from its neighbours along the lag diagonal, None if too few.

    1.4826 · MAD of second differences / √6: neighbours along a lag diagonal share no frame beyond lag 2, and
    what decays slowly cancels. Where most differences are 0, with very few photons, the MAD is 0 and the root
    mean square is taken.
    time: of the frames; where they are uneven, lags along a diagonal are, too, and differences are those from
    a smooth curve through seven pairs.
    """
    if time is not None and is_uneven(time):
        apart = _from_smooth(c2, time, SAMPLES // 10)
        scale = 1.0
    else:
        apart, scale = second_differences(c2), np.sqrt(6)
    if len(apart) < MIN_DIFFERENCES:
        return None
    spread = 1.4826 * np.median(np.abs(apart - np.median(apart)))
    return float((spread or np.sqrt(np.mean(np.square(apart)))) / scale)


def _from_smooth(
    c2: Float32[np.ndarray, "t t"], time: Float[np.ndarray, " t"], samples: int
) -> Float[np.ndarray, " n"]:
    """Return how far pairs lie from a curve through their neighbours along the diagonal, in units of its σ.

    The curve is quadratic in the position along the diagonal and in the logarithm of the lag.
    """
    along = np.arange(-NEIGHBOURS, NEIGHBOURS + 1)
    i, j = np.triu_indices(len(c2), 1)
    inside = np.flatnonzero((i >= NEIGHBOURS) & (j < len(c2) - NEIGHBOURS))
    inside = inside[:: max(1, len(inside) // samples)]
    i, j = i[inside, None] + along, j[inside, None] + along
    values = c2[i, j].astype(np.float64)
    known = np.isfinite(values).all(axis=1)
    values, lag = values[known], np.log(time[j[known]] - time[i[known]])
    lag -= lag[:, [NEIGHBOURS]]
    step = np.broadcast_to(along / NEIGHBOURS, lag.shape)
    terms = np.stack([np.ones_like(lag), step, step**2, lag, lag**2], axis=-1)
    terms /= np.maximum(np.abs(terms).max(axis=1, keepdims=True), MIN_FLOAT32)
    basis, size, _ = np.linalg.svd(terms, full_matrices=False)
    basis *= (size > 1e-6 * size[:, :1])[:, None, :]
    own = basis[:, NEIGHBOURS]
    left = 1 - np.square(own).sum(axis=-1)
    free = left > MIN_LEFT
    apart = values[:, NEIGHBOURS] - np.einsum("nk,njk,nj->n", own, basis, values)
    return apart[free] / np.sqrt(left[free])


def second_differences(c2: Float32[np.ndarray, "t t"]) -> Float[np.ndarray, " n"]:
    """Return those along lag diagonals, about SAMPLES of them: rows are taken at even distance."""
    step = max(1, len(c2) ** 2 // (2 * SAMPLES))
    first, middle, last = c2[:-2:step, :-2], c2[1:-1:step, 1:-1], c2[2::step, 2:]
    apart = first.astype(np.float64) - 2.0 * middle + last
    return apart[~np.isnan(apart)]
