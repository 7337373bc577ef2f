"""Initial values of the transport models: a scan of the averages, fits from its best points, finer scans.

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

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from homodyne_dask.fitting.start.averages import BinnedAverages, Theta
from homodyne_dask.fitting.start.grid_scan import (
    BinnedFit,
    BinnedFits,
    Grid,
    Minimum,
    ShearTable,
    chisqr_with_best_scaling,
    local_minima,
    promising,
    scan_points,
)
from homodyne_dask.models.parameters import Search
from homodyne_dask.models.transport import Convention

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
    given = grid.search.start[shear_rate]
    whole = bool(np.isnan(given).all())
    found = _points(grid, theta, [theta[shear_rate]], FITTED_SHAPE_RESOLUTION, whole)
    if np.isnan(given[0]):
        powers = [np.array([grid.middle**-beta, beta, 0.0]) for beta in grid.betas]
        found += _points(grid, theta, powers, POWER_LAW_RESOLUTION, True)
    return [point for value, point in found if value < below]


def mirrored_shear(grid: Grid, theta: Theta) -> list[Theta]:
    """In the middle of the record value and slope are those of -γ̇; nothing where a part is given."""
    problem, search = grid.summary.problem, grid.search
    model = problem.model
    given = not np.isnan(search.start[model.shear_rate]).all()
    a, b, c = theta[model.shear_rate]
    if given or problem.convention is Convention.HOMODYNE or b == 0:
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
) -> list[tuple[float, Theta]]:
    """Return the lowest minima of the shapes' maps with their χ², best first; shapes: γ̇(t) up to a factor."""
    model, given = grid.whole.problem.model, np.isfinite(grid.search.start)
    phi0 = model.direction
    angles = theta[phi0] if given[phi0].all() else _angles(grid, resolution.angles)
    scored = []
    for shape in shapes:
        table = _table(grid.whole, theta, shape, resolution.rows)
        sizes = table.sizes[:: resolution.size_step]
        for value, size, angle in _minima(table, sizes if all_sizes else np.ones(1), angles):
            power = size - grid.shear_offset if all_sizes else size
            if power <= 0:
                continue
            rate = shape * (power, 1.0, size)
            point = np.where(given, theta, model.with_parts(theta, shear_rate=rate, phi0=angle))
            scored.append((value, grid.search.inside(point)))
    scored.sort(key=lambda entry: entry[0])
    return scored[: resolution.max_points]


def _angles(grid: Grid, per_decade: int) -> Float[np.ndarray, " angle"]:
    at = grid.search.names.index("phi0")
    low, high = grid.search.lower[at], grid.search.upper[at]
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
    beside = np.array([(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1)]).T[:, :, None]
    each = np.arange(len(cells))
    lowest = chisqr[n, m]
    for turn in range(SEARCH_ROUNDS):
        shorter = 0.5 * 0.75**turn
        tried = log_size + beside[0] * step[0] * shorter, angle + beside[1] * step[1] * shorter
        values = table.at(np.exp(tried[0]), tried[1])
        best = np.argmin(values, axis=0)
        log_size, angle = (of[best, each] for of in tried)
        lowest = values[best, each]
    found = zip(lowest.tolist(), np.exp(log_size).tolist(), angle.tolist(), strict=True)
    return sorted(found)


MAX_EXPONENTS = 3
N_STARTS = 8
"""Number of points of the scan from which fits start."""
N_COMPLETED = 3
"""Number of the best of these fits that are continued to their minimum."""
N_COMPLETED_RESCAN = 2
MAX_RESCANS = 3
PASSES_FIXED, PASSES_FREE, PASSES_TO_MINIMUM = 6, 6, 40
"""Passes of a fit: with the offsets fixed, with all parameters free, and to its minimum."""
MAX_CHISQR_RATIO_FIXED, MAX_CHISQR_RATIO = 10.0, 3.0
"""χ² over the lowest χ², above which a fit is dropped, after passes with fixed offsets, and the next."""
COMPETING_CHISQR_RATIO = 1.5
"""χ² over the lowest χ² of the averages, up to which minima are compared on the data."""
MAX_UNDECIDED = 4
_OFFSETS = ("D_offset", "gamma_dot_t_offset")


