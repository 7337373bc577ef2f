"""Averages over cells of age and lag with their noise, and what a fit takes out of them.

From these follow the variances of means of residuals, and how much smaller the errors of a fit would be that
weights the averages by the inverse of their covariance.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.fitting.error_estimation.cell_residuals import Interval
from homodyne_dask.fitting.error_estimation.speckle_errors import SpeckleErrors
from homodyne_dask.fitting.options import SPECKLE_WEIGHTS
from homodyne_dask.fitting.request import Request
from homodyne_dask.solver.hausman import HausmanTest, hausman_test
from homodyne_dask.solver.normal_equations import (
    JointEquations,
    joint_equations,
    parameters_with_errors,
)
from homodyne_dask.solver.state import State

LEAST_LEFT = 0.4
"""Share of the variance of a mean that the fit leaves at least."""


class FittedCells(NamedTuple):
    """The residuals of all bins with their noise and what the fit takes out of it."""

    intervals: list[Interval]
    """Of all bins; a bin has some of them."""
    residual: Float[np.ndarray, "bin cell"]
    """NaN where a bin has no such cell."""
    f: Float[np.ndarray, "bin cell"]
    """Its mean in each cell; NaN where a bin has no such cell."""
    pairs: Int[np.ndarray, "bin cell"]
    """Averaged in each cell."""
    noise: dict[int, Float[np.ndarray, "cell cell"]]
    """The covariance of the noise of each bin; 0 where it has no cell."""
    columns: dict[int, Float[np.ndarray, "cell n"]]
    """Derivatives of c2 by all fitted parameters."""
    correlated: dict[int, Float[np.ndarray, "cell n"]]
    """noise @ weights @ columns."""
    inverse: Float[np.ndarray, "n n"]
    """Of the normal matrix of all cells."""
    fitted: Float[np.ndarray, "n n"]
    """Covariance of the scores of the fitted parameters."""
    best: Float[np.ndarray, "n n"]
    """The normal matrix with the inverse covariance of the measured noise as weights."""
    of_pairs: Float[np.ndarray, "n n"]
    """The covariance that the measured noise gives to a fit of all pairs."""
    moved: int
    """How many of the parameters, the last, are of theta."""
    freedom: float
    """Degrees of freedom of the size of the noise."""
    smoothed: Mapping[str, Float[np.ndarray, "size n"]]
    """Of each rate whose smoothness a user gave: which combination of the columns each coefficient is."""

    def variance(
        self, weights: Mapping[int, Float[np.ndarray, "cell test"]]
    ) -> Float[np.ndarray, " test"]:
        """Return the variance of sums of residuals with these weights in each bin.

        A fit of all pairs takes a little less out of a sum than one of cells would.
        """
        tests = next(iter(weights.values())).shape[1]
        total, scores = np.zeros(tests), np.zeros((len(self.inverse), tests))
        across = np.zeros((len(self.inverse), tests))
        for b, of in weights.items():
            total += (of * (self.noise[b] @ of)).sum(0)
            scores += self.columns[b].T @ of
            across += self.correlated[b].T @ of
        taken = self.inverse @ scores
        left = total - 2 * (across * taken).sum(0) + (taken * (self.fitted @ taken)).sum(0)
        return np.maximum(left, LEAST_LEFT * total)

    @property
    def weighted(self) -> Float[np.ndarray, "moved moved"]:
        """The covariance of a fit weighted by the inverse covariance of the measured noise."""
        return _inverse(self.best)[-self.moved :, -self.moved :]

    @property
    def gain(self) -> Float[np.ndarray, " moved"]:
        """Return the errors of a fit weighted by the inverse covariance over those of one of pairs."""
        return np.sqrt(np.diag(self.weighted) / np.diag(self.of_pairs)[-self.moved :])


def difference_of_weights(
    request: Request,
    state: State,
    speckle: SpeckleErrors,
    by_pairs: Float[np.ndarray, " p"],
    size: Float[np.ndarray, " n"],
) -> HausmanTest | None:
    """Return whether a weighted fit differs from `by_pairs`, theta of the same averages weighted by pairs.

    size: by which the noise was computed with scaled parameters. None where a prior or a bound stands between
    the two, or the weights do not matter.
    """
    moved = request.search.free
    if request.search.priors is not None or request.search.smoothness is not None:
        return None
    inside = [request.search.free_inside_bounds(theta) for theta in (state.theta, by_pairs)]
    if not moved.any() or (np.array(inside) != moved).any():
        return None
    cells, period = fitted_cells(request, state, speckle), request.search.period
    step, turn = state.theta - by_pairs, np.where(np.isfinite(period), period, 1.0)
    step = np.where(np.isfinite(period), step - turn * np.round(step / turn), step)[moved]
    some = slice(-cells.moved, None)
    step = step * size[: cells.moved]
    return hausman_test(step, cells.of_pairs[some, some], cells.weighted, cells.freedom)


def fitted_cells(request: Request, state: State, speckle: SpeckleErrors) -> FittedCells:
    """Return the residuals of the bins whose noise is known."""
    scan, reduced = request.scan, state.reduced
    moved = parameters_with_errors(request.search, state.theta, state.reduced)
    joint = joint_equations(reduced, moved)
    known = speckle.bins
    intervals = sorted({cell for one in known.values() for cell in one.cells.intervals})
    place = {cell: n for n, cell in enumerate(intervals)}
    linear, m = _linear_columns(request, state), joint.moved
    n, size = linear.shape[2] + m, len(intervals)
    normal, fitted, best, by_pairs, scores = np.zeros((5, n, n))
    if joint.prior is not None:
        for of in (normal, best, by_pairs):
            of[-m:, -m:] += joint.prior.normal[:m, :m]
    noise, columns, correlated = {}, {}, {}
    residual, f = np.full((2, len(scan.bins), size), np.nan)
    pairs_of = np.zeros(residual.shape, np.int64)
    for b, one in known.items():
        at = [place[cell] for cell in one.cells.intervals]
        residual[b, at], f[b, at], pairs_of[b, at] = one.residual, one.cells.f, one.cells.pairs
        contrast = reduced.contrast[b]
        own = np.stack([np.ones(len(at)), one.cells.f], axis=1) @ linear[b]
        own = np.concatenate([own, contrast * one.cells.slopes.T], axis=1)
        covariance, measured = one.covariance, one.measured
        pairs = own * (one.cells.pairs * (1 / scan.sigma_row[b] ** 2).mean() ** 2)[:, None]
        whitened = np.linalg.solve(measured, own)
        weighted = whitened if request.options.weighting == SPECKLE_WEIGHTS else pairs
        across = covariance @ weighted
        normal += own.T @ weighted
        best += own.T @ whitened
        by_pairs += own.T @ pairs
        scores += pairs.T @ measured @ pairs
        fitted += weighted.T @ across
        noise[b], columns[b], correlated[b] = (
            np.zeros((size, size)), np.zeros((size, n)), np.zeros((size, n))
        )  # fmt: skip
        noise[b][np.ix_(at, at)], columns[b][at], correlated[b][at] = covariance, own, across
    freedom = float(np.median([one.fit.freedom for one in known.values()]))
    of_pairs = _inverse(by_pairs)
    return FittedCells(
        intervals,
        residual,
        f,
        pairs_of,
        noise,
        columns,
        correlated,
        _inverse(normal),
        fitted,
        best,
        of_pairs @ scores @ of_pairs,
        m,
        freedom,
        _smoothed_by_hand(request, joint, n),
    )


def _smoothed_by_hand(
    request: Request, joint: JointEquations, columns: int
) -> dict[str, Float[np.ndarray, "size n"]]:
    smoothness, m = request.search.smoothness, joint.moved
    if smoothness is None:
        return {}
    of_theta = np.zeros((len(joint.which), columns))
    of_theta[joint.which, columns - m :] = np.diag(joint.size[:m])
    return {name: of_theta[smoothness.places[name]] for name in smoothness.given}


def _inverse(normal: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n n"]:
    scale = np.sqrt(np.where(np.diag(normal) > 0, np.diag(normal), 1.0))
    return np.linalg.pinv(normal / np.outer(scale, scale), 1e-10, hermitian=True) / np.outer(
        scale, scale
    )


def _linear_columns(request: Request, state: State) -> Float[np.ndarray, "bin 2 l"]:
    """Return the derivatives of (offset, contrast) of every bin by the linear parameters of all."""
    reduced, bins = state.reduced, len(request.scan.bins)
    groups = len(reduced.inverse) if reduced.columns.shape[1] else 0
    if groups <= 1:  # fixed, or shared by all bins
        return np.einsum("km,zy->kzym", reduced.columns, np.eye(2)).reshape(bins, 2, -1)
    own = np.zeros((bins, 2, bins, 2))
    for b in range(bins):
        own[b, [0, 1], b, [0, 1]] = ~reduced.at_bound[b]
    return own.reshape(bins, 2, -1)
