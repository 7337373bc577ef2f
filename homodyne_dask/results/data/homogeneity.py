"""Test of homogeneity: whether independent values with errors agree; and a power law in q."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class HomogeneityTest(NamedTuple):
    """Weighted mean of values and the χ² of their scatter about it."""

    mean: float
    stderr: float
    """Standard error of the mean, from the errors of the values."""
    chisqr: float
    """Σ (value - mean)²/stderr²."""
    freedom: int
    """Degrees of freedom: number of values - 1."""
    p: float
    """Probability of at least this scatter if all true values are equal."""


def homogeneity_test(
    value: Float[np.ndarray, " n"], stderr: Float[np.ndarray, " n"], dof: Float[np.ndarray, " n"]
) -> HomogeneityTest | None:
    """Return the test of homogeneity; None for fewer than two values with a known error.

    dof: degrees of freedom of each error, NaN for a normal one. p is that of χ², corrected for errors
    known from few degrees of freedom (Welch 1951).
    """
    known = np.isfinite(value) & np.isfinite(stderr) & (stderr > 0)
    if known.sum() < 2:
        return None
    value, stderr, dof = value[known], stderr[known], dof[known]
    weight = 1 / stderr**2
    total = weight.sum()
    mean = (weight * value).sum() / total
    chisqr = float((weight * (value - mean) ** 2).sum())
    k = len(value)
    freedom = np.where(np.isfinite(dof), np.maximum(dof, 1.0), np.inf)
    slack = float(((1 - weight / total) ** 2 / freedom).sum())
    from scipy.special import chdtrc, fdtrc  # loads for a fifth of a second

    if slack == 0:
        p = chdtrc(k - 1, chisqr)
    else:
        F = chisqr / (k - 1) / (1 + 2 * (k - 2) / (k**2 - 1) * slack)
        p = fdtrc(k - 1, (k**2 - 1) / (3 * slack), F)
    return HomogeneityTest(float(mean), float(total**-0.5), chisqr, k - 1, float(p))


class PowerLawOfQ(NamedTuple):
    """y ∝ x^exponent, and the test whether y is a power of x."""

    exponent: float
    stderr: float
    """From the errors of y, times √(χ²/freedom) where the values scatter by more than those."""
    chisqr: float
    """Of ln y about the line."""
    freedom: int
    """Number of values - 2."""
    p: float
    """Probability of at least this scatter about a power law; NaN for two values."""


def power_law_of_q(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], stderr: Float[np.ndarray, " n"]
) -> PowerLawOfQ | None:
    """Return the exponent by weighted least squares in logarithms; None for fewer than two values."""
    known = np.isfinite(stderr) & (stderr > 0) & (y > 0) & (x > 0)
    if known.sum() < 2:
        return None
    u, v, weight = np.log(x[known]), np.log(y[known]), (y[known] / stderr[known]) ** 2
    u, v = (of - (weight * of).sum() / weight.sum() for of in (u, v))
    spread = (weight * u**2).sum()
    if spread == 0:
        return None
    exponent = float((weight * u * v).sum() / spread)
    chisqr, freedom = float((weight * (v - exponent * u) ** 2).sum()), int(known.sum()) - 2
    scatter = max(1.0, chisqr / freedom) if freedom else 1.0
    from scipy.special import chdtrc

    p = float(chdtrc(freedom, chisqr)) if freedom else np.nan
    return PowerLawOfQ(exponent, float((scatter / spread) ** 0.5), chisqr, freedom, p)
