"""A logarithmic scan of χ² of the averages; and fits to these, several at a time.

χ² of the averages needs only Σ w f², Σ w f, Σ w f y per bin, and f is the product of a factor that
depends on (D0, alpha) and one that depends on (γ̇, beta): all combinations are matrix products.
phi0 needs no more of these products: χ² of a bin depends on it only through the size of its shear.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int
from numpy.typing import ArrayLike

from homodyne_dask.fitting.start.averages import BinnedAverages, Theta
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.models.parameters import Search, shortest
from homodyne_dask.models.transport import Convention, frame_spacing
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.reduce import ReducedProblem, reduce
from homodyne_dask.solver.scaling_modes import Scaling, ScalingPrior

EXPONENTS = (-1.5, -1.0, -0.5, 0.0, 0.5, 1.0)
POINTS_PER_DECADE = 4
N_ANGLES = 36
MAX_CELLS = 400
"""Most averages that are scanned, chosen at random from all."""
MAX_DIFFUSION_PAIRS = 24
"""Most pairs (D0, alpha) that are scanned in all directions of flow: those with the lowest bound of χ²."""
N_BEST_FIRST = 2
"""Number of points with the lowest χ² that come before the minima of the map."""
VALUES_PER_CALL = 50_000
"""Values of a table that are interpolated at once, so that they fit the cache of a core."""

Floats = Float[np.ndarray, "row cell"] | Float32[np.ndarray, "row cell"]


def scan_points(grid: "Grid", best: int) -> list[Theta]:
    """The best two points come first, then minima of the map, then distant points.

    The best cells are often neighbours, because χ² changes more with a step of alpha than with all of
    phi0; the map over (γ̇, phi0), minimized over the others, shows the other directions of flow.
    """
    summary, has_shear = grid.summary, grid.summary.problem.model.shear
    S = grid.shear_factors() if has_shear else np.ones((1, len(summary.t1)))
    S = np.broadcast_to(S.astype(np.float32), (len(summary.q), *S.shape))
    chisqr = grid.chisqr_of_pairs(summary, S)
    if not has_shear:
        order = np.argsort(chisqr.sum(0)[:, 0])
        return [grid.theta(*at) for at in _distant(order[:, None], best)]
    chisqr = chisqr.reshape(*chisqr.shape[:2], len(grid.betas), len(grid.strains))
    # each bin at its own best strain rate: no direction of flow can be lower
    pairs = np.argsort(chisqr.min(3).sum(0).min(1))[:MAX_DIFFUSION_PAIRS]
    betas = list(enumerate(grid.betas))
    total = np.array([[grid.map_of(chisqr[:, n, m], beta) for m, beta in betas] for n in pairs])
    flat, most = total.ravel(), min(400 * best, total.size)
    order = np.argpartition(flat, most - 1)[:most]
    order = order[np.argsort(flat[order])]
    distant = _distant(np.transpose(np.unravel_index(order, total.shape)), best)
    minima = []
    for shear, angle in local_minima(total.min((0, 1))):
        flow, beta = divmod(int(np.argmin(total[:, :, shear, angle])), total.shape[1])
        minima.append((flow, beta, shear, angle))
    chosen = dict.fromkeys([*distant[:N_BEST_FIRST], *minima, *distant[N_BEST_FIRST:]])
    return [grid.theta(int(pairs[flow]), *at) for flow, *at in list(chosen)[:best]]


def local_minima(chisqr: Float[np.ndarray, "shear angle"]) -> list[tuple[int, int]]:
    """Return the cells with no lower neighbour, best first; angles are periodic."""
    rows = len(chisqr)
    walled = np.pad(chisqr, ((1, 1), (0, 0)), constant_values=np.inf)
    low = np.ones(chisqr.shape, bool)
    for up in (0, 1, 2):
        for turn in (-1, 0, 1):
            low &= chisqr <= np.roll(walled, turn, axis=1)[up : up + rows]
    at = np.argwhere(low)
    return [(int(n), int(m)) for n, m in at[np.argsort(chisqr[low])]]


def distinct[Point](
    points: Iterable[Point], near: Callable[[Point, Point], bool], most: int
) -> list[Point]:
    chosen: list[Point] = []
    for point in points:
        if not any(near(point, other) for other in chosen):
            chosen.append(point)
        if len(chosen) == most:
            break
    return chosen


def _distant(points: Int[np.ndarray, "point axis"], best: int) -> list[tuple[int, ...]]:

    def near(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
        return max(abs(a - b) for a, b in zip(one, other, strict=True)) <= 1

    return distinct(map(tuple, points.tolist()), near, best)


def given_or(search: Search, name: str, otherwise: ArrayLike) -> Float[np.ndarray, " n"]:
    """Return the value that a user gave, or the others inside its bounds; 0 where a model has no such."""
    if name not in search.names:
        return np.zeros(1)
    at = search.names.index(name)
    if np.isfinite(search.start[at]):
        return search.start[at : at + 1]
    return np.unique(np.clip(otherwise, search.lower[at], search.upper[at]))


class Grid:
    """The points of the scan: (D0, alpha) × (shear, beta) × phi0, without those that the user fixed."""

    def __init__(self, summary: BinnedAverages, search: Search) -> None:
        self.search, self.whole = search, summary
        if len(summary.t1) > MAX_CELLS:
            some = np.random.default_rng(0).permutation(len(summary.t1))[:MAX_CELLS]
            summary = summary.at_cells(np.sort(some))
        self.summary = summary
        time, problem = summary.time, summary.problem
        self.middle = float(np.median(time[time > 0]))
        self.offset = self._amplitude("D_offset", 0.0)
        span, step = float(time[-1] - time[0]), frame_spacing(time)
        q2 = float(np.nanmedian(summary.q**2))
        rates = _log_spaced(0.05 / (q2 * span), 5 / (q2 * step))
        pairs = product(self._exponents("alpha"), rates)
        pairs = ((self._amplitude("D0", rate, alpha), alpha) for alpha, rate in pairs)
        self.diffusion_pairs = list(dict.fromkeys(pairs))
        if not problem.model.shear:
            return
        self.shear_offset = self._amplitude("gamma_dot_t_offset", 0.0)
        self.betas = self._exponents("beta")
        self.step = step if problem.convention is Convention.HOMODYNE else 1.0
        flat = np.zeros_like(summary.phi)
        self.reach = np.abs(summary.scales(problem.model.with_parts(), flat).s) / self.step
        # s·γ̇ at the middle of the record
        self.strains = _log_spaced(0.1 / span, 3 / step, 2 * POINTS_PER_DECADE)
        given = search.start[search.names.index("gamma_dot_t0")]
        shears = self.strains / float(np.median(self.reach))
        self.shears = np.array([given]) if np.isfinite(given) else shears
        at = search.names.index("phi0")
        low, width = search.lower[at], min(search.upper[at] - search.lower[at], 180.0)
        self.angles = given_or(search, "phi0", low + (np.arange(N_ANGLES) + 0.5) / N_ANGLES * width)

    def _exponents(self, name: str) -> list[float]:
        at = self.search.names.index(name)
        low, high = self.search.lower[at], self.search.upper[at]
        inside = [x for x in EXPONENTS if low <= x <= high]
        return given_or(self.search, name, inside or [(low + high) / 2]).tolist()

    def _amplitude(self, name: str, rate: float, exponent: float = 0.0) -> float:
        """Return the amplitude that gives `rate` at the middle of the record, inside its bounds."""
        return float(given_or(self.search, name, rate * self.middle**-exponent)[0])

    def theta(self, flow: int, beta: int = 0, shear: int = 0, angle: int = 0) -> Theta:
        D0, alpha = self.diffusion_pairs[flow]
        model = self.summary.problem.model
        theta = model.with_parts(diffusion=(D0, alpha, self.offset))
        if model.shear:
            exponent = self.betas[beta]
            amplitude = self._amplitude("gamma_dot_t0", self.shears[shear], exponent)
            rate = amplitude, exponent, self.shear_offset
            theta = model.with_parts(theta, shear_rate=rate, phi0=self.angles[angle])
        return self.search.inside(theta)

    def shear_factors(self) -> Float[np.ndarray, "shear cell"]:
        """Return S for every (beta, strain rate): the strain's shape in time times its size."""
        summary, factors = self.summary, []
        for beta in self.betas:
            rate = self.middle**-beta, beta, 0.0
            dG = summary.differences(summary.problem.model.with_parts(shear_rate=rate))[-2]
            factors.append(summary.shear_factor(self.strains[:, None] * (dG * self.step)))
        return np.concatenate(factors)

    def chisqr_of_pairs(
        self, summary: BinnedAverages, S: Float[np.ndarray, "bin shear cell"]
    ) -> Float[np.ndarray, "bin flow shear"]:
        of_rates = [(*pair, self.offset) for pair in self.diffusion_pairs]
        thetas = [summary.problem.model.with_parts(diffusion=of) for of in of_rates]
        dC = np.array([summary.differences(theta)[-1] for theta in thetas])
        k = summary.scales(thetas[-1], summary.phi).k
        chisqr = np.empty((len(k), len(dC), S.shape[1]))
        for value in np.unique(k):
            E = np.exp(-value * dC).astype(S.dtype)
            for b in np.flatnonzero(k == value):
                chisqr[b] = chisqr_with_best_scaling(summary.c2[b] - 1, summary.weight[b], E, S[b])
        return chisqr

    def map_of(
        self, chisqr: Float[np.ndarray, "bin strain"], beta: float
    ) -> Float[np.ndarray, "shear angle"]:
        given, widest = len(self.shears) == 1, self.reach.max()
        rates = np.maximum(np.abs(self.shears), 1e-300)  # f is that of the opposite rate
        rates = rates * (self.middle**beta if given else 1.0)
        table = ShearTable(self.strains / widest, chisqr, self.summary.phi, self.reach / widest)
        return table.map(rates, self.angles)


