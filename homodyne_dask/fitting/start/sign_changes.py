"""Where a shear rate of free form changes its sign, from averages of the data over short ages and lags.

Pairs of short lags show only the size of the rate: χ² of a rate and of one that changes its sign where it
is zero are alike, and no step leads from one to the other. So the size is fitted to short lags first, then
longer and longer lags are added, and at each of them the rate is tried with another sign from any spline on.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from jaxtyping import Int

from homodyne_dask.fitting.start.averages import BinnedAverages, Theta
from homodyne_dask.fitting.start.binned_fits import BinnedFit, BinnedFits
from homodyne_dask.models.parameters import Search
from homodyne_dask.store.scan import Scan
from homodyne_dask.sweep.cell_sums import AgeAndLagEdges
from homodyne_dask.sweep.sweep import Passes

AGES = 64
"""Steps of age in which the data are averaged."""
MAX_FINE_CELLS = 1000
"""Most averages that are fitted, chosen at random, as many in each octave of lags."""
SHARES = (1 / 16, 1 / 8, 1 / 4, 1.0)
"""Longest lags of the fits that follow each other, over the record."""
LEAST_NEAR_LAGS = 8
"""The same over the shortest lag, where that is more."""
NEAR_PASSES, PASSES_OF_TURN = 10, 5
"""Passes of a fit to some of the lags, and of one with another sign from a spline on."""
MAX_TURNS = 8
"""Most changes of sign that are made one after the other."""


def fine_averages(
    scan: Scan,
    data: Passes,
    summary: BinnedAverages,
    lags: Int[np.ndarray, " edge"] | None = None,
    number: int = MAX_FINE_CELLS,
) -> BinnedAverages:
    """Return averages of the selected pairs over shorter ages and lags than those stored: one pass.

    lags: frames between which they are averaged, by default about as many as ages. number: of averages that
    are kept.
    """
    first, stop = scan.frames
    step = max(1, (stop - first) // AGES)
    if lags is None:
        short = [lag for k in range(2 * int(np.log2(2 * step))) for lag in [round(2 ** (k / 2))]]
        lags = np.unique([*short, *range(step, stop - first + step, step)])
    ages = np.append(np.arange(first, stop, step), stop)
    edges = AgeAndLagEdges(ages, np.append(lags[lags < stop - first], stop - first))
    sums = data.cells(edges).weighted
    total = sums.sum(0)
    lag = np.where(total[:, 0] > 0, total[:, 3] - total[:, 2], np.inf) / total[:, 0].clip(1e-300)
    order = np.argsort(np.random.default_rng(0).random(len(lag)) * lag)[:number]
    return summary.of_cells(sums, np.sort(order[np.isfinite(lag[order])]))


def only_short_lags(summary: BinnedAverages) -> BinnedAverages:
    """Return the averages of the shortest lags, which do not show signs of the shear rate."""
    return summary.at_cells(summary.t2 - summary.t1 <= _longest(summary, SHARES[0]))


def _longest(summary: BinnedAverages, share: float) -> float:
    record, shortest = summary.t2.max() - summary.t1.min(), (summary.t2 - summary.t1).min()
    return float(max(share * record, LEAST_NEAR_LAGS * shortest))


def with_sign_changes(
    summary: BinnedAverages,
    search: Search,
    mode: str,
    rate: slice,
    sizes: list[Theta],
    others: list[Theta],
) -> list[BinnedFit]:
    """Return the fits to all lags, best first, that began with the size of the rate at short lags.

    rate: the coefficients of the shear rate in theta. sizes: points whose rate keeps its sign. others:
    points from which fits to all lags start, too.
    """
    lower = search.lower.copy()
    lower[rate] = np.maximum(lower[rate], 0.0)
    shortest = summary.up_to_lag(_longest(summary, SHARES[0]))
    fits = BinnedFits(shortest, replace(search, lower=lower), mode)
    theta = fits.ends(sizes, 2 * NEAR_PASSES)[0].lowest.theta
    for share in SHARES:
        near, given = summary.up_to_lag(_longest(summary, share)), search
        fits = BinnedFits(near, search, mode)
        state = fits.advanced(fits.started([theta]), NEAR_PASSES)[0].lowest
        theta, penalty = state.theta, state.reduced.penalty
        if penalty is not None and search.smoothness is not None:
            # to choose its strengths takes time
            strengths = dict(zip(penalty.names, penalty.strengths.values.tolist(), strict=True))
            given = replace(search, smoothness=replace(search.smoothness, given=strengths))
        fits = BinnedFits(near, given, mode)
        for lowest_of in (_without_fit, _with_fits):
            theta = _turned(fits, theta, rate, lowest_of)
    fits = BinnedFits(summary, search, mode)
    return fits.ends([theta, *others], 4 * NEAR_PASSES)


type _Lowest = tuple[Theta, float, float]
"""theta, χ² there, and by how much another χ² must be lower to count as that."""


def _without_fit(fits: BinnedFits, thetas: list[Theta]) -> _Lowest:
    """Return the lowest of some points."""
    chisqr = fits.chisqr_at(thetas)
    n = int(np.argmin(chisqr))
    return thetas[n], chisqr[n], 0.0


def _with_fits(fits: BinnedFits, thetas: list[Theta]) -> _Lowest:
    """Return the end of the lowest of fits from some points, a few passes on."""
    if len(thetas) > 1:
        ends = fits.advanced(fits.started(thetas), PASSES_OF_TURN)
    else:
        ends = fits.started(thetas)
    [best] = fits.advanced([min(ends, key=lambda end: end.chisqr)], NEAR_PASSES)
    return best.lowest.theta, best.chisqr, best.lowest.reduced.variance(len(thetas[0]))


def _turned(
    fits: BinnedFits,
    theta: Theta,
    rate: slice,
    lowest_of: Callable[[BinnedFits, list[Theta]], _Lowest],
) -> Theta:
    """Return theta of the lowest χ² that is found by giving the rate its other sign from a spline on."""
    best = lowest_of(fits, [theta])
    for _ in range(MAX_TURNS):
        turned = []
        for n in range(rate.start + 1, rate.stop):
            other = best[0].copy()
            other[n : rate.stop] *= -1
            turned.append(fits.search.inside(other))
        other = lowest_of(fits, turned)
        if not other[1] < best[1] - best[2]:
            break
        best = other
    return best[0]
