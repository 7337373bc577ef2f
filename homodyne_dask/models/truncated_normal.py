"""Normal numbers between two ends, either of which may be infinite or far out in a tail."""

from typing import Any

import numpy as np
from jaxtyping import Float

_CERTAIN = 9.0
"""A normal number is less than this, but for a probability below rounding."""


def log_probability(a: Any, b: Any) -> Any:
    """Return the log of the probability of a standard normal number between a and b, a < b."""
    from scipy.special import log_ndtr  # loads for a fifth of a second

    a, b = np.asarray(a, float), np.asarray(b, float)
    if np.all(a < -_CERTAIN) and np.all(b > _CERTAIN):
        return np.zeros(np.broadcast_shapes(a.shape, b.shape))
    upper = a > 0
    a, b = np.where(upper, -b, a), np.where(upper, -a, b)  # the lower tail keeps its digits
    whole = log_ndtr(b)
    with np.errstate(divide="ignore"):
        return whole + np.log1p(-np.exp(log_ndtr(a) - whole))


def truncated_normal(rng: np.random.Generator, n: int, a: Any, b: Any) -> Float[np.ndarray, " n"]:
    """Return n standard normal numbers between a and b: numbers, or arrays of n."""
    from scipy.special import log_ndtr, ndtri_exp  # loads for a fifth of a second

    upper = np.asarray(a) > 0
    low = np.where(upper, -np.asarray(b), a)
    part = np.log1p(-rng.random(n)) + log_probability(a, b)  # log of (0, 1]
    return np.where(upper, -1, 1) * ndtri_exp(np.logaddexp(log_ndtr(low), part))
