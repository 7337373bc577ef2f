"""Initial values of shear rates that change their sign, and of models whose c2 has fringes.

Pairs of short lags show only the size of a rate: χ² of a rate and of one that changes its sign where it
is zero are alike, and no step leads from one to the other. So the size is fitted to short lags first, then
longer and longer lags are added, and at each of them the rate is tried with another sign from any spline on.

Of fringes χ² has a minimum for each number of turns over the record. So speed, its exponent and its direction
come from a scan of damped cosines on what slow decays leave of c2, and on c2 itself for fringes as slow as
the decay. Each bin sees the speed and its direction as one frequency: one table over frequencies does for
all.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product

import numpy as np
from jaxtyping import Bool, Float, Int

from homodyne_dask.fitting.start.averages import (
    BinnedAverages,
    BinnedFit,
    BinnedFits,
    Theta,
    chisqr_at_points,
)
from homodyne_dask.fitting.start.transport_search import (
    chisqr_with_best_scaling,
    distinct,
    given_or,
    local_minima,
)
from homodyne_dask.models.parameters import Search
from homodyne_dask.models.parametrized import Beat
from homodyne_dask.models.rate_forms import integrated
from homodyne_dask.store.scan import Scan
from homodyne_dask.sweep.cell_sums import AgeAndLagEdges
from homodyne_dask.sweep.sweep import Passes

AGES = 64
MAX_FINE_CELLS = 1000
"""Most averages that are fitted, chosen at random, as many in each octave of lags."""
SHARES = (1 / 16, 1 / 8, 1 / 4, 1.0)
"""Longest lags of the fits that follow each other, over the record."""
LEAST_NEAR_LAGS = 8
"""The same over the shortest lag, where that is more."""
NEAR_PASSES, PASSES_OF_TURN = 10, 5
"""Passes of a fit to some of the lags, and of one with another sign from a spline on."""
MAX_TURNS = 8


def fine_averages(
    scan: Scan,
    data: Passes,
    summary: BinnedAverages,
    lags: Int[np.ndarray, " edge"] | None = None,
    number: int = MAX_FINE_CELLS,
) -> BinnedAverages:
    """Return so many averages of the selected pairs over short ages and lags [frames]: one pass."""
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
    """sizes: points whose rate keeps its sign. others: from which fits to all lags start."""
    lower = search.lower.copy()
    lower[rate] = np.maximum(lower[rate], 0.0)
    shortest = summary.up_to_lag(_longest(summary, SHARES[0]))
    fits = BinnedFits(shortest, replace(search, lower=lower), mode)
    theta = fits.ends(sizes, 2 * NEAR_PASSES)[0].lowest.theta
    for share in SHARES:
        near, with_strengths = summary.up_to_lag(_longest(summary, share)), search
        fits = BinnedFits(near, search, mode)
        state = fits.advanced(fits.started([theta]), NEAR_PASSES)[0].lowest
        theta, penalty = state.theta, state.reduced.penalty
        if penalty is not None and search.smoothness is not None:
            # to choose its strengths takes time
            strengths = dict(zip(penalty.names, penalty.strengths.values.tolist(), strict=True))
            smoothness = replace(search.smoothness, given=strengths)
            with_strengths = replace(search, smoothness=smoothness)
        fits = BinnedFits(near, with_strengths, mode)
        for lowest_of in (_without_fit, _with_fits):
            theta = _turned(fits, theta, rate, lowest_of)
    fits = BinnedFits(summary, search, mode)
    return fits.ends([theta, *others], 4 * NEAR_PASSES)


type _Lowest = tuple[Theta, float, float]
"""theta, χ² there, and by how much another χ² must be lower to count as that."""


def _without_fit(fits: BinnedFits, thetas: list[Theta]) -> _Lowest:
    chisqr = fits.chisqr_at(thetas)
    n = int(np.argmin(chisqr))
    return thetas[n], chisqr[n], 0.0


def _with_fits(fits: BinnedFits, thetas: list[Theta]) -> _Lowest:
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


MAX_LAG = 512
"""Frames up to which lags are single; longer ones are averaged over about a thirtieth of them."""
MAX_CELLS = 1500
EXPONENTS = (-1.5, -1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0, 1.5)
N_DECAYS = 6
"""Rates of decay that are scanned, for fringes and for each of the components."""
N_ANGLES = 90
LEAST_LAGS, FACTOR = 8, 4
"""Longest lag of the first fits in frames, and the ratio of those of two fits that follow each other."""
N_STARTS, PASSES = 6, 8
"""Points from which fits up to a lag start, and their passes."""
STEPS_PER_TURN = 8
"""Frequencies that are scanned for each turn over the longest lag."""
N_FREQUENCIES = 6
"""Minima of the scan from which fits start, of each of the two sets of data."""
NEAR_SPEED, NEAR_ANGLE = 0.1, 10.0
"""Logarithm of the ratio of speeds, and angle [degree], up to which minima are one."""


type _Fringes = tuple[float, dict[str, float]]
"""χ² of a minimum of the scan, and the parameters of the fringes there."""


def single_lags(scan: Scan, data: Passes | None, summary: BinnedAverages) -> BinnedAverages:
    if data is None or scan.cells is not None:
        return summary
    frames = scan.frames[1] - scan.frames[0]
    longer = MAX_LAG * 2 ** np.arange(0, np.log2(max(frames / MAX_LAG, 1)), 0.05)
    lags = np.unique([*range(1, min(MAX_LAG, frames)), *longer.astype(int)])
    return fine_averages(scan, data, summary, lags, MAX_CELLS)


def beat_points(summary: BinnedAverages, beat: Beat, search: Search, mode: str) -> list[Theta]:
    """Follow the best frequencies at short lags to longer and longer ones, which know more and more turns.

    Frequencies that only longer lags show join them there. In the first fits, exponents stay where the scan
    has them: short lags do not show them.
    """
    scanned = np.isin(search.names, [beat.speed, beat.direction, beat.fraction, *beat.decays])
    return points_of_all_lags(summary, search, mode, [], scanned, beat)


def points_of_all_lags(
    summary: BinnedAverages,
    search: Search,
    mode: str,
    points: list[Theta],
    first: Bool[np.ndarray, " p"],
    beat: Beat | None = None,
) -> list[Theta]:
    """Return the ends of fits that follow the fringes from short lags to all; first: what short lags show."""
    for near, longest in _up_to_lags(summary):
        for candidates in () if beat is None else _starts(near, beat, search, longest):
            chisqr = chisqr_at_points(near, search, mode, candidates)
            points = points + [candidates[np.argmin(chisqr)]] * bool(np.isfinite(chisqr).any())
        fits = BinnedFits(near, replace(search, free=search.free & first), mode)
        points = [end.lowest.theta for end in fits.ends(points, PASSES)[:N_STARTS]]
        first = search.free
    return points


def _up_to_lags(summary: BinnedAverages) -> Iterator[tuple[BinnedAverages, float]]:
    lag = summary.t2 - summary.t1
    longest, last = LEAST_LAGS * summary.spacing, lag.max() / FACTOR
    while longest < last:
        yield summary.up_to_lag(longest * (1 + 1e-9)), longest
        longest = FACTOR * longest
    yield summary, float(lag.max())


def _starts(
    summary: BinnedAverages, beat: Beat, search: Search, longest: float
) -> Iterator[Float[np.ndarray, "point p"]]:
    summary = summary.at_cells((summary.weight > 0).any(0))
    rates = np.geomspace(0.1 / longest, 2 / summary.spacing, N_DECAYS)
    q2 = float(np.nanmedian(summary.q**2)) if beat.direction else 1.0
    of_decays = [given_or(search, name, rates / q2) for name in beat.decays]
    fractions = given_or(search, beat.fraction, (0.15, 0.3, 0.5, 0.7, 0.85))
    fill = np.clip(np.where(search.lower > 0, 1.0, 0.0), search.lower, search.upper)
    for c2 in (_without_slow_decays(summary), summary.c2 - 1):
        for fringes in _distinct(_minima(summary, c2, beat, search, rates), beat):
            points = []
            for fraction, *decays in product(fractions, *of_decays):
                values = dict(zip((beat.fraction, *beat.decays), (fraction, *decays), strict=True))
                values |= fringes
                point = np.array([values.get(name, fill[n]) for n, name in enumerate(search.names)])
                points.append(search.with_given(point))
            yield np.array(points)


def _distinct(minima: Iterable[_Fringes], beat: Beat) -> list[dict[str, float]]:

    def near(fringes: dict[str, float], chosen: dict[str, float]) -> bool:
        turned = (fringes[beat.direction] - chosen[beat.direction] + 90) % 180 - 90
        ratio = fringes[beat.speed] / chosen[beat.speed]
        return abs(np.log(ratio)) < NEAR_SPEED and abs(turned) < NEAR_ANGLE

    lowest = sorted(minima, key=lambda fringes: fringes[0])
    return distinct((values for _, values in lowest), near, N_FREQUENCIES)


def _without_slow_decays(summary: BinnedAverages) -> Float[np.ndarray, "bin cell"]:
    """Return c2 - 1 without the best combination of a constant and two slow decays of the lag."""
    lag, residuals = summary.t2 - summary.t1, []
    slow = np.exp(-np.array([0.0, 0.5, 3.0]) / lag.max() * lag[:, None])
    for y, weight in zip(summary.c2 - 1, summary.weight, strict=True):
        root = np.sqrt(weight)
        amplitudes, *_ = np.linalg.lstsq(slow * root[:, None], y * root, rcond=1e-6)
        residuals.append(y - slow @ amplitudes)
    return np.array(residuals)


def _minima(
    summary: BinnedAverages, c2: Float[np.ndarray, "bin cell"], beat: Beat, search: Search,
    rates: Float[np.ndarray, " n"],
) -> Iterator[_Fringes]:  # fmt: skip
    time, lag = summary.time, summary.t2 - summary.t1
    middle, damping = float(np.median(time[time > 0])), np.exp(-rates[:, None] * lag)
    top = 0.5 / summary.spacing
    frequency = top * np.arange(1, 2 + int(STEPS_PER_TURN * top * lag.max()))
    frequency /= len(frequency)
    angles = given_or(search, beat.direction, 180.0 * np.arange(N_ANGLES) / N_ANGLES - 90)
    unit = {beat.speed: 1.0, beat.exponent: 0.0}
    scale = np.array([
        [float(beat.turns(unit | {beat.direction: angle}, np.ones(1), q, phi)[0]) for angle in angles]
        for q, phi in zip(summary.q, summary.phi, strict=True)
    ])  # fmt: skip
    for exponent in given_or(search, beat.exponent, EXPONENTS):
        # turns at the frequency 1 in the middle of the record
        rate = np.where(time > 0, np.where(time > 0, time, 1.0) ** exponent, 0.0)
        whole = integrated(rate, np.diff(time))
        turned = np.interp(summary.t2, time, whole) - np.interp(summary.t1, time, whole)
        turned /= middle**exponent
        cosines = np.cos(2 * np.pi * frequency[:, None] * turned).astype(np.float32)
        chisqr = [
            chisqr_with_best_scaling(y, w, damping.astype(np.float32), cosines).min(0)
            for y, w in zip(c2, summary.weight, strict=True)
        ]
        speeds = given_or(search, beat.speed, frequency / scale.max() / middle**exponent)
        of_bin = speeds[:, None] * middle**exponent * scale[:, None, :]
        cells = np.clip(np.rint(of_bin / frequency[0]).astype(int) - 1, 0, len(frequency) - 1)
        total = sum(
            (row[cell] for row, cell in zip(chisqr, cells, strict=True)), np.zeros(cells[0].shape)
        )
        for n, m in local_minima(total)[:N_FREQUENCIES]:
            values = {beat.speed: speeds[n], beat.exponent: exponent, beat.direction: angles[m]}
            yield float(total[n, m]), values
