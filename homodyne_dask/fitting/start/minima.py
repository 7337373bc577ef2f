"""First values from the data: a scan of the averages over age and lag, small fits, and a look around.

Small fits start from points of the scan that lie apart (`grid`); from the best end the strains and
directions are scanned again more finely (`shear_scan`), and so on until nothing lower turns up.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from homodyne_dask.fitting.start.averages import BinnedAverages
from homodyne_dask.fitting.start.binned_fits import BinnedFit, BinnedFits, credible
from homodyne_dask.fitting.start.diffusion_scan import diffusion_candidates
from homodyne_dask.fitting.start.grid import Grid, scan_points
from homodyne_dask.fitting.start.shear_scan import shear_candidates
from homodyne_dask.models.parameters import Search

REFINED = 8
"""Points of the scan from which a small fit starts."""
CARRIED = 3
"""Of these, how many of the best go on to their end."""
CARRIED_AROUND = 2
"""The same for every look around."""
LOOKS = 3
"""Most looks around."""
HELD, SHORT, LONG = 6, 6, 40
"""Passes of a small fit: with the offsets held, with all free, and to its end."""
AFTER_HELD, CREDIBLE = 10.0, 3.0
"""Times the lowest χ²: above, a fit is not carried on after its first passes, and after the next."""
RIVAL = 1.5
"""Times the lowest χ² of the averages: above, a minimum is not compared with it on the data."""
_OFFSETS = ("D_offset", "gamma_dot_t_offset")


class Minimum(NamedTuple):
    """A minimum of χ² on the averages."""

    theta: Float[np.ndarray, " p"]
    chisqr: float
    """On the averages; NaN where the user gave theta."""
    starts: int
    """Small fits that ended there."""


def transport_minima(
    summary: BinnedAverages, search: Search, mode: str, starts: int | None = None
) -> list[Minimum]:
    """Return the distinct minima that small fits ended in, the best first.

    With everything given by the user that point alone is returned, as it is. `starts` is how many
    points of the scan are followed to their end; without it, of a few only the most promising.
    """
    if np.isfinite(search.start).all():
        return [Minimum(search.start, np.nan, 1)]
    grid, fits = Grid(summary, search), BinnedFits(summary, search, mode)
    ends = _scanned(grid, fits, starts)
    for _ in range(LOOKS if summary.problem.model.shear else 0):
        best = ends[0]
        ends = _looked_around(grid, summary, fits, ends, starts)
        if fits.same(best, ends[0]):
            break
    return [Minimum(end.lowest.theta, end.chisqr, end.starts) for end in ends]


def competing_minima(minima: list[Minimum]) -> list[Float[np.ndarray, " p"]]:
    """Return theta of the minima that may be the lowest one of the data themselves."""
    lowest = minima[0].chisqr
    return [at.theta for at in minima if not at.chisqr > RIVAL * lowest]


def _scanned(grid: Grid, fits: BinnedFits, starts: int | None) -> list[BinnedFit]:
    """Return the ends of fits from points of the scan, best first.

    The offsets stay as they are at first: with all free a fit often takes them for the whole rate and
    leaves amplitude and exponent at a bound, where nothing depends on them.
    """
    search = fits.search
    free = [
        name not in _OFFSETS or np.isfinite(at)
        for name, at in zip(search.names, search.start, strict=True)
    ]
    held = BinnedFits(fits.summary, replace(search, free=search.free & np.array(free)), fits.mode)
    near = held.advanced(held.started(scan_points(grid, starts or REFINED)), HELD)
    if starts is None:
        near = credible(near, AFTER_HELD)
    ends = fits.advanced(fits.started([end.lowest.theta for end in near]), SHORT)
    if starts is None:
        ends = credible(ends, CREDIBLE)
    return refined(fits, ends, starts or CARRIED)


def _looked_around(
    grid: Grid, summary: BinnedAverages, fits: BinnedFits, ends: list[BinnedFit], starts: int | None
) -> list[BinnedFit]:
    """Return `ends` and those of fits from points around the best of them."""
    best = ends[0]
    worst = np.inf if starts else CREDIBLE * best.chisqr
    theta = best.lowest.theta
    points = shear_candidates(grid, summary, theta, worst) + diffusion_candidates(
        grid, summary, theta, worst
    )
    found = fits.merged(fits.advanced(fits.started(points), SHORT))
    there = [end for end in found if fits.same(best, end)]
    new = [end for end in found if not fits.same(best, end) and end.chisqr <= worst]
    return fits.merged([*ends, *there, *refined(fits, new, starts or CARRIED_AROUND)])


def refined(fits: BinnedFits, ends: list[BinnedFit], number: int) -> list[BinnedFit]:
    """Return the distinct ends, the best of them carried on to the end, and then the best first."""
    apart = fits.merged(ends)
    return fits.merged(fits.advanced(apart[:number], LONG))
