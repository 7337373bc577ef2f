"""Whether two estimates agree: least squares of all pairs, and weighted by the noise (Hausman 1978).

Both are right where the model is, and differ by noise of known size. Where the model is wrong they are drawn
to different compromises.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from homodyne_dask.solver.limits import LEVEL_OF_HAUSMAN
from homodyne_dask.solver.normal_matrix import eigensystem

LEAST = 0.02
"""Variance of a difference over that of least squares, below which the weights do not matter."""


class HausmanTest(NamedTuple):
    """The difference of the two estimates, and the test whether it is noise."""

    difference: tuple[float, ...]
    """Of each parameter that moved: weighted less unweighted, in standard deviations of the difference."""
    directions: int
    """Combinations of parameters that are compared."""
    p: float
    """Probability of so large a difference if the model is right."""

    @property
    def differs(self) -> bool:
        """Whether the estimates differ by more than noise."""
        return self.p < LEVEL_OF_HAUSMAN


def hausman_test(
    difference: Float[np.ndarray, " m"],
    unweighted: Float[np.ndarray, "m m"],
    between: Float[np.ndarray, "m m"],
    freedom: float,
) -> HausmanTest | None:
    """Return the test of a difference of estimates; None where weights do not matter.

    unweighted: the covariance of least squares. between: that of the difference. freedom: degrees of freedom
    of the size of the noise.
    """
    from scipy.special import fdtrc  # loads for a fifth of a second

    size = np.sqrt(np.diag(unweighted))
    if not (np.isfinite(size).all() and (size > 0).all()):
        return None
    values, vectors, _ = eigensystem(between, size)
    known = values > LEAST
    if not known.any():
        return None
    along = vectors[:, known].T @ (difference / size)
    k = int(known.sum())
    p = float(fdtrc(k, freedom, np.sum(along**2 / values[known]) / k))
    spread = np.sqrt(np.maximum(np.diag(between), LEAST * size**2))
    return HausmanTest(tuple((difference / spread).tolist()), k, p)
