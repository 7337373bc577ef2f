"""Initial values of the transport models: a scan of the averages, fits from its best points, finer scans.

χ² of the averages needs only Σ w f², Σ w f, Σ w f y per bin, and f is the product of a factor that
depends on (D0, alpha) and one that depends on (γ̇, beta): all combinations are matrix products.
phi0 needs no more of these products: χ² of a bin depends on it only through the size of its shear.

From the best fits, strain, direction of flow (`shear_candidates`) and diffusion (`diffusion_candidates`) are
scanned again more finely, until no lower minimum is found. Where the shear phase turns many times in a
record, χ² has a minimum on either side of every direction in which some bin sees no shear, and in the valleys
γ̇ cos(phi0 - φ) = constant between them; a fit does not go from one to the next. With diffusion and the shape
of γ̇(t) fixed, χ² of a bin is a function of the size of its shear: a table of it gives χ² of all sizes and
directions.

A fit does not change the sign of the shear rate either (`mirrored_shear`). f depends on ΔG² alone, so γ̇(t)
and -γ̇(t) are the same flow (`physical`). With gamma_dot_t0 above 0 the rates a t^b + c that are positive and
the mirrored ones, -a t^b - c where the rate is negative, are two families: a rate that rises with log t ever
faster is in the first, one that rises ever more slowly in the second. They meet at b = 0, where a and c
diverge.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int
from numpy.typing import ArrayLike

from homodyne_dask.fitting.start.averages import (
    BinnedAverages,
    BinnedFit,
    BinnedFits,
    Minimum,
    Theta,
)
from homodyne_dask.models.parameters import Search
from homodyne_dask.models.transport import Convention, frame_spacing

EXPONENTS = (-1.5, -1.0, -0.5, 0.0, 0.5, 1.0)
POINTS_PER_DECADE = 4
N_ANGLES = 36
MAX_CELLS = 200
"""Most averages that are scanned, chosen at random from all."""
MAX_SHAPES = 32
"""Most (D0, alpha, beta) that are scanned in all directions of flow: those with the lowest bound of χ²."""
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
        return [grid.theta(*place) for place in _distant(order[:, None], best)]
    chisqr = chisqr.reshape(*chisqr.shape[:2], len(grid.betas), len(grid.strains))
    # each bin at its own best strain rate: no direction of flow can be lower
    bound = chisqr.min(3).sum(0)
    flow, beta = np.unravel_index(np.argsort(bound, axis=None)[:MAX_SHAPES], bound.shape)
    shapes = zip(flow, beta, strict=True)
    total = np.array([grid.map_of(chisqr[:, n, m], grid.betas[m]) for n, m in shapes])
    order = np.argsort(total, axis=None)[: 400 * best]
    shape, *place = np.unravel_index(order, total.shape)
    distant = _distant(np.transpose([flow[shape], beta[shape], *place]), best)
    lowest, places = total.argmin(0), local_minima(total.min(0))
    minima = [(int(flow[lowest[n, m]]), int(beta[lowest[n, m]]), n, m) for n, m in places]
    chosen = dict.fromkeys([*distant[:N_BEST_FIRST], *minima, *distant[N_BEST_FIRST:]])
    return [grid.theta(*place) for place in list(chosen)[:best]]


def local_minima(chisqr: Float[np.ndarray, "shear angle"]) -> list[tuple[int, int]]:
    """Return the cells with no lower neighbour, best first; angles are periodic."""
    rows = len(chisqr)
    walled = np.pad(chisqr, ((1, 1), (0, 0)), constant_values=np.inf)
    low = np.ones(chisqr.shape, bool)
    for up in (0, 1, 2):
        for turn in (-1, 0, 1):
            low &= chisqr <= np.roll(walled, turn, axis=1)[up : up + rows]
    lowest = np.argwhere(low)
    return [(int(n), int(m)) for n, m in lowest[np.argsort(chisqr[low])]]


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

    def near(point: tuple[int, ...], chosen: tuple[int, ...]) -> bool:
        return max(abs(a - b) for a, b in zip(point, chosen, strict=True)) <= 1

    return distinct(map(tuple, points.tolist()), near, best)


def given_or(search: Search, name: str, otherwise: ArrayLike) -> Float[np.ndarray, " n"]:
    """Return the value that a user gave, or the others inside its bounds; 0 where a model has no such."""
    if name not in search.names:
        return np.zeros(1)
    place = search.names.index(name)
    if np.isfinite(search.start[place]):
        return search.start[place : place + 1]
    return np.unique(np.clip(otherwise, search.lower[place], search.upper[place]))


class Grid:
    """The points of the scan: (D0, alpha) × (shear, beta) × phi0, without those that the user fixed."""

    def __init__(self, summary: BinnedAverages, search: Search) -> None:
        self.search, self.whole = search, summary
        if len(summary.t1) > MAX_CELLS:
            chosen = np.random.default_rng(0).permutation(len(summary.t1))[:MAX_CELLS]
            summary = summary.at_cells(np.sort(chosen))
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
        shear_of_user = search.start[search.names.index("gamma_dot_t0")]
        shears = self.strains / float(np.median(self.reach))
        self.shears = np.array([shear_of_user]) if np.isfinite(shear_of_user) else shears
        place = search.names.index("phi0")
        low, width = search.lower[place], min(search.upper[place] - search.lower[place], 180.0)
        self.angles = given_or(search, "phi0", low + (np.arange(N_ANGLES) + 0.5) / N_ANGLES * width)

    def _exponents(self, name: str) -> list[float]:
        place = self.search.names.index(name)
        low, high = self.search.lower[place], self.search.upper[place]
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
        with_parts, rates = summary.problem.model.with_parts, self.diffusion_pairs
        thetas = np.array([with_parts(diffusion=(*rate, self.offset)) for rate in rates])
        dC = summary.diffusion_between(thetas).astype(S.dtype)
        k = summary.scales(thetas[-1], summary.phi).k
        chisqr = np.empty((len(k), len(dC), S.shape[1]))
        for value in np.unique(k):
            E = np.exp(-S.dtype.type(value) * dC)
            for b in np.flatnonzero(k == value):
                chisqr[b] = chisqr_with_best_scaling(summary.c2[b] - 1, summary.weight[b], E, S[b])
        return chisqr

    def map_of(
        self, chisqr: Float[np.ndarray, "bin strain"], beta: float
    ) -> Float[np.ndarray, "shear angle"]:
        is_given, widest = len(self.shears) == 1, self.reach.max()
        rates = np.maximum(np.abs(self.shears), 1e-300)  # f is that of the opposite rate
        rates = rates * (self.middle**beta if is_given else 1.0)
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
    # of centred y the sum with f is the covariance: no difference of sums of float32 is taken
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


MIN_ANGLE_DISTANCE = 0.05
"""Smallest distance [degree] to a direction in which a bin sees no shear."""
MAX_BLIND_ANGLES = 40
"""Number of such directions above which the scan has even steps."""
EVEN_STEP = 1.0
SEARCH_ROUNDS = 10
MAX_MINIMA = 24
MIN_MIRRORED_EXPONENT = 0.5
"""Smallest |beta| of a mirrored start: closer to 0 a and c are so large that fits hardly change them."""


class _Resolution(NamedTuple):
    rows: int
    """Rows of the table per decade of strain."""
    size_step: int
    """Rows between two sizes on the map."""
    angles: int
    """Directions on the map per decade of the distance from one in which a bin sees no shear."""
    max_points: int


FITTED_SHAPE_RESOLUTION = _Resolution(64, 4, 8, 6)
POWER_LAW_RESOLUTION = _Resolution(24, 3, 3, 4)


def shear_candidates(grid: Grid, theta: Theta, below: float) -> list[Theta]:
    shear_rate = grid.whole.problem.model.shear_rate
    of_user = grid.search.start[shear_rate]
    whole = bool(np.isnan(of_user).all())
    points = _points(grid, theta, [theta[shear_rate]], FITTED_SHAPE_RESOLUTION, whole, below)
    if np.isnan(of_user[0]):
        powers = [np.array([grid.middle**-beta, beta, 0.0]) for beta in grid.betas]
        points += _points(grid, theta, powers, POWER_LAW_RESOLUTION, True, below)
    return points


def mirrored_shear(grid: Grid, theta: Theta) -> list[Theta]:
    """Return theta with a rate that has the value and slope of -γ̇ in the middle of the record.

    Empty where a user gave some of its parameters, or the rate cannot be negative.
    """
    problem, search = grid.summary.problem, grid.search
    model = problem.model
    is_given = not np.isnan(search.start[model.shear_rate]).all()
    a, b, c = theta[model.shear_rate]
    if is_given or problem.convention is Convention.HOMODYNE or b == 0:
        return []
    power = grid.middle**b
    exponent = -np.copysign(max(abs(b), MIN_MIRRORED_EXPONENT), b)
    growth = -a * b * power / exponent
    rate = growth * grid.middle**-exponent, exponent, -(a * power + c) - growth
    return [search.inside(model.with_parts(theta, shear_rate=rate))]


def _points(
    grid: Grid,
    theta: Theta,
    shapes: list[Float[np.ndarray, " 3"]],
    resolution: _Resolution,
    all_sizes: bool,
    below: float,
) -> list[Theta]:
    """Return the lowest minima of the shapes' maps, with χ² below a limit; shapes: γ̇(t) up to a factor."""
    model, is_given = grid.whole.problem.model, np.isfinite(grid.search.start)
    phi0 = model.direction
    angles = theta[phi0] if is_given[phi0].all() else _angles(grid, resolution.angles)
    scored = []
    for shape in shapes:
        table = _table(grid.whole, theta, shape, resolution.rows)
        if not table.chisqr.min(1).sum() < below:  # each bin at its own best size
            continue
        sizes = table.sizes[:: resolution.size_step]
        for value, size, angle in _minima(table, sizes if all_sizes else np.ones(1), angles):
            power = size - grid.shear_offset if all_sizes else size
            if power <= 0:
                continue
            rate = shape * (power, 1.0, size)
            point = np.where(is_given, theta, model.with_parts(theta, shear_rate=rate, phi0=angle))
            scored.append((value, grid.search.inside(point)))
    scored.sort(key=lambda entry: entry[0])
    return [point for value, point in scored[: resolution.max_points] if value < below]


