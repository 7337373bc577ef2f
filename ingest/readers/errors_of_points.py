"""Errors of points of g2 that know nothing of the point itself: of all curves, and of repeats.

With few photons, the error of a point comes from the same few pairs of photons as the point: one that is low
by chance has a small error, and a mean weighted by it is too low. g2 = 0 ± 0 is the extreme, a delay at which
no pair of photons was seen.
"""

import numpy as np
from jaxtyping import Bool, Float

DIFFERENCE = np.array([1.0, -4.0, 6.0, -4.0, 1.0])
"""Of a point and its neighbours, 0 for a smooth curve."""
INDEPENDENT = 2.63
"""Points for one independent difference of two series: 1 + 2 Σ ρ², ρ the correlations of `DIFFERENCE`."""
SIGNIFICANT = 3.1
"""Standard deviations; p = 0.001."""
MIN_POINTS = 20
LEAST_DOF = 16
"""Of the variance of a delay, that the errors of its errors do not count in χ²."""


def follow_points(values: Float[np.ndarray, "bin n"], error: Float[np.ndarray, "bin n"]) -> bool:
    """Return whether points that are high for their neighbours have larger errors than these."""
    if values.shape[1] < len(DIFFERENCE):
        return False
    width = len(DIFFERENCE)
    around = np.lib.stride_tricks.sliding_window_view(error**2, width, axis=1)
    scale = around.mean(-1)
    with np.errstate(
        invalid="ignore", divide="ignore"
    ):  # unknown points, and those without an error
        high = np.lib.stride_tricks.sliding_window_view(values, width, axis=1) @ DIFFERENCE
        high, large = high / np.sqrt(scale), (around @ DIFFERENCE) / scale
    known = np.isfinite(high) & np.isfinite(large)
    if known.sum() < MIN_POINTS:
        return False
    first, second = (np.argsort(np.argsort(series[known])) for series in (high, large))
    independent = max(known.sum() / INDEPENDENT - 3, 1.0)
    return np.arctanh(np.corrcoef(first, second)[0, 1]) * np.sqrt(independent) > SIGNIFICANT


def of_delays(error: Float[np.ndarray, "bin n"]) -> Float[np.ndarray, "bin n"]:
    """Return errors averaged over curves at each delay, times the scale of each curve.

    Those of a single curve are averaged over neighbouring delays.
    """
    variance = error**2
    known = np.isfinite(variance)
    if len(variance) == 1:
        return np.sqrt(_smoothed(np.where(known, variance, 0.0), len(DIFFERENCE), known))
    of_delay = np.ma.array(variance, mask=~known).mean(axis=0).filled(np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.ma.masked_invalid(variance / of_delay)
    return np.sqrt(ratio.mean(axis=1).filled(np.nan)[:, None] * of_delay)


def of_repeats(g2: Float[np.ndarray, "curve n"]) -> Float[np.ndarray, " n"] | None:
    """Return the standard deviation of a point of one of the curves that repeat each other, by delay.

    What contrast and offset of each curve take up is left out. Neighbouring delays are averaged, for few
    curves over many of them; ν/(ν - 2) makes the mean of (deviation/error)² one, as ν degrees of freedom know
    the variance. None where too few points are known.
    """
    known = np.isfinite(g2).all(axis=0)
    curves, number = g2[:, known], len(g2)
    if curves.shape[1] < LEAST_DOF:
        return None
    mean = curves.mean(axis=0)
    columns = np.stack([np.ones_like(mean), mean], axis=1)
    apart = curves - (columns @ np.linalg.lstsq(columns, curves.T, rcond=None)[0]).T
    width = min(-(-LEAST_DOF // (number - 1)) // 2 * 2 + 1, curves.shape[1])
    taken = curves.shape[1] / (curves.shape[1] - 2)
    variance = _smoothed((apart**2).sum(axis=0)[None] * taken / (number - 1), width)[0]
    dof = (number - 1) * width
    deviation = np.sqrt(variance * dof / (dof - 2))
    if not (deviation > 0).all():
        return None
    places = np.arange(g2.shape[1])
    return np.interp(places, places[known], deviation)


def _smoothed(
    values: Float[np.ndarray, "bin n"], width: int, known: Bool[np.ndarray, "bin n"] | None = None
) -> Float[np.ndarray, "bin n"]:
    """Return means over a window, at the ends over what lies in it."""
    window, n = np.ones(width), values.shape[1]
    weights = np.ones_like(values) if known is None else known.astype(float)
    middle = slice((width - 1) // 2, (width - 1) // 2 + n)
    sums, counts = (
        np.array([np.convolve(row, window)[middle] for row in rows]) for rows in (values, weights)
    )
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
