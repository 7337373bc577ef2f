"""Initial values of the transport models: a scan of the averages, fits from its best points, finer scans.

Fits to the averages over age and lag start from points of the scan that are far apart (`grid`). From the
best of them, strain, direction of flow (`shear_scan`) and diffusion (`diffusion_candidates`) are scanned
again more finely, until no lower minimum is found. The last fit starts from the shear rate of the opposite
sign (`mirrored_shear`).
"""

from dataclasses import replace

import numpy as np

from homodyne_dask.fitting.start.averages import BinnedAverages, Theta
from homodyne_dask.fitting.start.binned_fits import BinnedFit, BinnedFits, Minimum, promising
from homodyne_dask.fitting.start.grid_scan import Grid, scan_points
from homodyne_dask.fitting.start.shear_scan import mirrored_shear, shear_candidates
from homodyne_dask.models.parameters import Search

MAX_EXPONENTS = 3
"""Most exponents returned, each with its best rate."""
N_STARTS = 8
"""Number of points of the scan from which fits start."""
N_COMPLETED = 3
"""Number of the best of these fits that are continued to their minimum."""
N_COMPLETED_RESCAN = 2
"""The same for the fits from a finer scan."""
MAX_RESCANS = 3
"""Most repetitions of the finer scans."""
PASSES_FIXED, PASSES_FREE, PASSES_TO_MINIMUM = 6, 6, 40
"""Passes of a fit: with the offsets fixed, with all parameters free, and to its minimum."""
MAX_CHISQR_RATIO_FIXED, MAX_CHISQR_RATIO = 10.0, 3.0
"""χ² over the lowest χ², above which a fit is dropped, after passes with fixed offsets, and the next."""
COMPETING_CHISQR_RATIO = 1.5
"""χ² over the lowest χ² of the averages, up to which minima are compared on the data."""
MAX_UNDECIDED = 4
"""Most minima from which fits to the data start."""
_OFFSETS = ("D_offset", "gamma_dot_t_offset")


def diffusion_candidates(grid: Grid, theta: Theta, below: float) -> list[Theta]:
    """Return theta with the rates and exponents of the scan that have the lowest χ² at its shear.

    A constant rate and one that decreases at first may fit almost equally well, since D0 t^alpha and D_offset
    can replace each other; a least-squares fit does not go from one minimum to the other.

    Values given by the user stay as in theta. below: points with a higher χ² are excluded.
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
    """Return the distinct minima of fits to the averages, the best first.

    Initial values that the user gives are where a search begins beside the one that knows none: alone they
    may lead to a minimum that is not the lowest. starts: how many points of the scan are followed to their
    minimum; by default a few, of which the most promising are completed.
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
    """Return the fits from a scan of what has no initial value, and from finer scans, best first."""
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
    """Return theta of the minima that may be the lowest one of the data."""
    lowest = minima[0].chisqr
    return [at.theta for at in minima if not at.chisqr > COMPETING_CHISQR_RATIO * lowest]


def undecided_minima(minima: list[Minimum]) -> list[Theta]:
    """Return theta of the lowest minimum and of those that the averages do not tell from it.

    Their χ² is higher by less than the variance of a residual: only fits to the data show which is lower.
    """
    lowest = minima[0]
    close = [at.theta for at in minima[1:] if at.chisqr - lowest.chisqr < lowest.variance]
    return [lowest.theta, *close[: MAX_UNDECIDED - 1]]


def _scanned(grid: Grid, fits: BinnedFits, starts: int | None) -> list[BinnedFit]:
    """Return the fits from points of the scan, best first.

    The offsets are fixed at first: with all parameters free, a fit often attributes the full rate to them
    and leaves amplitude and exponent at a bound, where χ² does not depend on them.
    """
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
    """Return `ends` and those of fits from finer scans around the best of them."""
    best, theta = ends[0], ends[0].lowest.theta
    worst = np.inf if starts else MAX_CHISQR_RATIO * best.chisqr
    points = [*shear_candidates(grid, theta, worst), *diffusion_candidates(grid, theta, worst)]
    rescanned = fits.ends(points, PASSES_FREE)
    there = [end for end in rescanned if fits.same_minimum(best, end)]
    new = [end for end in rescanned if not fits.same_minimum(best, end) and end.chisqr <= worst]
    return fits.merged([*ends, *there, *completed(fits, new, starts or N_COMPLETED_RESCAN)])


def followed(fits: BinnedFits, thetas: list[Theta], starts: int | None) -> list[BinnedFit]:
    """Return the distinct fits that start from some points, the best first; see `transport_minima`."""
    ends = fits.advanced(fits.started(thetas), PASSES_FREE)
    if starts is None:
        ends = promising(ends, MAX_CHISQR_RATIO)
    return completed(fits, ends, starts or N_COMPLETED)


def completed(fits: BinnedFits, ends: list[BinnedFit], number: int) -> list[BinnedFit]:
    """Return the distinct fits, the best of them continued to their minimum, the best first."""
    distinct = fits.merged(ends)
    return fits.merged(fits.advanced(distinct[:number], PASSES_TO_MINIMUM))
