"""Fits weighted by speckle noise: generalised least squares on c2 averaged over cells of age and lag.

Pairs of frames share the noise of their speckle pattern, so least squares over pairs is not the best use of
them. With the covariance Σ of the averages (`speckle_covariance`) at the fit, Σ⁻¹ is the weight; Σ is
computed anew at the new optimum, and so on until the parameters stay. The Gram of a bin is Xᵀ Σ⁻¹ X over
its cells; what follows from it is as for any fit. The averages are those stored with the data: no pair is
read.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from jaxtyping import Float

from homodyne_dask.assessment.cell_residuals import (
    AveragedCells,
    CellPoints,
    averaged_cells,
)
from homodyne_dask.assessment.fit_end import FitEnd
from homodyne_dask.assessment.shared_speckle import shared_speckle
from homodyne_dask.assessment.speckle_blocks import CellGrid
from homodyne_dask.assessment.speckle_errors import SpeckleErrors, weighted_errors
from homodyne_dask.assessment.speckle_noise import (
    BinNoise,
    NoiseCache,
    averages_of_means,
    fitted_point,
    noise_of_bins,
    noise_of_group,
)
from homodyne_dask.errors import OptionError
from homodyne_dask.fitting.minimize import FitRecord, minimize
from homodyne_dask.fitting.start.initial_values import find_start
from homodyne_dask.kernels.backend import evaluation_of
from homodyne_dask.kernels.gram import CellSums, Gram
from homodyne_dask.request.request import Request
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver._numpy_internals import one_blas_thread
from homodyne_dask.solver.normal_equations import (
    JointEquations,
    deviation,
    equations_with_errors,
)
from homodyne_dask.solver.reduce import reduce
from homodyne_dask.sweep.blocks import NO_COST
from homodyne_dask.sweep.cell_sums import AgeAndLagEdges
from homodyne_dask.sweep.sweep import Sweep
from homodyne_dask.sweep.tasks import CELL_MEANS, AtTheta

STAYS = 0.05
"""Standard errors: weights are final when a fit with them moves no parameter further."""
WEIGHED = (lm.Outcome.CONVERGED, lm.Outcome.STALLED, lm.Outcome.SINGULAR)
"""Outcomes from which noise follows: what no data determine does not change it."""
MOST_UPDATES = 5
AT_ONCE = 4_000_000
"""Derivatives of f that are held before they are averaged."""
MOST_AGES = 64
"""Intervals of age of a record of few frames: all that are stored."""
BUDGET, BUDGET_OF_MANY, FEW_BINS = 75_000, 40_000, 2
"""Cells times blocks of frames of a bin, of up to FEW_BINS bins and of more: its square is the cost."""


@dataclass
class SpeckleWeighting:
    """Passes over the averages of a scan over cells, with their weights in a fit."""

    request: Request
    averaged: AveragedCells
    data: Sweep
    """Over the data; read only if they are means over cells themselves."""
    weights: dict[int, Float[np.ndarray, "cell cell"]]
    """Of each bin with data: the inverse of the covariance of its averages."""
    counted: dict[int, int]
    """Averages that count in each bin: those over the finest cells are merged."""
    bins: dict[int, BinNoise]
    joint: JointEquations | None = None
    computed: NoiseCache = field(default_factory=NoiseCache)
    """Of the optima before: most weights move parameters, but hardly f, on which the noise depends."""
    begun: Callable[[], object] = lambda: None
    ended: Callable[[Gram], object] = lambda _: None
    cost, peak, factor = NO_COST, 0, 1

    @classmethod
    def of(cls, request: Request, sweep: Sweep) -> "SpeckleWeighting":
        """Return the averages of a request, weighted by their pairs as if these were independent."""
        scan = request.scan
        averages_of = averaged_cells if scan.cells is None else _grouped
        averaged = averages_of(sweep, request)
        weights, counted = {}, {}
        for b, pairs in enumerate(averaged.pairs):
            has_mean = (pairs > 0) & np.isfinite(averaged.c2[b])
            if not has_mean.any():
                continue
            typical = float(np.mean(scan.sigma_row[b][scan.use] ** -2.0) ** 2)
            weights[b] = np.diag(np.where(has_mean, pairs * typical, 0.0))
            counted[b] = int(has_mean.sum())
        stored = averaged.known_shares is None and scan.cells is None
        request = request.with_note("averages", "stored" if stored else "read")
        return cls(request, averaged, sweep, weights, counted, {})

    def columns(
        self, theta: Float[np.ndarray, " p"], slopes: bool = True
    ) -> Float[np.ndarray, "bin cell k"]:
        """Return X = [1, y - 1, f] of every bin, and ∂f/∂theta with `slopes`; 0 where a cell has no pair."""
        scan, fixed = self.request.scan, ~self.request.search.free
        if scan.cells is not None:  # those of f from a pass
            means = self.data.over(CELL_MEANS, AtTheta(theta))
            _, X = averages_of_means(scan, self.request.problem.min_lag, means)
            X[..., 3:][..., fixed] = 0.0
            return np.nan_to_num(X if slopes else X[..., :3])
        y, evaluation = self.averaged.c2 - 1, evaluation_of(self.request.problem.model)
        point = evaluation.point(self.request.problem, theta, scan.time), scan.time
        f, derivatives = np.empty(y.shape), np.empty((len(theta) if slopes else 0, *y.shape))
        for bins, points, times in self._points(AT_ONCE // (len(theta) if slopes else 1)):
            arguments = *point, scan.q_or_one[bins], scan.phi[bins], *times
            if slopes:
                values, by_theta = evaluation.f_and_derivatives_at(*arguments)
                derivatives[:, bins] = np.swapaxes(points.mean(by_theta, y.shape[1]), 0, 1)
            else:
                values = evaluation.f_at(*arguments)
            f[bins] = points.mean(values, y.shape[1])
        if slopes:
            derivatives[fixed] = 0.0
        X = np.stack([np.ones_like(y), y, f, *derivatives], axis=-1)
        return np.where(np.isfinite(X).all(-1, keepdims=True), X, 0.0)

    def _points(
        self, most: int
    ) -> Iterator[tuple[slice, CellPoints, tuple[np.ndarray, np.ndarray]]]:
        """Yield bins, pairs that stand for their cells, some `most` of all of them, and their times [s]."""
        time, bins = self.request.scan.time, len(self.averaged.c2)
        frames = np.arange(len(time))
        for n, points in enumerate(self.averaged.points):
            times = np.interp(points.i, frames, time), np.interp(points.j, frames, time)
            if len(self.averaged.points) > 1:
                yield slice(n, n + 1), points, times
                continue
            bins_at_once = max(most // max(len(points.i), 1), 1)
            for first in range(0, bins, bins_at_once):
                yield slice(first, first + bins_at_once), points, times

    def gram(self, theta: Float[np.ndarray, " p"], linear_params: object = None) -> Gram:
        self.begun()
        gram = self._weighted(self.columns(theta))
        self.ended(gram)
        return gram

    def candidates(self, thetas: Float[np.ndarray, "point p"]) -> list[Gram]:
        """Return the Gram of [1, y - 1, f] at every theta."""
        return [self._weighted(self.columns(theta, slopes=False)) for theta in thetas]

    def wide(self, thetas: Float[np.ndarray, "point p"]) -> Gram:
        """Return the Gram of [1, y - 1, f_0, f_1 - f_0, f_2 - f_0 ...]."""
        first, *others = (self.columns(theta, slopes=False) for theta in thetas)
        changes = [columns[..., 2:] - first[..., 2:] for columns in others]
        return Gram(*self._weighted(np.concatenate([first, *changes], axis=-1)))

    def cells(self, edges: AgeAndLagEdges) -> CellSums:
        """Return sums of c2 over other cells, which a search for initial values asks for: from the data."""
        return self.data.cells(edges)

    @one_blas_thread()
    def _weighted(self, X: Float[np.ndarray, "bin cell k"]) -> Gram:
        moments = np.zeros((len(X), X.shape[2], X.shape[2]))
        counted = np.zeros(len(X), np.int64)
        for b, weight in self.weights.items():
            moments[b] = X[b].T @ weight @ X[b]
            counted[b] = self.counted[b]
        return Gram((moments + np.swapaxes(moments, 1, 2)) / 2, counted)

    @one_blas_thread()
    def weigh(self, state: lm.State) -> bool:
        """Compute the weights from the noise at a state; False where the noise of a bin is not known."""
        request, averaged = self.request, self.averaged
        used = [b for b in self.weights if not state.reduced.undetermined[b]]
        if not used:
            return False
        end, (first, stop) = FitEnd(request, state), request.scan.frames
        point = fitted_point(end, end.equations)
        grid = grid_of_weights(averaged, stop - first, len(used))
        cells = request.scan.cells
        means = None if cells is None else self.data.over(CELL_MEANS, AtTheta(state.theta))
        of_group = partial(noise_of_group, point, grid, of_pairs=False, cache=self.computed)
        bins = noise_of_bins(end, point, used, averaged, means, of_group)
        if bins is None:
            return False
        self.bins, self.joint = bins, end.equations
        self.weights, self.counted = {}, {}
        for b, noise in bins.items():
            self.weights[b] = noise.cells.share.T @ noise.inverse @ noise.cells.share
            self.counted[b] = len(noise.residual)
        return True

    @one_blas_thread()
    def errors(self, end: FitEnd) -> SpeckleErrors | None:
        at_end = end.equations
        if self.joint is None or (self.joint.which != at_end.which).any():
            return None  # a bound became active since the weights were computed
        shared = shared_speckle(self.request.scan, self.request.clusters, self.bins)
        errors = weighted_errors(self.joint, at_end, self.bins, shared)
        return replace(errors, smoothed=self.request.scan.smoothed)


def _grouped(sweep: Sweep, request: Request) -> AveragedCells:
    scan, search = request.scan, request.search
    any_theta = search.with_given(np.ones(len(search.start)))
    means = sweep.over(CELL_MEANS, AtTheta(any_theta))
    averaged, _ = averages_of_means(scan, request.problem.min_lag, means)
    return averaged


def grid_of_weights(averaged: AveragedCells, frames: int, bins: int) -> CellGrid:
    lags = int((averaged.lag_edges < frames).sum())
    most = BUDGET if bins <= FEW_BINS else BUDGET_OF_MANY
    return CellGrid(int(np.clip(most // (max(lags, 1) * frames), 8, MOST_AGES)), 1)


def minimize_weighted(weighting: SpeckleWeighting, record: FitRecord) -> Iterator[lm.State]:
    request, state = weighting.request, None
    for state in minimize(request, weighting, partial(find_start, request, [weighting]), record):
        yield state
    for _ in range(MOST_UPDATES):
        assert state is not None
        if state.outcome not in WEIGHED:
            return
        before = state
        if not weighting.weigh(before):
            return
        start = lm.Trial(before.theta)
        for after in minimize(request, weighting, lambda _, start=start: start, record):
            state = replace(after, passes=before.passes + after.passes)
            yield state
        joint = equations_with_errors(request.search, state.theta, state.reduced)
        error = deviation(np.diag(joint.of_theta(joint.inverse)))
        step = np.abs(state.theta - before.theta)[joint.which]
        if (step / np.maximum(error, np.finfo(float).tiny)).max(initial=0.0) < STAYS:
            return


def weighted_at(request: Request, data: Sweep, theta: Float[np.ndarray, " p"]) -> SpeckleWeighting:
    weighting = SpeckleWeighting.of(request, data)
    for _ in range(2):  # the second with contrasts of the first
        reduced = reduce(weighting.gram(theta), request.scaling, request.sum_rounding)
        state = lm.initial_state(request.search, theta, reduced, lm.SolverOptions())
        if not weighting.weigh(state):
            raise OptionError(
                "the speckle noise of some or all bins is not known, so there are no weights: fit with "
                "weighting 'pairs'"
            )
    return weighting
