"""First values from the data: a log-spaced scan on the averages over age and lag, then a small fit.

χ² on the averages needs only Σ w f², Σ w f, Σ w f y per bin, and f is a product of a part that
depends on (J, alpha) and one that depends on (γ̇, beta): all combinations are matrix products.
phi0 costs nothing more, because a bin sees it only through the size of its shear.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from homodyne_dask import lm
from homodyne_dask.dataset import Cuts, Scan, known_q
from homodyne_dask.errors import SelectionError
from homodyne_dask.gram import Gram
from homodyne_dask.models.shapes import decay, sheared, strain, unsheared, wave
from homodyne_dask.models.transport import (
    Convention,
    bin_scales,
    frame_spacing,
    tables,
)
from homodyne_dask.parameters import Search
from homodyne_dask.problem import Problem
from homodyne_dask.scaling import reduce

EXPONENTS = (-1.5, -1.0, -0.5, 0.0, 0.5, 1.0)
PER_DECADE = 4
ANGLES = 36
"""phi0 is scanned in steps of 180°/36."""
FEWEST_CELLS = 30
"""Below this many averages inside a selection, first values come from those of the whole record."""
REFINED = 6
"""Best points of the scan from which a small fit starts."""


@dataclass(frozen=True)
class Summary:
    """The averages over age and lag as a fit sees them, all bins on the same cells."""

    problem: Problem
    time: Float[np.ndarray, " t"]
    c2: Float[np.ndarray, "bin cell"]
    weight: Float[np.ndarray, "bin cell"]
    """Sum of the weights of the pairs averaged; 0 where there are none."""
    t1: Float[np.ndarray, " cell"]
    t2: Float[np.ndarray, " cell"]
    q: Float[np.ndarray, " bin"]
    phi: Float[np.ndarray, " bin"]

    def differences(self, theta: Float[np.ndarray, " p"]) -> Float[np.ndarray, "rows cell"]:
        """Return u(t2) - u(t1) of every table row, the integrals interpolated at the mean times."""
        rows = tables(self.problem.model, self.problem.convention, theta, self.time)
        there = [np.interp(self.t2, self.time, row) for row in rows]
        here = [np.interp(self.t1, self.time, row) for row in rows]
        return np.array(there) - np.array(here)

    def __call__(self, theta: Float[np.ndarray, " p"]) -> Gram:
        """Return the Gram of the averages at theta."""
        problem = self.problem
        spacing = frame_spacing(self.time, problem.convention)
        scales = bin_scales(
            problem.model, problem.convention, theta, self.q, self.phi, problem.gap, spacing
        )
        with jax.enable_x64(True):
            moments = _cell_moments(
                self.differences(theta), self.c2, self.weight, scales.k, scales.s, scales.ds,
                shear=problem.model.shear, convention=problem.convention,
            )  # fmt: skip
            return Gram(np.asarray(moments), (self.weight > 0).sum(1))


def summary_of(scan: Scan, problem: Problem) -> Summary:
    """Return the averages of the selected bins; raises SelectionError where none is known."""
    cuts = scan.cuts(problem.min_lag)
    if len(cuts.t1) < FEWEST_CELLS:  # a narrow selection: the same theta describes the whole record
        cuts = replace(scan, frames=(0, scan.n_frames)).cuts()
    if not np.isfinite(cuts.c2).any():
        raise SelectionError(
            f"all pairs of the selected {len(scan.bins)} bins are masked or unknown: "
            f"widen the selection"
        )
    return Summary(
        problem=problem,
        time=scan.time,
        c2=np.nan_to_num(cuts.c2, nan=1.0),
        weight=np.where(np.isfinite(cuts.c2), cuts.count * _weight(scan, cuts), 0.0),
        t1=cuts.t1,
        t2=cuts.t2,
        q=known_q(scan),
        phi=scan.phi,
    )


def _weight(scan: Scan, cuts: Cuts) -> Float[np.ndarray, "bin cell"]:
    """Return 1/sigma² of a pair at the mean times of each cell."""
    i, j = (np.searchsorted(scan.time, t).clip(0, scan.n_frames - 1) for t in (cuts.t1, cuts.t2))
    return 1 / (scan.sigma_row[:, i] * scan.sigma_row[:, j]) ** 2


@partial(jax.jit, static_argnames=("shear", "convention"))
def _cell_moments(
    d: Array, c2: Array, weight: Array, k: Array, s: Array, ds: Array,
    *, shear: bool, convention: Convention,
) -> Array:  # fmt: skip
    """Return Xᵀ W X per bin over cells, X built in full."""

    def of_bin(y: Array, w: Array, k: Array, s: Array, ds: Array) -> Array:
        E = decay(convention, k, d[-1])
        ones = jnp.ones_like(y)
        if not shear:
            f = unsheared(convention, E)
            gradient = [-k * f * d[row] for row in (1, 2, 3)]
        else:
            dG, sign = strain(convention, d[-2])
            f, v = sheared(convention, E, wave(s * dG))
            v = v * sign
            gradient = [-k * f * d[row] for row in (1, 2, 3)]
            gradient += [v * s * d[row] for row in (4, 5, 6)] + [v * ds * d[7]]
        X = jnp.stack([ones, y - 1, f, *gradient])
        return (X * w) @ X.T

    return jax.vmap(of_bin)(c2, weight, k, s, ds)


def first_values(
    summary: Summary, search: Search, mode: str, starts: int | None = None
) -> list[Float[np.ndarray, " p"]]:
    """Return first values, the best first: the ends of small fits from the best points of a scan.

    With everything given by the user that point alone is returned, as it is. `starts` is how many
    points of the scan are refined.
    """
    if np.isfinite(search.start).all():
        return [search.start]
    return refined(scan_points(summary, search, starts or REFINED), summary, search, mode)


def refined(
    points: list[Float[np.ndarray, " p"]],
    evaluate: Callable[[Float[np.ndarray, " p"]], Gram],
    search: Search,
    mode: str,
) -> list[Float[np.ndarray, " p"]]:
    """Return where small fits from some points end, the best first."""
    options = lm.Options(max_passes=40, decrement=1e-3)
    ends = []
    for theta in points:
        state = lm.start(search, theta, reduce(evaluate(theta), mode), options)
        while state.outcome is lm.Outcome.RUNNING:
            trial = lm.propose(search, state)
            state = lm.judge(search, state, trial, reduce(evaluate(trial.theta), mode), options)
        ends.append(state)
    ends = [state for state in ends if state.reduced.finite]
    return [state.theta for state in sorted(ends, key=lambda state: state.reduced.chisqr)]


def scan_points(summary: Summary, search: Search, best: int) -> list[Float[np.ndarray, " p"]]:
    """Return the best, mutually distant points of the scan, best first."""
    grid = _Grid(summary, search)
    shear = summary.problem.model.shear
    chisqr = _table(summary, grid)
    if not shear:
        total = chisqr.sum(0)[:, 0]
        order = np.argsort(total)
        chosen = _distant([(int(n),) for n in order], best)
        return [grid.theta(*at) for at in chosen]
    total = _over_angles(summary, grid, chisqr)
    order = np.argsort(total, axis=None)[: 400 * best]
    where = [tuple(int(x) for x in np.unravel_index(n, total.shape)) for n in order]
    return [grid.theta(*at) for at in _distant(where, best)]


def _distant(points: list[tuple[int, ...]], best: int) -> list[tuple[int, ...]]:
    """Return the first points that differ from each other by more than one step somewhere."""
    chosen: list[tuple[int, ...]] = []
    for point in points:
        if all(max(abs(a - b) for a, b in zip(point, c, strict=True)) > 1 for c in chosen):
            chosen.append(point)
        if len(chosen) == best:
            break
    return chosen


class _Grid:
    """The points of the scan: (rate, alpha) × (shear, beta) × phi0, as the user left them open."""

    def __init__(self, summary: Summary, search: Search) -> None:
        self.search = search
        self.summary = summary
        time = summary.time
        self.middle = float(np.median(time[time > 0]))
        start = dict(zip(search.names, search.start, strict=True))
        self.offset = _or(start["D_offset"], search, "D_offset", 0.0)
        span, step = float(time[-1] - time[0]), frame_spacing(time)
        q2 = float(np.nanmedian(summary.q**2))
        rates = _log_spaced(0.05 / (q2 * span), 5 / (q2 * step))
        self.flow = [
            (self._amplitude("D0", rate, alpha), alpha)
            for alpha in self._exponents("alpha")
            for rate in (rates if np.isnan(start["D0"]) else [np.nan])
        ]
        self.flow = list(dict.fromkeys(self.flow))
        if summary.problem.model.shear:
            self._shear(start, span, step)

    def _shear(self, start: dict[str, float], span: float, step: float) -> None:
        """Lay out the strain rates: s·γ̇ at the middle of the record, and its exponent."""
        self.shear_offset = _or(start["gamma_dot_t_offset"], self.search, "gamma_dot_t_offset", 0.0)
        self.betas = self._exponents("beta")
        problem = self.summary.problem
        flat = np.zeros(self.summary.problem.model.size)
        scales = bin_scales(
            problem.model, problem.convention, flat, self.summary.q, flat[:1] * self.summary.q,
            problem.gap, frame_spacing(self.summary.time, problem.convention),
        )  # fmt: skip
        self.reach = np.abs(scales.s)
        sums = problem.convention is Convention.HOMODYNE
        self.reach = self.reach / (step if sums else 1.0)
        self.strains = _log_spaced(0.1 / span, 3 / step, 2 * PER_DECADE)
        given = start["gamma_dot_t0"]
        reach = float(np.median(self.reach))
        self.shears = np.array([given]) if np.isfinite(given) else self.strains / reach
        phi0 = start["phi0"]
        low, high = self.search.lower[6], self.search.upper[6]
        angles = low + (np.arange(ANGLES) + 0.5) / ANGLES * min(high - low, 180.0)
        self.angles = np.array([phi0]) if np.isfinite(phi0) else angles

    def _exponents(self, name: str) -> tuple[float, ...]:
        at = self.search.names.index(name)
        if np.isfinite(self.search.start[at]):
            return (float(self.search.start[at]),)
        low, high = self.search.lower[at], self.search.upper[at]
        inside = tuple(x for x in EXPONENTS if low <= x <= high)
        return inside or (float((low + high) / 2),)

    def _amplitude(self, name: str, rate: float, exponent: float) -> float:
        """Return the amplitude that gives `rate` at the middle of the record, inside its bounds."""
        at = self.search.names.index(name)
        if np.isfinite(self.search.start[at]):
            return float(self.search.start[at])
        value = rate * self.middle**-exponent
        return float(np.clip(value, self.search.lower[at], self.search.upper[at]))

    def theta(
        self, flow: int, beta: int = 0, shear: int = 0, angle: int = 0
    ) -> Float[np.ndarray, " p"]:
        """Return the parameters of one point."""
        D0, alpha = self.flow[flow]
        values = [D0, alpha, self.offset]
        if self.summary.problem.model.shear:
            exponent = self.betas[beta]
            amplitude = self._amplitude("gamma_dot_t0", self.shears[shear], exponent)
            values += [amplitude, exponent, self.shear_offset, self.angles[angle]]
        return self.search.inside(np.array(values))


def _or(value: float, search: Search, name: str, otherwise: float) -> float:
    at = search.names.index(name)
    if np.isfinite(value):
        return float(value)
    return float(np.clip(otherwise, search.lower[at], search.upper[at]))


def _log_spaced(low: float, high: float, per_decade: int = PER_DECADE) -> Float[np.ndarray, " n"]:
    return np.geomspace(low, high, max(2, round(per_decade * np.log10(high / low)) + 1))


def _table(summary: Summary, grid: _Grid) -> Float[np.ndarray, "bin flow shear"]:
    """Return χ² of every bin for every (rate, alpha) and every (beta, strain rate), phi0 apart."""
    problem = summary.problem
    diffusion = []
    shape = np.zeros(problem.model.size)
    for D0, alpha in grid.flow:
        shape[:3] = D0, alpha, grid.offset
        diffusion.append(summary.differences(shape)[-1])
    dC = np.array(diffusion)
    S = _shear_factors(summary, grid) if problem.model.shear else np.ones((1, len(summary.t1)))
    spacing = frame_spacing(summary.time, problem.convention)
    k = bin_scales(
        problem.model, problem.convention, shape, summary.q, summary.phi, problem.gap, spacing
    ).k
    chisqr = np.empty((len(summary.q), len(dC), len(S)))
    for value in np.unique(k):
        E = np.exp(-value * dC)
        for b in np.flatnonzero(k == value):
            chisqr[b] = _best_scaled(summary.c2[b] - 1, summary.weight[b], E, S)
    return chisqr


def _shear_factors(summary: Summary, grid: _Grid) -> Float[np.ndarray, "shear cell"]:
    """Return S for every (beta, strain rate): the strain's shape in time times its size."""
    problem = summary.problem
    power = 4 if problem.convention is Convention.HOMODYNE else 2
    theta = np.zeros(problem.model.size)
    factors = []
    spacing = frame_spacing(summary.time)
    for beta in grid.betas:
        theta[3:6] = grid.middle**-beta, beta, 0.0
        dG = summary.differences(theta)[-2]
        dG = dG * (spacing if problem.convention is Convention.HOMODYNE else 1.0)
        factors += [np.sinc(x * dG / np.pi) ** power for x in grid.strains]
    return np.array(factors)


