"""Standard errors from the noise that speckle and counting give each bin, however few there are.

How an error arises. Near the optimum, theta less its true value is H⁻¹ Σ_b S_b u_b: H the normal matrix,
u_b = (Σ w r, Σ w f r, Σ w ∂f/∂θ r) the sums over the pairs of bin b of its residuals r, and S_b the map from
these to the scores of theta, with contrast and offset eliminated. The covariance C_b of u_b follows from the
theory of speckle (`speckle_covariance`) for P pixels with μ counts, which the residuals of cells show. So

    cov(theta) = H⁻¹ (Σ_b S_b C_b S_bᵀ + Σ_(a≠b) S_a C_ab S_bᵀ + Λ) H⁻¹,

with C_ab of bins a and b that see the same speckle, and the variance Λ of the scores of priors. Since P and μ
are estimated, errors have the degrees of freedom of Satterthwaite (1946).

The noise is computed in this process, on the workers of the passes, or on processes started for it. A task is
a pure function of store, selection, a group of bins, theta and the last sums of these bins, and groups keep
their order: the noise has the same bits for any number of workers, even if some are lost.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.special import chdtrc, chdtri, kolmogorov, ndtr, stdtr

from homodyne_dask.assessment.cell_residuals import AveragedCells, nodes_of, stored_cells
from homodyne_dask.assessment.fit_end import FitEnd
from homodyne_dask.assessment.shared_speckle import (
    Added,
    SharedSpeckle,
    SpeckleOfSums,
    shared_fields,
    shared_speckle,
)
from homodyne_dask.assessment.speckle_blocks import BinFrames, CellGrid, FittedPoint
from homodyne_dask.assessment.speckle_covariance import (
    NoiseFit,
    likely_covariance,
    log_variances,
    variances,
)
from homodyne_dask.assessment.speckle_noise import (
    BinData,
    BinNoise,
    FineAverages,
    NoiseCache,
    OfGroup,
    fitted_point,
    grid_of_errors,
    noise_of_bins,
    noise_of_group,
)
from homodyne_dask.assessment.which_covariance import NoiseErrors
from homodyne_dask.kernels.backend import evaluation_of
from homodyne_dask.kernels.backend_interface import Problem
from homodyne_dask.kernels.gram import CellMeans
from homodyne_dask.machine.allocator_and_threads import worker_address
from homodyne_dask.machine.cores_and_cgroup_limits import cores
from homodyne_dask.solver._numpy_internals import one_blas_thread
from homodyne_dask.solver.array_shapes import (
    LinearParams,
    Matrix,
    Moved,
    PerBin,
    Theta,
    ThetaMatrix,
    Vector,
    Which,
)
from homodyne_dask.solver.cluster_robust import IMPROBABLE, with_known
from homodyne_dask.solver.covariance import expanded, own_errors
from homodyne_dask.solver.normal_equations import JointEquations, deviation
from homodyne_dask.solver.reduce import ReducedProblem
from homodyne_dask.store.scan import Selection, open_selection
from homodyne_dask.sweep.blocks import NO_COST, Cost
from homodyne_dask.sweep.sweep import Sweep
from homodyne_dask.sweep.tasks import Task

LOG = logging.getLogger(__name__)
TIMED = 2
"""Groups that are computed in this process, by which the time of the others is estimated."""
MIN_SECONDS = 1.0
"""Estimated time of the others above which they go to workers that run."""
START_SECONDS = 4.0
"""Time that workers must save to be started, in 2 to 4 s. Threads would wait for each other in NumPy."""
TASK_SECONDS = 0.25
"""Estimated time of a task: Dask takes 8 ms of the driver for each."""
MOST_BYTES = 64e6
"""Memory that the noise of a bin may take on a worker, which a plan has no more for."""
PROGRESS_INTERVAL = 0.4
NO_CELLS = AveragedCells(
    [], np.empty((0, 0)), np.empty((0, 0), int), [], np.empty(0, int), np.empty(0, int)
)
NO_FRAMES = BinFrames((0, 0), np.empty(0, bool), np.empty(0), 1)


class BinContext(NamedTuple):
    selection: Selection
    problem: Problem
    theta: Theta
    units: tuple[Which, Moved, Float[np.ndarray, "m k"] | None]
    """As the last three of a `FittedPoint`."""
    grid: CellGrid


def noise_of_groups(
    context: BinContext, groups: list[list[BinData]], _: None
) -> tuple[list[list[BinNoise] | None], Cost]:
    scan, problem = open_selection(context.selection), context.problem
    point = evaluation_of(problem.model).point(problem, context.theta, scan.time)
    fitted = FittedPoint(point, scan.time, *context.units)
    averaged, sigma_row = _stored(context.selection, problem.min_lag, nodes_of(problem))
    fine = FineAverages(fitted, (data.place for group in groups for data in group), averaged)

    def whole(data: BinData) -> BinData:
        return data._replace(
            fine=fine,
            averaged=averaged.of_bins([data.bin]),
            frames=BinFrames(scan.frames, scan.use, sigma_row[data.bin, scan.use], problem.min_lag),
        )

    with one_blas_thread():
        noises = [noise_of_group(fitted, context.grid, [*map(whole, group)]) for group in groups]
    return noises, NO_COST


BIN_NOISE = Task(noise_of_groups, "noise", "for the noise of bins")


@lru_cache(maxsize=2)
def _stored(
    selection: Selection, min_lag: int, nodes: int
) -> tuple[AveragedCells, Float[np.ndarray, "bin t"]]:
    scan = open_selection(selection)
    return stored_cells(scan, min_lag, nodes), scan.sigma_row


@dataclass
class BinExecutor:
    passes: Sweep
    doing: Callable[[str], None]
    bins: int = 0
    done: int = 0
    said: float = 0.0

    def noises(
        self, context: BinContext, stored: bool, of_group: OfGroup, groups: list[list[BinData]]
    ) -> Iterator[list[BinNoise] | None]:
        """Yield the noise of groups in their order; stored: whether workers have the averages, too."""
        self.bins, self.done, self.said = sum(map(len, groups)), 0, time.monotonic()
        # some ten arrays over pairs of blocks for each of the fields 1, f and its derivatives
        needed = 10 * 8 * (2 + int(context.units[0].sum())) * context.grid.most**2
        on_workers, seconds = stored and needed <= MOST_BYTES, np.inf
        for n, group in enumerate(groups):
            if on_workers and n == TIMED and self._workers_save(seconds * (len(groups) - n)):
                number = max(round(TASK_SECONDS / seconds), 1)
                tasks = [groups[k : k + number] for k in range(n, len(groups), number)]
                try:
                    yield from self._on_workers(context, tasks)
                    return
                # the passes are done: workers that are lost, or do not start, must not cost their result
                except Exception as e:
                    LOG.warning("the noise of bins is computed in this process: %s", e)
                    on_workers = False
            began = time.perf_counter()
            yield of_group(group)
            seconds = min(seconds, time.perf_counter() - began)
            self._add(len(group))

    @property
    def _have_cores(self) -> bool:
        """Whether the workers of the passes have more cores: one that has a GPU here is a single process."""
        client: Any = self.passes.client
        if client is None or not self.passes.context.source.device:
            return client is not None
        connect, *_ = _with_dask()
        return not connect.on_this_machine(client.scheduler.address)

    def _workers_save(self, seconds: float) -> bool:
        if self._have_cores:
            return seconds > MIN_SECONDS
        return not worker_address() and seconds * (1 - 1 / cores()) > START_SECONDS

    def _on_workers(
        self, context: BinContext, tasks: list[list[list[BinData]]]
    ) -> list[list[BinNoise] | None]:
        _, local, distributed_tasks = _with_dask()
        noises: dict[int, list[list[BinNoise] | None]] = {}
        small = {"averaged": NO_CELLS, "frames": NO_FRAMES, "fine": None}  # workers read these
        sent = [[[data._replace(**small) for data in group] for group in task] for task in tasks]
        running = self.passes.client if self._have_cores else None
        with local.local_cluster() if running is None else nullcontext(running) as client:
            local.workers_of(client)  # waits for the first, but not for ever
            arrived = distributed_tasks.computed_on_cluster(
                client, context, sent, {}, BIN_NOISE, None
            )
            for n, of_groups, _ in arrived:
                noises[n] = of_groups
                self._add(sum(map(len, tasks[n])))
        return [of_group for n in range(len(tasks)) for of_group in noises[n]]

    def _add(self, bins: int) -> None:
        self.done += bins
        if time.monotonic() - self.said > PROGRESS_INTERVAL:
            self.said = time.monotonic()
            self.doing(f"speckle noise: {self.done} of {self.bins} bins")


def _with_dask():
    from homodyne_dask.cluster import connect, local  # lazy: it loads Dask,
    from homodyne_dask.sweep import distributed_tasks  # lazy: which few fits need after a pass

    return connect, local, distributed_tasks


CERTAIN = 10.0
"""Standard errors of a contrast that no search of parameters finds in noise."""
FAR_FROM_CORRELATION = 0.05
"""Relative distance of the root of f from a field correlation, above which it is said."""


class OffsetDeviation(NamedTuple):
    """How far offsets are from 1, in units of the contrast of their bins: a weighted mean over all bins."""

    mean: float
    p: float


@dataclass(frozen=True)
class SpeckleErrors:
    """Errors of a fit from the covariance of c2 for counted photons of Gaussian speckle."""

    covariance: ThetaMatrix
    """Of theta; NaN in the rows of parameters that did not move, or if the data do not determine all."""
    dof: Theta
    scaling: LinearParams | None
    """Errors of (offset, contrast); NaN where they are fixed, at a bound or unknown. None where those for
    independent noise are right: of fits weighted by the inverse of its covariance."""
    pixels: PerBin
    """P, independent pixels, the likeliest; NaN without a pair."""
    mean_counts: PerBin
    """μ, counts per pixel and frame, the likeliest where they are not known."""
    bins: dict[int, BinNoise]
    joint: JointEquations
    """Of the parameters of theta by which `bins` have derivatives."""
    shared: SharedSpeckle
    """Which of `bins` see the same speckle."""
    offset: OffsetDeviation | None = None
    """None where no offset is free, or no error of one is known."""
    smoothed: bool = False
    """Whether c2 was smoothed before it was ingested."""

    @cached_property
    def sharing(self) -> float:
        """How many bins see one speckle pattern, on average: they tell as much as one."""
        return self.shared.mean_count(self.bins)

    @cached_property
    def p_value(self) -> float:
        """The probability of so large a χ² of the whitened cells of all bins, given the scatter of pairs."""
        chisqr = sum(noise.chisqr for noise in self.bins.values())
        freedom = sum(fit.freedom for fit in self.fits)
        return float(chdtrc(freedom / self.sharing, chisqr / self.sharing))

    @property
    def fits(self) -> list[NoiseFit]:
        return [noise.fit for noise in self.bins.values()]

    @cached_property
    def objection(self) -> str | None:
        """Why the noise is not that of speckle and counting: it is larger than that of one pixel, its means
        over cells deviate by more than pairs scatter, or the residuals are not normal."""
        if self.smoothed:
            return "smoothed"
        pixels = np.array([fit.pixels[fit.likeliest] for fit in self.fits])
        least = np.array([fit.freedom / chdtri(fit.freedom, IMPROBABLE) for fit in self.fits])
        if (pixels < least).any():
            return "large"
        if self.p_value < IMPROBABLE:
            return "deviating"
        # the test of Kolmogorov and Smirnov; values of bins that share speckle are not independent
        expected = ndtr(np.sort(np.concatenate([fit.whitened for fit in self.fits])))
        n = len(expected)
        above, below = np.arange(1, n + 1) / n - expected, expected - np.arange(n) / n
        distance = np.maximum(above, below).max()
        if kolmogorov(np.sqrt(n / self.sharing) * distance) < IMPROBABLE:
            return "not-normal"
        return None

    @property
    def of_theta(self) -> NoiseErrors:
        neighbours = bool(self.shared.neighbours) and self.shared.uncertainty < 1
        return NoiseErrors(self.covariance, self.dof, self.scaling, self.objection, neighbours)

    def sees_decay(self, contrast: PerBin) -> bool:
        """Whether the contrast of a bin is so far above its error that no test of a decay is needed."""
        if self.scaling is None or self.objection:
            return False
        return bool((contrast > CERTAIN * self.scaling[:, 1]).any())

    @property
    def distance(self) -> float:
        """The relative distance of √f of the model from a field correlation."""
        return max(noise.distance for noise in self.bins.values())


@one_blas_thread()
def speckle_errors(
    end: FitEnd,
    joint: JointEquations,
    averaged: AveragedCells,
    means: CellMeans | None = None,
    cache: NoiseCache | None = None,
    executor: BinExecutor | None = None,
    bins_together: int = 0,
) -> SpeckleErrors | None:
    """Return noise and errors; None where a bin has too few cells.

    joint: its equations of the parameters by which derivatives are taken. means: of data that are means over
    cells. cache: of the noise of the model of other scans. executor: computes the noise of bins.
    bins_together: how many there are in all, of scans that were fitted together.
    """
    request, reduced = end.request, end.reduced
    used = np.flatnonzero((reduced.count > 0) & ~reduced.undetermined).tolist()
    if not used:
        return None
    point, compute = fitted_point(end, joint), map
    grid = grid_of_errors(max(len(used), bins_together), outliers=reduced.gram.loss is not None)
    if executor is not None:
        # workers read the averages themselves, if these are in the store; they share no cache
        stored = means is None and averaged.known_shares is None and cache is None
        context = BinContext(request.scan.selection, request.problem, end.theta, point[2:], grid)
        compute = partial(executor.noises, context, stored)
    of_group = partial(noise_of_group, point, grid, cache=cache)
    bins = noise_of_bins(end, point, used, averaged, means, of_group, compute)
    if bins is None:
        return None
    noise = _NoiseOfFit(joint, bins, shared_speckle(request.scan, request.clusters, bins))
    errors = noise.propagated() if joint.determined.all() else noise.errors()
    return replace(errors, smoothed=request.scan.smoothed)


def errors_of_scans(
    joint: JointEquations,
    bins: dict[int, BinNoise],
    parameters: Mapping[int, tuple[Int[np.ndarray, " m"], Moved]],
    shared: SharedSpeckle,
) -> NoiseErrors:
    """Return the errors of several scans; parameters: of each bin, places among those moved, and sizes."""
    maps = {}
    for b, (place, size) in parameters.items():
        maps[b] = np.zeros((2 + joint.moved, 2 + len(place)))
        maps[b][:2, :2] = np.eye(2)
        maps[b][2 + place, 2 + np.arange(len(place))] = size / joint.size[place]
    return _NoiseOfFit(joint, bins, shared).propagated(maps).of_theta


def weighted_errors(
    joint: JointEquations, at_end: JointEquations, bins: dict[int, BinNoise], shared: SharedSpeckle
) -> SpeckleErrors:
    """Return the errors of a fit to cells that are weighted by the inverse of their covariance.

    H⁻¹ is their covariance, but for what bins of one speckle share. joint: equations of the fit for which
    weights were computed; at_end: of the result.
    """
    reduced, noise_of_fit = at_end.reduced, _NoiseOfFit(at_end, bins, shared)
    if not at_end.determined.all():
        return noise_of_fit.errors()
    summands = {}
    for b, noise in bins.items():
        slopes = np.zeros((len(noise.residual), len(joint.size)))
        slopes[:, : joint.moved] = reduced.contrast[b] * noise.cells.slopes.T
        slopes += np.stack([np.ones(len(slopes)), noise.cells.f], axis=1) @ joint.follow[b]
        slopes *= joint.size / at_end.size  # by the parameters in the units of the end
        to = at_end.inverse @ slopes.T @ noise.inverse
        covariance = likely_covariance(noise.of_cells, noise.fit)
        _, [relative] = log_variances(noise.of_cells.variances(to)[None], [noise.fit])
        summands[b] = _Propagated(to, covariance, variances(covariance, to), relative)
    sums = cache(lambda b: SpeckleOfSums.of(bins[b], summands[b].map))
    added = shared.added(bins, len(at_end.inverse), lambda a, b: sums(a).covariance_with(sums(b)))
    total, freedom = at_end.inverse + added.covariance, _freedom(summands, added)
    alone = np.zeros(len(reduced.count)) if at_end.linear else own_errors(reduced)[:, 0]
    weights = weights_of_offsets(reduced, np.hypot(at_end.of_scaling(total)[:, 0], alone))
    follow = weights @ at_end.follow[:, 0]
    variance = float(follow @ total @ follow + weights**2 @ np.nan_to_num(alone) ** 2)
    offset = offset_deviation(reduced, weights, variance, float(freedom.min(initial=np.inf)))
    return replace(noise_of_fit.errors(total, freedom), offset=offset)


def weights_of_offsets(reduced: ReducedProblem, error: PerBin) -> PerBin:
    """Return the weights of (offset - 1) in a mean, by errors of offsets; 0 without a free one."""
    contrast = np.where(reduced.contrast > 0, reduced.contrast, np.nan)
    error = np.where(reduced.at_bound[:, 0] | (reduced.columns.shape[1] == 0), np.nan, error)
    weight = np.nan_to_num((contrast / error) ** 2)
    return np.nan_to_num(weight / max(weight.sum(), np.finfo(float).tiny) / contrast)


def offset_deviation(
    reduced: ReducedProblem, weights: PerBin, variance: float, freedom: float
) -> OffsetDeviation | None:
    """Return the mean deviation by these weights; None where nothing is known of it."""
    if not (weights.any() and variance > 0):
        return None
    mean = float(weights @ np.nan_to_num(reduced.offset - 1))
    return OffsetDeviation(mean, float(2 * stdtr(freedom, -abs(mean) / variance**0.5)))


class _Propagated(NamedTuple):
    """The noise of one bin in the scaled parameters, or in other combinations of its sums."""

    map: Float[np.ndarray, "n column"]
    """From the sums of a bin to the combinations."""
    covariance: Float[np.ndarray, "column column"]
    """Of the sums."""
    size: Vector
    """Variances of the combinations: the exponential of their mean logarithm over likely P and μ."""
    relative: Vector
    """The variance of that logarithm."""


def _freedom(summands: dict[int, _Propagated], added: Added) -> Vector:
    """Return the degrees of freedom of sums over bins, of which those of one speckle are estimated as one."""
    sizes = {b: noise.size.copy() for b, noise in summands.items()}
    for pair, half in added.variances.items():
        for b in pair:
            sizes[b] += half
    deviations = {b: sizes[b] * np.sqrt(noise.relative) for b, noise in summands.items()}
    spread = np.sum([deviation**2 for deviation in deviations.values()], axis=0)
    for (a, b), share in added.shares.items():
        spread += 2 * share**2 * deviations[a] * deviations[b]
    neighbours = [half for pair, half in added.variances.items() if added.shares[pair] < 1]
    spread += (2 * added.uncertainty * np.sum(neighbours, axis=0)) ** 2
    total = np.sum(list(sizes.values()), axis=0)
    return 2 * total**2 / np.maximum(spread, np.finfo(float).tiny)


@dataclass(frozen=True)
class _NoiseOfFit:
    joint: JointEquations
    bins: dict[int, BinNoise]
    shared: SharedSpeckle

    def errors(
        self,
        total: Matrix | None = None,
        freedom: Vector | None = None,
        scaling: LinearParams | None = None,
    ) -> SpeckleErrors:
        """Return the errors by the covariance and freedom of the scaled parameters; without, all unknown."""
        joint, bins = self.joint, self.bins
        which, (pixels, counts) = joint.which, np.full((2, len(joint.reduced.count)), np.nan)
        for b, fit in ((b, noise.fit) for b, noise in bins.items()):
            pixels[b] = bins[b].contrast_ratio ** 2 * fit.pixels[fit.likeliest]
            counts[b] = fit.mean_counts[fit.likeliest] / bins[b].contrast_ratio
        theta, dof = np.full((joint.moved, joint.moved), np.nan), np.full(len(which), np.nan)
        if total is not None and freedom is not None:
            theta, dof[which] = joint.of_theta(total), freedom[: joint.moved]
        covariance = expanded(theta, which)
        return SpeckleErrors(covariance, dof, scaling, pixels, counts, bins, joint, self.shared)

    def propagated(
        self, to_scans: Mapping[int, Float[np.ndarray, "column k"]] | None = None
    ) -> SpeckleErrors:
        """Return the errors; to_scans: of each bin, from the fields of its scan's parameters."""
        reduced, joint = self.joint.reduced, self.joint
        maps = {}
        for b in self.bins:  # one by one: with the parameters of all scans they are large
            scores = self._scores(b)
            maps[b] = scores if to_scans is None else scores @ to_scans[b]
        efficiency = 1.0
        if reduced.noise is not None and len(joint.inverse):
            # the Hessian under a loss over that of least squares: most noise lies where both are alike
            normals = [scores @ self.bins[b].weights @ scores.T for b, scores in maps.items()]
            least_squares = np.sum(normals, axis=0)
            efficiency = len(least_squares) / float(np.trace(joint.inverse @ least_squares))
        summands, along = (
            {b: self._of_bin(b, efficiency * to @ scores) for b, scores in maps.items()}
            for to in (joint.inverse, joint.to_axes)
        )
        freedom = _freedom(summands, self._shared(summands))
        # along the axes: of a combination of strongly correlated parameters theirs leave only rounding
        shared = self._shared(along).covariance
        # as one product: hundreds of scans have as many parameters, and thousands of bins
        noises = np.concatenate([noise.map @ noise.covariance for noise in along.values()], axis=1)
        total = noises @ np.concatenate([noise.map for noise in along.values()], axis=1).T + shared
        size = np.sum([noise.size for noise in along.values()], axis=0) + np.diag(shared)
        scale = np.sqrt(np.maximum(size, 0) / np.maximum(np.diag(total), np.finfo(float).tiny))
        total = joint.axes @ (total * np.outer(scale, scale)) @ joint.axes.T
        of_priors = joint.caused_by(joint.prior.scores)
        freedom = with_known(freedom, np.diag(total), np.diag(of_priors))
        total = total + of_priors
        scaling = self._scaling_errors(summands, total)
        offset = self._mean_offset(summands, scaling)
        return replace(self.errors(total, freedom, scaling), offset=offset)

    def _scores(self, bin: int) -> Float[np.ndarray, "n column"]:
        """Return the map from Σ w r, Σ w f r and Σ w ∂f/∂θ r of a bin to scores of the scaled parameters."""
        joint, reduced, m = self.joint, self.joint.reduced, self.joint.moved
        scores = np.zeros((len(joint.size), 2 + m))
        scores[:m, :2] = -reduced.projection[bin][:, joint.which].T / joint.size[:m, None]
        scores[:m, 2:] = reduced.contrast[bin] * np.eye(m)
        if joint.linear:
            of_linear = np.einsum("zy,m->zmy", np.eye(2), reduced.columns[bin]).reshape(-1, 2)
            scores[m:, :2] = of_linear / joint.size[m:, None]
        return scores

    def _of_bin(self, bin: int, to: Float[np.ndarray, "n column"]) -> _Propagated:
        fields, fit = self.bins[bin].of_fields, self.bins[bin].fit
        [log_size], [relative] = log_variances(fields.variances(to)[None], [fit])
        return _Propagated(to, likely_covariance(fields, fit), np.exp(log_size), relative)

    def _shared(self, summands: dict[int, _Propagated]) -> Added:
        def of_sums(a: int, b: int) -> Matrix:
            return summands[a].map @ self._between(a, b) @ summands[b].map.T

        return self.shared.added(summands, len(next(iter(summands.values())).map), of_sums)

    @cached_property
    def _between(self) -> Callable[[int, int], Matrix]:
        bins = self.bins
        return cache(lambda a, b: shared_fields(bins[a], bins[b]))

    def _mean_offset(
        self, summands: dict[int, _Propagated], scaling: LinearParams
    ) -> OffsetDeviation | None:
        """Return how far offsets are from 1, by the noise of each and of the parameters they follow."""
        joint, reduced = self.joint, self.joint.reduced
        weights = weights_of_offsets(reduced, scaling[:, 0])
        follow, of_offset = weights @ joint.follow[:, 0], {}
        for b, noise in summands.items():
            row = follow @ noise.map
            if weights[b] and not joint.linear:
                row[:2] += weights[b] * reduced.inverse[b, 0]
            of_offset[b] = self._of_bin(b, row[None])
        shared = self._shared(of_offset)
        variance = np.sum([noise.size for noise in of_offset.values()], axis=0)
        variance = variance + np.diag(shared.covariance)
        of_priors = float(follow @ joint.caused_by(joint.prior.scores) @ follow)
        freedom = float(_freedom(of_offset, shared)[0])
        return offset_deviation(reduced, weights, float(variance[0]) + of_priors, freedom)

    def _scaling_errors(self, summands: dict[int, _Propagated], total: Matrix) -> LinearParams:
        """Return those of (offset, contrast), by the noise of all bins in theta, and that of their own."""
        joint, reduced = self.joint, self.joint.reduced
        errors = np.full((len(reduced.count), 2), np.nan)
        if joint.linear:
            errors[list(summands)] = joint.of_scaling(total)[list(summands)]
        elif reduced.columns.shape[1]:
            for b, noise in summands.items():
                alone = joint.follow[b] @ noise.map
                others = variances(total, joint.follow[b]) - variances(noise.covariance, alone)
                alone[:, :2] += reduced.inverse[b] * reduced.columns[b, 0]
                errors[b] = deviation(variances(noise.covariance, alone) + np.maximum(others, 0))
        return np.where(reduced.at_bound, np.nan, errors)
