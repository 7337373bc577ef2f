"""The covariance of c2 of pairs of frames, for counted photons of Gaussian speckle."""

import numpy as np
from jaxtyping import Float

PerDistance = Float[np.ndarray, " d"]
"""At distances of 0, 1, 2 ... frames."""


def covariance_over_age(
    f: PerDistance,
    contrast: float,
    mean_counts: float,
    lag: int,
    lags: int = 1,
    f_later: PerDistance | None = None,
) -> PerDistance:
    """Return the covariance of ψ(t, t + lag) and ψ(t + d, t + d + lag) for each distance d from 0 up.

    f: at lags of 0, 1, 2 ... frames; the field correlation is its root. lags: ψ is averaged over so many lags
    around `lag`. f_later: f of frames around t + lag; None where dynamics are stationary. From the joint
    cumulants κ of x at the times 1 to 4 of both pairs,

    κ13 κ24 + κ14 κ23 + κ1234 - β f (κ123 + κ124 + κ134 + κ234) + β² f² (κ13 + κ14 + κ23 + κ24).
    """
    b, m, n = contrast, 1 / mean_counts, len(f)
    d = np.arange(n)
    f13, f14, f23 = (f[np.minimum(np.abs(d + shift), n - 1)] for shift in (0, lag, -lag))
    f24 = _mean_over_lags(f13 if f_later is None else f_later, lags)
    g13, g24, g14, g23, g = (np.sqrt(values) for values in (f13, f24, f14, f23, f[lag]))
    first_equal, touching = (d == 0).astype(float), (d == lag).astype(float)  # 1 = 3, or 2 = 3
    later_equal = _mean_over_lags(first_equal, lags)  # the share of lags with 2 = 4
    F = b * f[lag]
    k13, k14 = b * f13 + m * first_equal, b * f14
    k24, k23 = b * f24 + m * later_equal, b * f23 + m * touching
    of123, of124 = 2 * b**2 * g * g23 * g13, 2 * b**2 * g * g24 * g14  # of intensities alone
    k123, k124 = of123 + F * m * (first_equal + touching), of124 + F * m * later_equal
    k1234 = 2 * b**3 * (f[lag] * g23 * g14 + g13 * g24 * g23 * g14 + f[lag] * g13 * g24)
    k1234 += m * (later_equal * (of123 + F * m * first_equal) + (first_equal + touching) * of124)
    return k13 * k24 + k14 * k23 + k1234 - 2 * F * (k123 + k124) + F**2 * (k13 + k24 + k14 + k23)


def _mean_over_lags(values: PerDistance, lags: int) -> PerDistance:
    """Return the mean over the lags of both pairs, of values at distances that change with these."""
    n, both = len(values), np.concatenate([values[:0:-1], values, np.repeat(values[-1:], lags)])
    for _ in range(2 * (lags > 1)):
        total = np.cumsum(np.append(0.0, both))
        both = (total[lags:] - total[:-lags]) / lags
    return both[n - lags :][:n]


def variance_of_mean(covariance: PerDistance, ages: int) -> float:
    """Return the variance of the mean of ψ over ages in succession, from their covariance."""
    d = np.arange(ages)
    return float((2 * (ages - d) @ covariance[:ages] - ages * covariance[0]) / ages**2)
