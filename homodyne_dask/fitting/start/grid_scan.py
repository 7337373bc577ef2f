"""A logarithmic scan of χ² of the averages, before any fit.

χ² of the averages needs only Σ w f², Σ w f, Σ w f y per bin, and f is the product of a factor that
depends on (D0, alpha) and one that depends on (γ̇, beta): all combinations are matrix products.
phi0 needs no more of these products: χ² of a bin depends on it only through the size of its shear.
"""

from itertools import product

import numpy as np
from jaxtyping import Float, Float32

from homodyne_dask.fitting.start.averages import BinnedAverages
from homodyne_dask.models.parameters import Search
from homodyne_dask.models.transport import Convention, frame_spacing

EXPONENTS = (-1.5, -1.0, -0.5, 0.0, 0.5, 1.0)
POINTS_PER_DECADE = 4
N_ANGLES = 36
"""phi0 is scanned in steps of 180°/36."""
MAX_CELLS = 400
"""Most averages that are scanned, chosen at random from all."""
MAX_DIFFUSION_PAIRS = 24
"""Most pairs (D0, alpha) that are scanned in all directions of flow: those with the lowest bound of χ²."""
N_BEST_FIRST = 2
"""Number of points with the lowest χ² that come before the minima of the map."""

Floats = Float[np.ndarray, "row cell"] | Float32[np.ndarray, "row cell"]


def scan_points(grid: "Grid", best: int) -> list[Float[np.ndarray, " p"]]:
    """Return points of the scan to start from: the best two, then minima of the map, then distant ones.

    The best cells are often neighbours, because χ² changes more with a step of alpha than with all of
    phi0; the map over (γ̇, phi0), minimized over the others, shows the other directions of flow.
    """
    chisqr = _table(grid.summary, grid)
    if not grid.summary.problem.model.shear:
        order = np.argsort(chisqr.sum(0)[:, 0])
        return [grid.theta(*at) for at in _distant([(int(n),) for n in order], best)]
    # each bin at its own best strain rate: no direction of flow can be lower
    lowest = chisqr.reshape(*chisqr.shape[:2], len(grid.betas), -1).min(3).sum(0).min(1)
    pairs = np.argsort(lowest)[:MAX_DIFFUSION_PAIRS]
    total = _over_angles(grid.summary, grid, chisqr[:, pairs])
    flat, most = total.ravel(), min(400 * best, total.size)
    order = np.argpartition(flat, most - 1)[:most]
    order = order[np.argsort(flat[order])]
    where = [tuple(int(x) for x in np.unravel_index(n, total.shape)) for n in order]
    distant = _distant(where, best)
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


def _distant(points: list[tuple[int, ...]], best: int) -> list[tuple[int, ...]]:
    """Return the first points that differ from each other by more than one step somewhere."""
    chosen: list[tuple[int, ...]] = []
    for point in points:
        if all(max(abs(a - b) for a, b in zip(point, c, strict=True)) > 1 for c in chosen):
            chosen.append(point)
        if len(chosen) == best:
            break
    return chosen