def diffusion_candidates(grid: Grid, theta: Theta, below: float) -> list[Theta]:
    """below: points with a higher χ² are excluded. Values given by the user stay as in theta.

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
    model, given = summary.problem.model, np.isfinite(grid.search.start)
    points = [
        model.with_parts(theta, diffusion=(*grid.diffusion_pairs[n], grid.offset)) for n in chosen
    ]
    return [grid.search.inside(np.where(given, theta, point)) for point in points]


def transport_minima(
    summary: BinnedAverages, search: Search, mode: str, starts: int | None = None
) -> list[Minimum]:
    """Initial values that the user gives are where a search begins beside the one that knows none.

    Alone they may lead to a minimum that is not the lowest. starts: points of the scan that are followed.
    """
    if not search.free.any():
        return [Minimum(search.start, np.nan, 1)]
    fits, unaided = BinnedFits(summary, search, mode), search.without_initial_values()
    ends = _searched(summary, fits, unaided, starts)
    given = np.isfinite(search.start)
    if given.all():
        own = fits.advanced(fits.started([search.inside(search.start)]), PASSES_TO_MINIMUM)
        ends = fits.merged([*ends, *own])
    elif given[search.free].any():
        ends = fits.merged([*ends, *_searched(summary, fits, search, starts)])
    return [end.minimum(int(search.free.sum())) for end in ends]


def _searched(
    summary: BinnedAverages, fits: BinnedFits, search: Search, starts: int | None
) -> list[BinnedFit]:
    grid = Grid(summary, search)
    ends = _scanned(grid, fits, starts)
    for _ in range(MAX_RESCANS if summary.problem.model.shear else 0):
        best = ends[0]
        ends = _with_rescan(grid, fits, ends, starts)
        if fits.same_minimum(best, ends[0]):
            break
    if summary.problem.model.shear:
        mirrored = mirrored_shear(grid, ends[0].lowest.theta)
        ends = fits.merged([*ends, *fits.ends(mirrored, PASSES_TO_MINIMUM)])
    return ends


def competing_minima(minima: list[Minimum]) -> list[Theta]:
    lowest = minima[0].chisqr
    return [at.theta for at in minima if not at.chisqr > COMPETING_CHISQR_RATIO * lowest]


def undecided_minima(minima: list[Minimum]) -> list[Theta]:
    lowest = minima[0]
    close = [at.theta for at in minima[1:] if at.chisqr - lowest.chisqr < lowest.variance]
    return [lowest.theta, *close[: MAX_UNDECIDED - 1]]


def _scanned(grid: Grid, fits: BinnedFits, starts: int | None) -> list[BinnedFit]:
    """The offsets are fixed at first: with all parameters free, a fit often gives them the full rate."""
    search = grid.search
    free = search.free & (~np.isin(search.names, _OFFSETS) | np.isfinite(search.start))
    fixed = BinnedFits(fits.summary, replace(search, free=free), fits.mode)
    points = scan_points(grid, starts or N_STARTS)
    if search.priors is not None:  # and with what they say
        points += scan_points(Grid(grid.summary, search.from_prior_means()), starts or N_STARTS)
    near = fixed.advanced(fixed.started(points), PASSES_FIXED)
    if starts is None:
        near = promising(near, MAX_CHISQR_RATIO_FIXED)
    return followed(fits, [end.lowest.theta for end in near], starts)


def _with_rescan(
    grid: Grid, fits: BinnedFits, ends: list[BinnedFit], starts: int | None
) -> list[BinnedFit]:
    best, theta = ends[0], ends[0].lowest.theta
    worst = np.inf if starts else MAX_CHISQR_RATIO * best.chisqr
    points = [*shear_candidates(grid, theta, worst), *diffusion_candidates(grid, theta, worst)]
    rescanned = fits.ends(points, PASSES_FREE)
    there = [end for end in rescanned if fits.same_minimum(best, end)]
    new = [end for end in rescanned if not fits.same_minimum(best, end) and end.chisqr <= worst]
    return fits.merged([*ends, *there, *_completed(fits, new, starts or N_COMPLETED_RESCAN)])


def followed(fits: BinnedFits, thetas: list[Theta], starts: int | None) -> list[BinnedFit]:
    ends = fits.advanced(fits.started(thetas), PASSES_FREE)
    if starts is None:
        ends = promising(ends, MAX_CHISQR_RATIO)
    return _completed(fits, ends, starts or N_COMPLETED)


def _completed(fits: BinnedFits, ends: list[BinnedFit], number: int) -> list[BinnedFit]:
    return fits.merged(fits.advanced(fits.merged(ends)[:number], PASSES_TO_MINIMUM))
