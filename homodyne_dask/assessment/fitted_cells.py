"""Averages over cells of age and lag with their noise, and what a fit takes out of them.

From these follow the variances of means of residuals, and how much smaller the errors of a fit would be that
weights the averages by the inverse of their covariance.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.assessment.bins_sharing_noise import (
    PooledBin,
    clusters_of_pooled,
    pooled_repeats,
)
from homodyne_dask.assessment.cell_residuals import Interval
from homodyne_dask.assessment.speckle_errors import SpeckleErrors, shared_speckle
from homodyne_dask.assessment.speckle_noise import BinNoise
from homodyne_dask.request.options import SPECKLE_WEIGHTS
from homodyne_dask.request.request import Request
from homodyne_dask.solver.normal_equations import joint_equations
from homodyne_dask.solver.normal_matrix import pseudoinverse
from homodyne_dask.solver.reduce import LEAST_LEFT, OwnParameters, linear_columns, own_parameters
from homodyne_dask.solver.speckle import log_variances
from homodyne_dask.solver.state import State

MOST_RELATIVE = 0.5
"""Largest 4/n of n degrees of freedom of the noise of a bin, by which variances of weighted sums grow."""


class CellsOfBin(NamedTuple):
    """The cells of one bin."""

    at: list[int]
    """Their places among all."""
    pooled: PooledBin
    own: OwnParameters
    columns: Float[np.ndarray, "cell n"]
    """Derivatives of c2 by the fitted parameters of all bins."""
    correlated: Float[np.ndarray, "cell n"]
    """noise @ weights @ columns, these without what `own` explains."""

    @property
    def noise(self) -> BinNoise:
        """The noise of the bin."""
        return self.pooled.noise


class FittedCells(NamedTuple):
    """The residuals of all bins with their noise and what the fit takes out of it."""

    intervals: list[Interval]
    """Of all bins; a bin has some of them."""
    residual: Float[np.ndarray, "bin cell"]
    """NaN where a bin has no such cell."""
    f: Float[np.ndarray, "bin cell"]
    """Its mean in each cell; NaN where a bin has no such cell."""
    pairs: Int[np.ndarray, "bin cell"]
    variances: Float[np.ndarray, "bin cell"]
    """Of their noise; 0 where a bin has no such cell."""
    bins: dict[int, CellsOfBin]
    """Of those whose noise is known; bins that repeat each other are one, in the place of the first."""
    inverse: Float[np.ndarray, "n n"]
    """Of the normal matrix of all cells, by the parameters of all bins."""
    fitted: Float[np.ndarray, "n n"]
    of_pairs: Float[np.ndarray, "moved moved"]
    """The covariance of theta that the measured noise gives to a fit of all pairs."""
    weighted: Float[np.ndarray, "moved moved"]
    """The same of a fit weighted by the inverse covariance of the measured noise of each bin."""
    smoothed: Mapping[str, Float[np.ndarray, "size n"]]
    """Of each rate whose smoothness a user gave: which combination of the columns each coefficient is."""

    def variance(
        self, weights: Mapping[int, Float[np.ndarray, "cell test"]], by_noise: bool
    ) -> tuple[Float[np.ndarray, " test"], Float[np.ndarray, " test"]]:
        """Return the variance of sums of residuals with these weights in each bin, and its freedom.

        A fit of all pairs takes a little less out of a sum than one of cells would. by_noise: whether the
        noise of bins is in the weights.
        """
        tests = next(iter(weights.values())).shape[1]
        left = np.zeros(tests)
        scores, across = np.zeros((2, len(self.inverse), tests))
        own, relative = np.zeros((2, len(weights), tests))
        for n, (b, of_all) in enumerate(weights.items()):
            one = self.bins[b]
            of, covariance = of_all[one.at], one.noise.covariance
            noise = covariance @ of
            own[n] = (of * noise).sum(0)
            noise -= (covariance @ one.own.to.T) @ (one.own.columns.T @ of)
            of = one.own.left_by(of)
            left += (of * noise).sum(0)
            _, relative[n] = log_variances(one.noise.of_cells, of.T, one.noise.expected)
            scores += one.columns.T @ of
            across += one.correlated.T @ of
        taken = self.inverse @ scores
        left += (taken * (self.fitted @ taken)).sum(0) - 2 * (across * taken).sum(0)
        total = own.sum(0)
        share = own / np.maximum(total, np.finfo(float).tiny)
        freedom = 2 / np.maximum((share**2 * relative).sum(0), np.finfo(float).tiny)
        more = (share * excess_of_weighted(share, relative)).sum(0) if by_noise else 0.0
        return np.maximum(left, LEAST_LEFT * total) * (1 + more), freedom


def excess_of_weighted(
    share: Float[np.ndarray, "bin ..."], relative: Float[np.ndarray, "bin ..."]
) -> Float[np.ndarray, "bin ..."]:
    """Return by how much the part of each bin in the variance of a sum over bins is larger, relative.

    The bins are weighted by their noise: where it was estimated too small, the weight is too large, too. With
    n degrees of freedom, E[v/v̂²]/E[1/v̂] is n/(n - 4); of a single bin Student's t is right. share: of each
    bin. relative: the variance 2/n of the logarithm of its variance.
    """
    known = np.minimum(2 * relative, MOST_RELATIVE)
    return (1 - share) * known / (1 - known)


def fitted_cells(request: Request, state: State, speckle: SpeckleErrors) -> FittedCells:
    """Return the residuals of the bins whose noise is known."""
    scan, reduced = request.scan, state.reduced
    joint = joint_equations(reduced, speckle.which)
    known = pooled_repeats(request, reduced, speckle.bins)
    intervals = sorted({cell for one in known.values() for cell in one.noise.cells.intervals})
    place = {cell: n for n, cell in enumerate(intervals)}
    m, (own_of, shared) = joint.moved, linear_columns(reduced)
    n, size = shared.shape[2] + m, len(intervals)
    normal, fitted, best, by_pairs = np.zeros((4, n, n))
    scores, maps, bins = np.zeros((2 * n, 2 * n)), {}, {}
    for of in (normal, best, by_pairs, scores):  # those of the weighted fit are the last
        last = slice(len(of) - m, None)  # not -m: there may be no parameter
        of[last, last] += joint.prior.normal[:m, :m]
    residual, f = np.full((2, len(scan.bins), size), np.nan)
    pairs_of, variances = np.zeros(residual.shape, np.int64), np.zeros(residual.shape)
    for b, pooled in known.items():
        one, members = pooled.noise, pooled.members
        at = [place[cell] for cell in one.cells.intervals]
        residual[b, at], f[b, at] = one.residual, one.cells.f
        pairs_of[b, at] = one.cells.pairs * len(members)
        levels = np.stack([np.ones(len(at)), one.cells.f], axis=1)
        own, columns = levels[:, own_of[b]], reduced.contrast[b] * one.cells.slopes.T
        linear = np.tensordot(pooled.share, shared[members], 1)
        columns = np.concatenate([levels @ linear, columns], axis=1)
        inverse, measured = one.inverse, one.measured
        pairs = np.diag(one.cells.pairs * pooled.weight)
        by_noise, by_pair = own_parameters(own, inverse @ own), own_parameters(own, pairs @ own)
        whitened, of_pair = by_noise.outside(columns), by_pair.outside(columns)
        best += columns.T @ inverse @ whitened
        by_pairs += columns.T @ pairs @ of_pair
        weighted, taken = pairs @ of_pair, by_pair
        maps[b] = np.concatenate([weighted, inverse @ whitened], axis=1).T
        scores += maps[b] @ measured @ maps[b].T
        if request.options.weighting == SPECKLE_WEIGHTS:
            taken, weighted = by_noise, inverse @ whitened
        covariance = one.covariance
        across, variances[b, at] = covariance @ weighted, np.diag(covariance)
        normal += columns.T @ weighted
        fitted += weighted.T @ across
        bins[b] = CellsOfBin(at, pooled, taken, columns, across)
    scores += shared_speckle(
        maps,
        clusters_of_pooled(request, known),
        lambda a, b: known[a].noise.shared_with(known[b].noise),
    )
    of_theta, smoothness = np.zeros((len(joint.which), n)), request.search.smoothness
    of_theta[joint.which, n - m :] = np.diag(joint.size[:m])
    to_pairs, to_weighted = np.zeros((2, m, 2 * n))
    to_pairs[:, :n] = pseudoinverse(by_pairs)[n - m :]
    to_weighted[:, n:] = pseudoinverse(best)[n - m :]
    of_pairs, weighted = (to @ scores @ to.T for to in (to_pairs, to_weighted))
    places = smoothness.places if smoothness else {}
    given = {name: of_theta[places[name]] for name in (smoothness.given if smoothness else ())}
    return FittedCells(
        intervals, residual, f, pairs_of, variances, bins, pseudoinverse(normal), fitted, of_pairs, weighted,
        given,
    )  # fmt: skip