def _angles(grid: Grid, per_decade: int) -> Float[np.ndarray, " angle"]:
    place = grid.search.names.index("phi0")
    low, high = grid.search.lower[place], grid.search.upper[place]
    blind = np.unique(np.round(np.mod(grid.summary.phi + 90.0, 180.0), 3))
    if len(blind) > MAX_BLIND_ANGLES:
        angles = np.arange(0, 180.0, EVEN_STEP)
    else:
        width = np.diff(np.append(blind, blind[0] + 180.0))
        steps = np.arange(1 + np.ceil(np.log10(90.0 / MIN_ANGLE_DISTANCE) * per_decade))
        away = 0.5 * width[:, None] * 10 ** (-steps / per_decade)
        away = np.where(away < MIN_ANGLE_DISTANCE, np.nan, away)
        angles = np.concatenate([(blind[:, None] + away), (blind + width)[:, None] - away])
        angles = angles[np.isfinite(angles)]
    angles = np.unique(np.round(np.mod(angles - low, 180.0) + low, 4))
    inside = angles[angles <= high]
    return inside if len(inside) else np.array([0.5 * (low + high)])


def _table(
    summary: BinnedAverages, theta: Theta, shape: Float[np.ndarray, " 3"], per_decade: int
) -> ShearTable:
    """Return the table for strains from 0.05 in the record to 20 per frame."""
    flat = summary.problem.model.with_parts(theta, shear_rate=shape, phi0=0.0)
    scales = summary.scales(flat, np.zeros_like(summary.phi))
    *_, strain, diffusion = summary.differences(flat)
    widest = np.abs(scales.s).max()
    strains = np.abs(strain) * widest
    largest = max(strains.max(), np.finfo(float).tiny ** 0.5)
    number = int(np.ceil(np.log10(400 * len(summary.time)) * per_decade)) + 1
    sizes = 0.05 / largest * 10 ** (np.arange(number) / per_decade)
    S = summary.shear_factor(sizes[:, None] * strains)
    E = np.exp(-scales.k[:, None] * diffusion)
    chisqr = chisqr_with_best_scaling(summary.c2 - 1, summary.weight, E, S)
    return ShearTable(sizes, chisqr, summary.phi, np.abs(scales.s) / widest)