def _best_scaled(
    y: Float[np.ndarray, " cell"],
    w: Float[np.ndarray, " cell"],
    E: Float[np.ndarray, "flow cell"],
    S: Float[np.ndarray, "shear cell"],
) -> Float[np.ndarray, "flow shear"]:
    """Return χ² of f = E·S with the best contrast and offset, for every E and S."""
    total = w.sum()
    if total == 0:
        return np.zeros((len(E), len(S)))
    mean = (w * y).sum() / total
    y = y - mean
    f = (E * w) @ S.T
    ff = (E * E * w) @ (S * S).T
    fy = (E * (w * y)) @ S.T
    variance = ff - f * f / total
    gained = np.where(variance > 1e-9 * total, fy**2 / np.maximum(variance, 1e-300), 0.0)
    # an inverted decay is no decay: a negative contrast gains nothing
    return (w * y * y).sum() - np.where(fy > 0, gained, 0.0)


def _over_angles(
    summary: Summary, grid: _Grid, chisqr: Float[np.ndarray, "bin flow shear"]
) -> Float[np.ndarray, "flow beta shear angle"]:
    """Return the sum of χ² over the bins for every γ̇ and phi0, by interpolation in strain rate."""
    bins, flows, _ = chisqr.shape
    table = chisqr.reshape(bins, flows, len(grid.betas), len(grid.strains))
    at = np.log(grid.strains)
    middle_rates = np.array(
        [grid.shears * (grid.middle**beta if len(grid.shears) == 1 else 1.0) for beta in grid.betas]
    )
    total = np.zeros((flows, len(grid.betas), len(grid.shears), len(grid.angles)))
    for b in range(bins):
        cosine = np.abs(np.cos(np.deg2rad(grid.angles - summary.phi[b])))
        for n, rates in enumerate(middle_rates):
            strain_rate = np.log(grid.reach[b] * rates[:, None] * cosine[None, :] + 1e-300)
            place = np.interp(strain_rate, at, np.arange(len(at)))
            low = np.minimum(place.astype(int), len(at) - 2)
            part = place - low
            below, above = (np.take(table[b, :, n], low + up, axis=1) for up in (0, 1))
            total[:, n] += below * (1 - part) + above * part
    return total