class Grid:
    """The points of the scan: (D0, alpha) × (shear, beta) × phi0, without those that the user fixed."""

    def __init__(self, summary: BinnedAverages, search: Search) -> None:
        self.search = search
        self.summary = summary = summary.subset(MAX_CELLS)
        time = summary.time
        self.middle = float(np.median(time[time > 0]))
        start = dict(zip(search.names, search.start, strict=True))
        self.offset = self._given_or("D_offset", 0.0)
        span, step = float(time[-1] - time[0]), frame_spacing(time)
        q2 = float(np.nanmedian(summary.q**2))
        rates = _log_spaced(0.05 / (q2 * span), 5 / (q2 * step))
        pairs = product(self._exponents("alpha"), rates)
        pairs = ((self._amplitude("D0", rate, alpha), alpha) for alpha, rate in pairs)
        self.diffusion_pairs = list(dict.fromkeys(pairs))
        if summary.problem.model.shear:
            self._shear(start, span, step)

    def _shear(self, start: dict[str, float], span: float, step: float) -> None:
        """Set the strain rates: s·γ̇ at the middle of the record, and its exponent."""
        self.shear_offset = self._given_or("gamma_dot_t_offset", 0.0)
        self.betas = self._exponents("beta")
        problem = self.summary.problem
        nothing = problem.model.with_parts()
        self.reach = np.abs(self.summary.scales(nothing, np.zeros_like(self.summary.phi)).s)
        sums = problem.convention is Convention.HOMODYNE
        self.reach = self.reach / (step if sums else 1.0)
        self.strains = _log_spaced(0.1 / span, 3 / step, 2 * POINTS_PER_DECADE)
        given = start["gamma_dot_t0"]
        reach = float(np.median(self.reach))
        self.shears = np.array([given]) if np.isfinite(given) else self.strains / reach
        phi0 = start["phi0"]
        at = self.search.names.index("phi0")
        low, high = self.search.lower[at], self.search.upper[at]
        angles = low + (np.arange(N_ANGLES) + 0.5) / N_ANGLES * min(high - low, 180.0)
        self.angles = np.array([phi0]) if np.isfinite(phi0) else angles

    def _exponents(self, name: str) -> tuple[float, ...]:
        at = self.search.names.index(name)
        if np.isfinite(self.search.start[at]):
            return (float(self.search.start[at]),)
        low, high = self.search.lower[at], self.search.upper[at]
        inside = tuple(x for x in EXPONENTS if low <= x <= high)
        return inside or (float((low + high) / 2),)

    def _given_or(self, name: str, value: float) -> float:
        """Return the value that a user gave, or another one inside its bounds."""
        at = self.search.names.index(name)
        if np.isfinite(self.search.start[at]):
            return float(self.search.start[at])
        return float(np.clip(value, self.search.lower[at], self.search.upper[at]))

    def _amplitude(self, name: str, rate: float, exponent: float) -> float:
        """Return the amplitude that gives `rate` at the middle of the record, inside its bounds."""
        return self._given_or(name, rate * self.middle**-exponent)

    def theta(
        self, flow: int, beta: int = 0, shear: int = 0, angle: int = 0
    ) -> Float[np.ndarray, " p"]:
        """Return the parameters of one point."""
        D0, alpha = self.diffusion_pairs[flow]
        model = self.summary.problem.model
        theta = model.with_parts(diffusion=(D0, alpha, self.offset))
        if model.shear:
            exponent = self.betas[beta]
            amplitude = self._amplitude("gamma_dot_t0", self.shears[shear], exponent)
            rate = amplitude, exponent, self.shear_offset
            theta = model.with_parts(theta, shear_rate=rate, phi0=self.angles[angle])
        return self.search.inside(theta)


def _log_spaced(
    low: float, high: float, per_decade: int = POINTS_PER_DECADE
) -> Float[np.ndarray, " n"]:
    return np.geomspace(low, high, max(2, round(per_decade * np.log10(high / low)) + 1))


def _table(summary: BinnedAverages, grid: Grid) -> Float[np.ndarray, "bin flow shear"]:
    """Return χ² of every bin for every (rate, alpha) and every (beta, strain rate), phi0 apart."""
    model = summary.problem.model
    thetas = [model.with_parts(diffusion=(*at, grid.offset)) for at in grid.diffusion_pairs]
    dC = np.array([summary.diffusion(theta) for theta in thetas])
    S = _shear_factors(summary, grid) if model.shear else np.ones((1, len(summary.t1)))
    S, k = S.astype(np.float32), summary.scales(thetas[-1], summary.phi).k
    chisqr = np.empty((len(summary.q), len(dC), len(S)))
    for value in np.unique(k):
        E = np.exp(-value * dC).astype(np.float32)
        for b in np.flatnonzero(k == value):
            chisqr[b] = chisqr_with_best_scaling(summary.c2[b] - 1, summary.weight[b], E, S)
    return chisqr


def _shear_factors(summary: BinnedAverages, grid: Grid) -> Float[np.ndarray, "shear cell"]:
    """Return S for every (beta, strain rate): the strain's shape in time times its size."""
    problem = summary.problem
    power = 4 if problem.convention is Convention.HOMODYNE else 2
    factors = []
    spacing = frame_spacing(summary.time)
    for beta in grid.betas:
        dG = summary.strain(problem.model.with_parts(shear_rate=(grid.middle**-beta, beta, 0.0)))
        dG = dG * (spacing if problem.convention is Convention.HOMODYNE else 1.0)
        factors.append(np.sinc(grid.strains[:, None] * dG / np.pi) ** power)
    return np.concatenate(factors)


def chisqr_with_best_scaling(
    y: Float[np.ndarray, "*flow cell"], w: Float[np.ndarray, "*flow cell"], E: Floats, S: Floats
) -> Float[np.ndarray, "flow shear"]:
    """Return χ² of f = E·S with the best contrast and offset, for every row of E and of S.

    y and w are the same for all rows of E, or one row for each.
    """
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


def _over_angles(
    summary: BinnedAverages, grid: Grid, chisqr: Float[np.ndarray, "bin flow shear"]
) -> Float[np.ndarray, "flow beta shear angle"]:
    """Return the sum of χ² over the bins for every γ̇ and phi0, by interpolation in strain rate."""
    bins, pairs, _ = chisqr.shape
    table = chisqr.reshape(bins, pairs, len(grid.betas), len(grid.strains))
    at = np.log(grid.strains)
    middle_rates = np.array(
        [grid.shears * (grid.middle**beta if len(grid.shears) == 1 else 1.0) for beta in grid.betas]
    )
    total = np.zeros((pairs, len(grid.betas), len(grid.shears), len(grid.angles)))
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
