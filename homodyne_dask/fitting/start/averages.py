"""The averages over age and lag from which initial values are found: Grams, the best of many points, fits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from homodyne_dask.errors import OptionError, SelectionError
from homodyne_dask.kernels.backend_interface import Problem
from homodyne_dask.kernels.compiled import plain_kernel
from homodyne_dask.kernels.devices import float64_on_cpu
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.kernels.separable_backend import (
    Tables,
    at_times,
    bin_argument,
    f_of,
    f_with_derivatives,
    separable_point,
    tables_of,
)
from homodyne_dask.kernels.transport_evaluation import f_and_derivatives, rate_values
from homodyne_dask.kernels.user_function_checks import check_finite
from homodyne_dask.models.parameters import Search, shortest
from homodyne_dask.models.rate_forms import integrated
from homodyne_dask.models.shear_factor import parabolic_factor, wave
from homodyne_dask.models.transport import (
    BinScales,
    Convention,
    Shear,
    Times,
    bin_scales,
    frame_spacing,
    positive_times,
    rows_of,
)
from homodyne_dask.models.user_defined import Bin, SeparableModel
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.array_shapes import Moments
from homodyne_dask.solver.reduce import ReducedProblem, reduce
from homodyne_dask.solver.scaling_modes import Scaling, ScalingPrior
from homodyne_dask.store.scan import Cuts, Scan
from homodyne_dask.sweep.cell_sums import edges_inside
from homodyne_dask.sweep.sweep import Passes

Theta = Float[np.ndarray, " p"]
MIN_CELLS = 30
"""If fewer stored averages lie in a selection, others are averaged over, by one pass."""
LEAST_OF_PAIRS, LEAST_OF_FEW, FEW_PAIRS = 0.5, 0.95, 10_000
"""If the stored averages contain a smaller share of the selected pairs, other cells are averaged, too. The
larger share applies where they contain fewer than FEW_PAIRS pairs of a bin, so that each counts."""
MANY_BINS, Q_STEP = 100, 0.01
"""More bins are averaged over sectors and rings with nearly the same f, before initial values are searched;
and the relative distance of such rings, whose rates differ by twice as much."""
RISES = 5.0
"""Standard deviations by which c2 is larger at long lags than at short ones where it rises."""
STEPS_PER_AGE = 128
"""Integrals use steps of one frame up to this frame, and of age / STEPS_PER_AGE after it."""


@dataclass(frozen=True)
class BinnedAverages:
    """The averages of c2 over cells of age and lag; all bins have the same cells."""

    problem: Problem
    time: Float[np.ndarray, " t"]
    c2: Float[np.ndarray, "bin cell"]
    weight: Float[np.ndarray, "bin cell"]
    """Sum of the weights of the averaged pairs; 0 where there are none."""
    t1: Float[np.ndarray, " cell"]
    t2: Float[np.ndarray, " cell"]
    q: Float[np.ndarray, " bin"]
    phi: Float[np.ndarray, " bin"]

    def differences(self, theta: Theta) -> Float[np.ndarray, "rows cell"]:
        """Return u(t2) - u(t1) of every row of integrals at the cells; the last two: strain G, and C of J."""
        problem, (t, steps) = self.problem, self._times_and_steps
        return self._between(rows_of(problem.model, problem.convention, theta, t, steps))

    def diffusion_between(self, thetas: Float[np.ndarray, "n p"]) -> Float[np.ndarray, "n cell"]:
        """Return C(t2) - C(t1) of the cells, C = ∫ J dt, at several thetas."""
        t, steps = self._times_and_steps
        return self._between(integrated(rate_values(self.problem, "J", t, thetas), steps))

    def _between(self, rows: Float[np.ndarray, "row node"]) -> Float[np.ndarray, "row cell"]:
        before, share = self._places
        low = rows.take(before, axis=1)
        at_t1, at_t2 = np.split(low + (rows.take(before + 1, axis=1) - low) * share, 2, axis=1)
        return at_t2 - at_t1

    def shear_factor(self, phase: Float[np.ndarray, "*at"]) -> Float[np.ndarray, "*at"]:
        """Return the factor that shear of a phase makes of f."""
        if self.problem.model.shear is Shear.PARABOLIC:
            with np.errstate(divide="ignore"):
                return parabolic_factor(wave(phase))[0]
        power = 4 if self.problem.convention is Convention.HOMODYNE else 2
        return np.sinc(phase / np.pi) ** power

    def at_cells(
        self, cells: Int[np.ndarray, " some"] | Bool[np.ndarray, " cell"]
    ) -> "BinnedAverages":
        c2, weight = self.c2[:, cells], self.weight[:, cells]
        return replace(self, c2=c2, weight=weight, t1=self.t1[cells], t2=self.t2[cells])

    def of_bins(self, bins: list[int]) -> "BinnedAverages":
        parts = {name: getattr(self, name)[bins] for name in ("c2", "weight", "q", "phi")}
        return replace(self, **parts)

    def up_to_lag(self, longest: float) -> "BinnedAverages":
        return replace(self, weight=np.where(self.t2 - self.t1 <= longest, self.weight, 0.0))

    def scales(self, theta: Theta, phi: Float[np.ndarray, " bin"]) -> BinScales:
        problem = self.problem
        return bin_scales(
            problem.model, problem.convention, theta, self.q, phi, problem.gap, self.spacing
        )

    def of_cells(
        self, sums: Float[np.ndarray, "bin cell 4"], cells: Int[np.ndarray, " some"]
    ) -> "BinnedAverages":
        """Return averages over other cells; sums: of the weights, and of these times c2 - 1, t1 and t2."""
        weight, total = sums[:, cells, 0], sums[:, cells].sum(0)
        with np.errstate(invalid="ignore", divide="ignore"):
            c2 = np.nan_to_num(1 + sums[:, cells, 1] / weight, nan=1.0)
        t1, t2 = total[:, 2] / total[:, 0], total[:, 3] / total[:, 0]
        return replace(self, c2=c2, weight=weight, t1=t1, t2=t2)

    @cached_property
    def spacing(self) -> float:
        return frame_spacing(self.time, self.problem.convention)

    @cached_property
    def _nodes(self) -> Float[np.ndarray, " node"]:
        """The frame times between which the rates are integrated."""
        frames, last = [0], len(self.time) - 1
        while frames[-1] < last:
            frames.append(min(frames[-1] + max(1, frames[-1] // STEPS_PER_AGE), last))
        return self.time[frames]

    @cached_property
    def _times_and_steps(self) -> tuple[Times, Float[np.ndarray, " m"]]:
        unit = self.spacing if self.problem.convention is Convention.HOMODYNE else 1
        return positive_times(self._nodes, self.spacing), np.diff(self._nodes) / unit

    @cached_property
    def _places(self) -> tuple[Int[np.ndarray, " 2cell"], Float[np.ndarray, " 2cell"]]:
        """Of t1, then of t2 of the cells the nodes before them, and how far they are to the next."""
        nodes, t = self._nodes, np.concatenate([self.t1, self.t2])
        before = np.clip(np.searchsorted(nodes, t, side="right") - 1, 0, len(nodes) - 2)
        return before, (t - nodes[before]) / (nodes[before + 1] - nodes[before])

    def __call__(self, theta: Theta) -> Gram:
        model = self.problem.model
        of_model = self._transport_moments if model.derivatives_by_hand else self._moments
        return Gram(of_model(theta), (self.weight > 0).sum(1))

    def _transport_moments(self, theta: Theta) -> Moments:
        differences, scales = self.differences(theta), self.scales(theta, self.phi)
        with np.errstate(all="ignore"):  # a fit goes back from where sums are not finite
            f, derivatives = f_and_derivatives(self.problem, scales, differences[1:])
            data = np.stack([np.ones_like(f), self.c2 - 1, f], axis=1)
            X = np.concatenate([data, derivatives], axis=1) * np.sqrt(self.weight)[:, None]
            return X @ X.swapaxes(1, 2)

    def _moments(self, theta: Theta) -> Moments:
        point = separable_point(self.problem, theta, self.time)
        tables = point.tables, point.derivatives
        at_t1, at_t2 = (at_times(tables, self.time, t) for t in (self.t1, self.t2))
        bins = bin_argument(self.problem, self.q, self.phi)
        data = self.c2, self.weight, point.theta, at_t1, at_t2, bins
        with float64_on_cpu():
            return np.asarray(_moments(*data, model=self.problem.model))


def binned_averages(scan: Scan, problem: Problem, data: Passes | None = None) -> BinnedAverages:
    cuts = scan.cuts(problem.min_lag)
    few, pairs = len(cuts.t1) < MIN_CELLS, data is not None and scan.cells is None
    read = pairs and not scan.is_table and (few or _misses_pairs(scan, cuts, problem.min_lag))
    if few and not read:
        cuts = replace(scan, frames=(0, scan.n_frames)).cuts()
    i, j = (np.searchsorted(scan.time, t).clip(0, scan.n_frames - 1) for t in (cuts.t1, cuts.t2))
    # of a pair at the mean times of each cell
    weight = 1 / (scan.sigma_row[:, i] * scan.sigma_row[:, j]) ** 2
    stored = BinnedAverages(
        problem=problem,
        time=scan.time,
        c2=np.nan_to_num(cuts.c2, nan=1.0),
        weight=np.where(np.isfinite(cuts.c2), cuts.count * weight, 0.0),
        t1=cuts.t1,
        t2=cuts.t2,
        q=scan.q_or_one,
        phi=scan.phi,
    )
    if read and data is not None:
        sums = data.cells(edges_inside(scan.frames, problem.min_lag)).weighted
        stored = stored.of_cells(sums, np.flatnonzero(sums[..., 0].any(0)))
    if not stored.weight.any():
        raise SelectionError(
            f"all pairs of the {len(scan.bins)} selected bins are masked or unknown: "
            f"widen the selection"
        )
    return stored


def _misses_pairs(scan: Scan, cuts: Cuts, min_lag: int) -> bool:
    if scan.frames == (0, scan.n_frames) and not scan.excluded_frames:
        return False
    whole = replace(scan, frames=(0, scan.n_frames), excluded_frames=())
    selected = whole.cuts(min_lag).count.sum() * (scan.use.sum() / whole.use.sum()) ** 2
    least = LEAST_OF_FEW if cuts.count.sum(1).max() < FEW_PAIRS else LEAST_OF_PAIRS
    return bool(cuts.count.sum() < least * selected)


def averaged_over_bins(summary: BinnedAverages, scan: Scan, q_step: float = 0.0) -> BinnedAverages:
    """Return averages in which bins with one f are one, their weighted mean: those that several scans repeat,
    and, of many, sectors of a ring where f depends on q alone.

    q_step: relative distance of rings of many bins that are near enough to be one; 0 where none are.
    """
    many, q = len(summary.q) > MANY_BINS, summary.q
    if not many and len(np.unique(scan.scan_number)) < 2:
        return summary
    near_q = many and q_step > 0
    isotropic = many and summary.problem.model.isotropic
    phi = np.zeros(len(q)) if isotropic else np.nan_to_num(summary.phi)
    label = np.zeros(len(q)) if isotropic or near_q else scan.label
    ring = np.round(np.log(np.maximum(q, np.finfo(float).tiny)) / q_step) if near_q else q
    bins = np.stack([label, ring, phi, *(_apart(summary) if many else ())], axis=1)
    _, first, place = np.unique(bins, axis=0, return_index=True, return_inverse=True)
    weight, sums = np.zeros((2, len(first), len(summary.t1)))
    np.add.at(weight, place, summary.weight)
    np.add.at(sums, place, summary.weight * (summary.c2 - 1))
    mean_q = np.bincount(place, q) / np.bincount(place) if near_q else q[first]
    c2 = 1 + sums / np.where(weight > 0, weight, 1.0)
    return replace(summary, c2=c2, weight=weight, q=mean_q, phi=summary.phi[first])


def _apart(summary: BinnedAverages) -> tuple[Int[np.ndarray, " bin"], Bool[np.ndarray, " bin"]]:
    """Return numbers of the sets of cells that are known of each bin, and whether its c2 rises with the lag:
    the mean of bins that differ in these has another shape than each."""
    has_pairs = summary.weight > 0
    lag = summary.t2 - summary.t1
    weights = (summary.weight * late for late in (lag <= np.median(lag), lag > np.median(lag)))
    variance, rise = np.zeros((2, len(has_pairs)))
    for weight, sign in zip(weights, (-1, 1), strict=True):
        total = np.maximum(weight.sum(1), np.finfo(float).tiny)
        rise += sign * (weight * summary.c2).sum(1) / total
        variance += 1 / total
    return np.unique(has_pairs, axis=0, return_inverse=True)[1], rise > RISES * np.sqrt(variance)


def best_points(
    summary: BinnedAverages, search: Search, mode: str, best: int,
    points: Float[np.ndarray, "point p"],
) -> list[Theta]:  # fmt: skip
    chisqr = chisqr_at_points(summary, search, mode, points)
    if not np.isfinite(chisqr).any():
        raise_not_finite(summary, points[0])
    return [points[n] for n in np.argsort(chisqr)[:best] if np.isfinite(chisqr[n])]


def raise_not_finite(summary: BinnedAverages, theta: Theta) -> NoReturn:
    """Raise OptionError of a search without a finite χ², with the pair of times to blame, if any."""
    problem, time = summary.problem, summary.time
    frames = np.flatnonzero((time >= summary.t1.min()) & (time <= summary.t2.max()))
    check_finite(problem, theta, time, frames, summary.q, summary.phi, everywhere=True)
    raise OptionError(
        f"χ² of model {problem.model.name!r} is not finite at any point tried within its bounds: "
        f"give initial values"
    )


def chisqr_at_points(
    summary: BinnedAverages, search: Search, mode: str, points: Float[np.ndarray, "point p"]
) -> Float[np.ndarray, " point"]:
    """Return χ² of the averages at points; infinite where it is no number, or contrast is negative."""
    chisqr, pairs = np.full(len(points), np.inf), (summary.weight > 0).sum(1)
    with float64_on_cpu():
        of_points = _moments_of_points(
            summary.c2, summary.weight, points, summary.time, (summary.t1, summary.t2),
            bin_argument(summary.problem, summary.q, summary.phi), model=summary.problem.model,
        )  # fmt: skip
    for n, moments in enumerate(np.asarray(of_points)):
        reduced = reduce(Gram(moments, pairs), mode)
        # c2 must decay: contrast is not negative
        if np.isfinite(reduced.chisqr) and np.nanmedian(reduced.contrast) >= 0:
            chisqr[n] = reduced.chisqr + search.prior_chisqr(points[n])
    return chisqr


@plain_kernel("model")
def _moments(
    c2: Array, weight: Array, theta: Array, at_t1: tuple[Tables, Tables],
    at_t2: tuple[Tables, Tables], bins: Bin, *, model: SeparableModel,
) -> Array:  # fmt: skip
    def of_bin(y: Array, w: Array, bin: Bin) -> Array:
        f, derivatives = f_with_derivatives(model, theta, at_t1, at_t2, bin, y.shape)
        return _products(y, w, f, *derivatives)

    return jax.vmap(of_bin)(c2, weight, bins)


def _products(y: Array, w: Array, *columns: Array) -> Array:
    X = jnp.stack([jnp.ones_like(y), y - 1, *columns])
    X = jnp.where(w > 0, X * jnp.sqrt(w), 0.0)
    return X @ X.T


@plain_kernel("model")
def _moments_of_points(
    c2: Array, weight: Array, points: Array, time: Array, cells: tuple[Array, Array], bins: Bin,
    *, model: SeparableModel,
) -> Array:  # fmt: skip
    def at_point(theta: Array) -> Array:
        tables = tables_of(model, theta, time)
        t1, t2 = (jax.tree.map(lambda v, t=t: jnp.interp(t, time, v), tables) for t in cells)

        def of_bin(y: Array, w: Array, bin: Bin) -> Array:
            return _products(y, w, f_of(model, theta, t1, t2, bin, y.shape))

        return jax.vmap(of_bin)(c2, weight, bins)

    return jax.lax.map(at_point, points)


PASSES_AT_ONCE, MAX_BLOCKS, MIN_SHARE_GAINED = 6, 7, 0.5
"""Passes after which fits that reach one minimum become one; how often they are made at most; and the least
share of the way to the lowest χ² by which they must lower that of a fit that goes on."""
AVERAGES_OPTIONS = lm.SolverOptions(max_passes=1000, decrement=1e-2)
"""An approximate optimum of the averages is enough."""


@dataclass(frozen=True)
class BinnedFit:
    """The state of a fit to averages, or of several that reached the same minimum."""

    state: lm.State
    starts: int = 1

    @property
    def lowest(self) -> lm.State:
        return self.state.lowest

    @property
    def chisqr(self) -> float:
        return self.lowest.reduced.chisqr

    def minimum(self, free: int | None = None) -> "Minimum":
        variance = np.nan if free is None else self.lowest.reduced.variance(free)
        return Minimum(self.lowest.theta, self.chisqr, self.starts, variance)


class Minimum(NamedTuple):
    theta: Theta
    chisqr: float
    """On the averages; NaN where the user gave theta."""
    starts: int
    variance: float = np.nan


@dataclass(frozen=True)
class BinnedFits:
    summary: Callable[[Theta], Gram]
    search: Search
    mode: str
    limits: ScalingPrior | None = None
    """Bounds and priors of contrast and offset; not used where f alone determines the parameters."""

    def started(self, thetas: Sequence[Theta]) -> list[BinnedFit]:
        evaluated = self._evaluated([lm.Trial(theta) for theta in thetas])
        return [
            BinnedFit(lm.initial_state(self.search, theta, reduced, AVERAGES_OPTIONS))
            for theta, reduced in zip(thetas, evaluated, strict=True)
        ]

    def advanced(self, ends: Sequence[BinnedFit], passes: int) -> list[BinnedFit]:
        states = [end.state for end in ends]
        passes_of_all = lm.iterate_several(self.search, self._evaluated, states, AVERAGES_OPTIONS)
        for after in islice(passes_of_all, passes):
            states = after
        return [replace(end, state=state) for end, state in zip(ends, states, strict=True)]

    def completed(self, ends: Sequence[BinnedFit]) -> list[BinnedFit]:
        """Return the minima of fits, the lowest first; a fit that comes closer to it too slowly stops."""
        free, ends = int(self.search.free.sum()), self.merged(ends)
        for _ in range(MAX_BLOCKS):
            if not any(end.state.outcome is lm.Outcome.RUNNING for end in ends):
                break
            before, ends = ends, self.advanced(ends, PASSES_AT_ONCE)
            lowest = min(end.chisqr for end in ends)
            for n, (start, end) in enumerate(zip(before, ends, strict=True)):
                above = end.chisqr - lowest - end.lowest.reduced.variance(free)
                if start.chisqr - end.chisqr < MIN_SHARE_GAINED * above:
                    ends[n] = replace(end, state=replace(end.state, outcome=lm.Outcome.MAX_PASSES))
            ends = self.merged(ends)
        return ends

    def ends(self, thetas: Sequence[Theta], passes: int) -> list[BinnedFit]:
        return self.merged(self.advanced(self.started(thetas), passes))

    def chisqr_at(self, thetas: Sequence[Theta]) -> list[float]:
        """Return χ² at each theta, without penalties; infinite where it is not a number."""
        evaluated = self._evaluated([lm.Trial(theta) for theta in thetas])
        return [end.chisqr if np.isfinite(end.chisqr) else np.inf for end in evaluated]

    def _evaluated(self, trials: Sequence[lm.Trial]) -> list[ReducedProblem]:
        evaluated = []
        for trial in trials:
            gram = self.summary(trial.theta)
            if self.mode == "shared":  # one contrast and offset: the sum of all bins
                gram = gram.wide
                gram = Gram(gram.moments.sum(0)[None], gram.pairs.sum(keepdims=True))
            prior = self.search.prior_terms(trial.theta)
            evaluated.append(reduce(gram, Scaling(prior=self.limits), prior=prior))
        return evaluated

    def merged(self, ends: Sequence[BinnedFit]) -> list[BinnedFit]:
        distinct: list[BinnedFit] = []
        finite = [end for end in ends if end.lowest.reduced.finite]
        # each minimum is kept as its lowest end
        for end in sorted(finite, key=lambda end: end.chisqr):
            for n, other in enumerate(distinct):
                if self.same_minimum(other, end):
                    distinct[n] = replace(other, starts=other.starts + end.starts)
                    break
            else:
                distinct.append(end)
        return distinct

    def same_minimum(self, lower: BinnedFit, higher: BinnedFit) -> bool:
        """Return whether two fits are at one minimum: χ² within σ², theta within three standard errors."""
        low, high = lower.lowest, higher.lowest
        variance = low.reduced.variance(int(self.search.free.sum()))
        difference = shortest(high.theta - low.theta, self.search.period)
        distance = difference @ low.reduced.hessian @ difference
        better = abs(high.reduced.chisqr - low.reduced.chisqr)
        close = max(variance, low.reduced.rounding)
        return bool(better < close and distance < 9 * close)