def _log_spaced(
    low: float, high: float, per_decade: int = POINTS_PER_DECADE
) -> Float[np.ndarray, " n"]:
    return np.geomspace(low, high, max(2, round(per_decade * np.log10(high / low)) + 1))


@dataclass(frozen=True)
class ShearTable:
    """χ² of every bin over the size of its shear, with the best offset and contrast."""

    sizes: Float[np.ndarray, " row"]
    """Log-spaced, for the bin of largest q in its own direction."""
    chisqr: Float[np.ndarray, "bin row"]
    phi: Float[np.ndarray, " bin"]
    share: Float[np.ndarray, " bin"]
    """Shear of each bin over that of the bin of largest q."""

    def at(
        self, sizes: Float[np.ndarray, "*#at"], angles: Float[np.ndarray, "*#at"]
    ) -> Float[np.ndarray, "*at"]:
        bins, rows = self.chisqr.shape
        lines = (bins, *(1,) * angles.ndim)
        phi, share = self.phi.reshape(lines), self.share.reshape(lines)
        relative_shear = np.maximum(np.abs(np.cos(np.deg2rad(angles - phi))) * share, 1e-12)
        step = float(np.log(self.sizes[1] / self.sizes[0]))
        place = (np.log(sizes / self.sizes[0]) + np.log(relative_shear)) / step
        np.clip(place, 0.0, rows - 1 - 1e-9, out=place)
        below = place.astype(np.int32)
        place -= below
        below += np.arange(0, bins * rows, rows, dtype=np.int32).reshape(lines)
        low = self.chisqr.take(below)
        below += 1
        return (low + (self.chisqr.take(below) - low) * place).sum(0)

    def map(
        self, sizes: Float[np.ndarray, " size"], angles: Float[np.ndarray, " angle"]
    ) -> Float[np.ndarray, "size angle"]:
        few = max(1, VALUES_PER_CALL // (len(sizes) * len(self.phi)))
        cuts = range(0, len(angles), few)
        return np.hstack([self.at(sizes[:, None], angles[None, n : n + few]) for n in cuts])


def chisqr_with_best_scaling(
    y: Float[np.ndarray, "*flow cell"], w: Float[np.ndarray, "*flow cell"], E: Floats, S: Floats
) -> Float[np.ndarray, "flow shear"]:
    """Return χ² of f = E·S with the best contrast and offset, for every row of E and of S."""
    total = w.sum(-1, keepdims=True)
    share = w / np.maximum(total, np.finfo(float).tiny)
    y = y - (share * y).sum(-1, keepdims=True)
    of_f, of_y = share.astype(E.dtype), (share * y).astype(E.dtype)
    f = ((E * of_f) @ S.T).astype(float)
    ff = ((E * E * of_f) @ (S * S).T).astype(float)
    fy = ((E * of_y) @ S.T).astype(float)
    variance = ff - f * f
    digits = 1e-9 if E.dtype == np.float64 else 1e-5
    least = np.maximum(digits * ff, 1e-12)  # else f is constant, or has decayed
    gained = np.where(variance > least, fy**2 / np.maximum(variance, least), 0.0)
    # c2 must decay: a negative contrast does not lower χ²
    return total * ((share * y * y).sum(-1, keepdims=True) - np.where(fy > 0, gained, 0.0))


AVERAGES_OPTIONS = lm.Options(max_passes=1000, decrement=1e-2)
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

    def ends(self, thetas: Sequence[Theta], passes: int) -> list[BinnedFit]:
        return self.merged(self.advanced(self.started(thetas), passes))

    def chisqr_at(self, thetas: Sequence[Theta]) -> list[float]:
        """Return χ² at each theta, without penalties; infinite where it is not a number."""
        found = [at.chisqr for at in self._evaluated([lm.Trial(theta) for theta in thetas])]
        return [value if np.isfinite(value) else np.inf for value in found]

    def _evaluated(self, trials: Sequence[lm.Trial]) -> list[ReducedProblem]:
        found = []
        for trial in trials:
            gram = self.summary(trial.theta)
            if self.mode == "shared":  # one contrast and offset: the sum of all bins
                gram = gram.wide
                gram = Gram(gram.moments.sum(0)[None], gram.pairs.sum(keepdims=True))
            prior = self.search.prior_terms(trial.theta)
            found.append(reduce(gram, Scaling(prior=self.limits), prior=prior))
        return found

    def merged(self, ends: list[BinnedFit]) -> list[BinnedFit]:
        distinct: list[BinnedFit] = []
        finite = [end for end in ends if end.lowest.reduced.finite]
        for end in sorted(finite, key=lambda end: end.chisqr):
            for n, other in enumerate(distinct):
                if self.same_minimum(other, end):
                    distinct[n] = replace(other, starts=other.starts + end.starts)
                    break
            else:
                distinct.append(end)
        return distinct

    def same_minimum(self, one: BinnedFit, other: BinnedFit) -> bool:
        """Return whether two fits are at one minimum: χ² within σ², theta within three standard errors."""
        low, high = one.lowest, other.lowest
        variance = low.reduced.variance(int(self.search.free.sum()))
        difference = shortest(high.theta - low.theta, self.search.period)
        distance = difference @ low.reduced.hessian @ difference
        better = abs(high.reduced.chisqr - low.reduced.chisqr)
        close = max(variance, low.reduced.rounding)
        return bool(better < close and distance < 9 * close)


def promising(ends: list[BinnedFit], times: float) -> list[BinnedFit]:
    finite = [end for end in ends if end.lowest.reduced.finite]
    lowest = min((end.chisqr for end in finite), default=np.inf)
    return [end for end in finite if end.chisqr <= times * lowest]