def _minima(
    table: ShearTable, sizes: Float[np.ndarray, " size"], angles: Float[np.ndarray, " angle"]
) -> list[tuple[float, float, float]]:
    chisqr = table.map(sizes, angles)
    cells = local_minima(chisqr)[:MAX_MINIMA]
    n, m = np.array(cells).T
    log_size, angle = np.log(sizes[n]), angles[m]
    if len(angles) == 1 or len(sizes) == 1:
        return list(zip(chisqr[n, m].tolist(), sizes[n].tolist(), angle.tolist(), strict=True))
    wide = np.diff(np.append(angles, angles[0] + 180.0))
    step = np.log(sizes[1] / sizes[0]), np.minimum(wide[m - 1], wide[m])
    around = np.array([(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1)]).T[:, :, None]
    numbers = np.arange(len(cells))
    lowest = chisqr[n, m]
    for turn in range(SEARCH_ROUNDS):
        shorter = 0.5 * 0.75**turn
        trial = log_size + around[0] * step[0] * shorter, angle + around[1] * step[1] * shorter
        values = table.at(np.exp(trial[0]), trial[1])
        best = np.argmin(values, axis=0)
        log_size, angle = (moved[best, numbers] for moved in trial)
        lowest = values[best, numbers]
    minima = zip(lowest.tolist(), np.exp(log_size).tolist(), angle.tolist(), strict=True)
    return sorted(minima)


