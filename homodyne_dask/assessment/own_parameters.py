"""What a fit of the offset and contrast of one bin takes out of its residuals."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.solver.normal_matrix import pseudoinverse
from homodyne_dask.solver.reduced_problem import ReducedProblem

LEAST_LEFT = 0.4
"""Share of the variance of a mean of residuals that the fit leaves at least."""


class OwnParameters(NamedTuple):
    """Offset and contrast of one bin where no other has them: what a fit of these takes out of its residuals.

    Eliminated bin by bin: as columns of all they would make matrices of as many rows as there are bins.
    """

    columns: Float[np.ndarray, "cell own"]
    """The derivatives of c2 by them."""
    to: Float[np.ndarray, "own cell"]
    """From residuals to their estimates."""

    def outside(self, of: Float[np.ndarray, "cell k"]) -> Float[np.ndarray, "cell k"]:
        """Return columns without what they explain."""
        return of - self.columns @ (self.to @ of)

    def left_by(self, of: Float[np.ndarray, "cell k"]) -> Float[np.ndarray, "cell k"]:
        """Return the weights that a sum of residuals has before they are fitted."""
        return of - self.to.T @ (self.columns.T @ of)


def own_parameters(
    columns: Float[np.ndarray, "cell own"], weighted: Float[np.ndarray, "cell own"]
) -> OwnParameters:
    """Return what a fit of these columns takes; weighted: times the weights of the cells."""
    return OwnParameters(columns, pseudoinverse(columns.T @ weighted) @ weighted.T)


def linear_columns(
    reduced: ReducedProblem,
) -> tuple[Bool[np.ndarray, "bin 2"], Float[np.ndarray, "bin 2 l"]]:
    """Return which of (offset, contrast) each bin has for itself, and how they follow those of all bins."""
    bins = len(reduced.count)
    groups = len(reduced.inverse) if reduced.columns.shape[1] else 0
    if groups <= 1:  # fixed, or shared by all bins
        shared = np.einsum("km,zy->kzym", reduced.columns, np.eye(2)).reshape(bins, 2, -1)
        return np.zeros((bins, 2), bool), shared
    return ~reduced.at_bound, np.zeros((bins, 2, 0))