MAX_EXPONENTS = 3
N_STARTS = 8
"""Number of points of the scan from which fits start."""
N_COMPLETED = 5
"""Number of the best of these fits that are continued to their minimum."""
MAX_RESCANS = 3
PASSES_TO_MINIMUM = 40
FIXED, FREE = ((0, 100.0, 16), (2, 30.0, 5), (2, 10.0, 5)), ((2, 10.0, 5), (4, 3.0, 5))
"""Stages of fits with the offsets fixed, then with all parameters free: passes; χ² over the lowest χ², above
which a fit is dropped after them; and the number of fits that go on at most."""
MAX_CHISQR_RATIO = FREE[-1][1]
COMPETING_CHISQR_RATIO = 1.5
"""χ² over the lowest χ² of the averages, up to which minima are compared on the data."""
MAX_UNDECIDED = 4
_OFFSETS = ("D_offset", "gamma_dot_t_offset")


def diffusion_candidates(grid: Grid, theta: Theta, below: float) -> list[Theta]:
    """Return points with other rates of diffusion whose χ² is below a limit; values of the user stay.

    A constant rate and one that decreases at first may fit almost equally well, since D0 t^alpha and D_offset
    can replace each other; a least-squares fit does not go from one minimum to the other.
    """
    summary = grid.whole
    phases = summary.scales(theta, summary.phi).s[:, None] * summary.differences(theta)[-2]
    chisqr = grid.chisqr_of_pairs(summary, summary.shear_factor(phases)[:, None]).sum((0, 2))
    best: dict[float, int] = {}
    for n in np.argsort(chisqr).tolist():
        best.setdefault(grid.diffusion_pairs[n][1], n)
    chosen = [n for n in list(best.values())[:MAX_EXPONENTS] if chisqr[n] < below]
    model, is_given = summary.problem.model, np.isfinite(grid.search.start)
    points = [
        model.with_parts(theta, diffusion=(*grid.diffusion_pairs[n], grid.offset)) for n in chosen
    ]
    return [grid.search.inside(np.where(is_given, theta, point)) for point in points]


def transport_minima(
    summary: BinnedAverages, search: Search, mode: str, starts: int | None = None
) -> list[Minimum]:
    """Return the minima, the lowest first. starts: points of the scan that are followed.

    There is a search without the user's initial values, too: from them alone, a fit may reach a minimum that
    is not the lowest.
    """
    if not search.free.any():
        return [Minimum(search.start, np.nan, 1)]
    fits, unaided = BinnedFits(summary, search, mode), search.without_initial_values()
    ends = _searched(summary, fits, unaided, starts)
    is_given = np.isfinite(search.start)
    if is_given.all():
        from_given = fits.advanced(fits.started([search.inside(search.start)]), PASSES_TO_MINIMUM)
        ends = fits.merged([*ends, *from_given])
    elif is_given[search.free].any():
        ends = fits.merged([*ends, *_searched(summary, fits, search, starts)])
    return [end.minimum(int(search.free.sum())) for end in ends]


def _searched(
    summary: BinnedAverages, fits: BinnedFits, search: Search, starts: int | None
) -> list[BinnedFit]:
    grid = Grid(summary, search)
    ends = _scanned(grid, fits, starts)
    for _ in range(MAX_RESCANS if summary.problem.model.shear else 0):
        best = ends[0]
        rescanned = best.lowest.theta, np.inf if starts else MAX_CHISQR_RATIO * best.chisqr
        points = shear_candidates(grid, *rescanned) + diffusion_candidates(grid, *rescanned)
        ends = _joined(fits, ends, points, starts)
        if fits.same_minimum(best, ends[0]):
            break
    if summary.problem.model.shear:
        ends = _joined(fits, ends, mirrored_shear(grid, ends[0].lowest.theta), starts)
    return ends


def competing_minima(minima: list[Minimum]) -> list[Theta]:
    lowest = minima[0].chisqr
    return [low.theta for low in minima if not low.chisqr > COMPETING_CHISQR_RATIO * lowest]


def undecided_minima(minima: list[Minimum]) -> list[Theta]:
    lowest = minima[0]
    close = [low.theta for low in minima[1:] if low.chisqr - lowest.chisqr < lowest.variance]
    return [lowest.theta, *close[: MAX_UNDECIDED - 1]]


def _scanned(grid: Grid, fits: BinnedFits, starts: int | None) -> list[BinnedFit]:
    """Return the fits from the scan. At first offsets are fixed: a fit often gives them the full rate."""
    search = grid.search
    free = search.free & (~np.isin(search.names, _OFFSETS) | np.isfinite(search.start))
    fixed = BinnedFits(fits.summary, replace(search, free=free), fits.mode)
    points = scan_points(grid, starts or N_STARTS)
    if search.priors is not None:  # and with what they say
        points += scan_points(Grid(grid.summary, search.from_prior_means()), starts or N_STARTS)
    near = _approached(fixed, fixed.started(points), FIXED, starts)
    started = zip(near, fits.started([end.lowest.theta for end in near]), strict=True)
    return followed(fits, [replace(end, state=fit.state) for end, fit in started], starts)


def _joined(
    fits: BinnedFits, ends: list[BinnedFit], points: list[Theta], starts: int | None
) -> list[BinnedFit]:
    """Return the ends of fits and of others from points, which go on where they do not come to the best."""
    best = replace(ends[0], starts=0)  # counted among the ends
    near = _approached(fits, [best, *fits.started(points)], FREE, starts)
    return fits.merged([*fits.completed(near[: starts or N_COMPLETED]), *ends])


def followed(fits: BinnedFits, ends: list[BinnedFit], starts: int | None) -> list[BinnedFit]:
    return fits.completed(_approached(fits, ends, FREE, starts)[: starts or N_COMPLETED])


def _approached(
    fits: BinnedFits,
    ends: list[BinnedFit],
    stages: Iterable[tuple[int, float, int]],
    starts: int | None,
) -> list[BinnedFit]:
    """Return fits after passes, the lowest first; those that come to one minimum are one."""
    for passes, ratio, most in stages:
        ends = fits.merged(fits.advanced(ends, passes))
        if starts is None:
            ends = [end for end in ends[:most] if end.chisqr <= ratio * ends[0].chisqr]
    return ends
