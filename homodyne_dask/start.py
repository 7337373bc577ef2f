"""First values from the data: a scan of the averages over age and lag, small fits, and a look around.

Small fits start from points of the scan that lie apart (`grid`); from the best end the strains and
directions are scanned again more finely (`around`), and so on until nothing lower turns up.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from homodyne_dask import lm
from homodyne_dask.around import around
from homodyne_dask.averages import Summary
from homodyne_dask.grid import Grid, scan_points
from homodyne_dask.parameters import Search
from homodyne_dask.scaling import reduce

REFINED = 8
"""Points of the scan from which a small fit starts."""
CARRIED = 3
"""Of these, how many of the best go on to their end."""
CARRIED_AROUND = 2
"""The same for every look around."""
LOOKS = 3
"""Most looks around."""
_SHORT = lm.Options(max_passes=10, decrement=1e-3)
_LONG = lm.Options(max_passes=40, decrement=1e-3)
_OFFSETS = ("D_offset", "gamma_dot_t_offset")


class Minimum(NamedTuple):
    """A minimum of χ² on the averages."""

    theta: Float[np.ndarray, " p"]
    chisqr: float
    """On the averages; NaN where the user gave theta."""
    starts: int
    """Small fits that ended there."""


def first_values(
    summary: Summary, search: Search, mode: str, starts: int | None = None
) -> list[Minimum]:
    """Return the distinct minima that small fits ended in, the best first.

    With everything given by the user that point alone is returned, as it is. `starts` is how many
    points of the scan are followed to their end; without it, of a few only the most promising.
    """
    if np.isfinite(search.start).all():
        return [Minimum(search.start, np.nan, 1)]
    small = _SmallFits(summary, search, mode)
    grid = Grid(summary, search)
    ends = small.ends(scan_points(grid, starts or REFINED), starts or CARRIED)
    for _ in range(LOOKS if summary.problem.model.shear else 0):
        best = ends[0].state
        found = small.ends(around(grid, best.theta), starts or CARRIED_AROUND, best)
        ends = small.merged([*ends, *found])
        if small.same(best, ends[0].state):
            break
    return [Minimum(end.state.theta, end.state.reduced.chisqr, end.starts) for end in ends]


class _End(NamedTuple):
    """Where a small fit ended, or several."""

    state: lm.State
    starts: int


class _SmallFits:
    """Fits of the averages."""

    def __init__(self, summary: Summary, search: Search, mode: str) -> None:
        self.summary, self.search, self.mode = summary, search, mode
        start = dict(zip(search.names, search.start, strict=True))
        held = [name in _OFFSETS and np.isnan(start[name]) for name in search.names]
        self.held = replace(search, free=search.free & ~np.array(held))

    def ends(
        self, points: list[Float[np.ndarray, " p"]], carried: int, known: lm.State | None = None
    ) -> list[_End]:
        """Return the ends of fits from points, best first, of which `carried` go beyond a few passes.

        From the scan, the offsets stay as they are at first: with all free a fit often takes them
        for the whole rate and leaves amplitude and exponent at a bound, where nothing depends on them.
        Ends at the state `known` are only counted.
        """
        begun = []
        for theta in points:
            if known is None:
                theta = self.fit(theta, self.held, _SHORT).theta
            begun.append(_End(self.fit(theta, self.search, _SHORT), 1))
        apart = self.merged(begun)
        at_known = [known is not None and self.same(known, end.state) for end in apart]
        old = [end for end, there in zip(apart, at_known, strict=True) if there]
        new = [end for end, there in zip(apart, at_known, strict=True) if not there][:carried]
        last = [_End(self.fit(e.state.theta, self.search, _LONG), e.starts) for e in new]
        return self.merged([*old, *last])

    def fit(self, theta: Float[np.ndarray, " p"], search: Search, options: lm.Options) -> lm.State:
        """Return the lowest state of a fit from theta."""
        state = lm.start(search, theta, reduce(self.summary(theta), self.mode), options)
        while state.outcome is lm.Outcome.RUNNING:
            trial = lm.propose(search, state)
            reduced = reduce(self.summary(trial.theta), self.mode)
            state = lm.judge(search, state, trial, reduced, options)
        return state.fallback or state

    def merged(self, ends: list[_End]) -> list[_End]:
        """Return one end for all that are at the same minimum, best first."""
        found: list[_End] = []
        finite = [end for end in ends if end.state.reduced.finite]
        for end in sorted(finite, key=lambda end: end.state.reduced.chisqr):
            for n, other in enumerate(found):
                if self.same(other.state, end.state):
                    found[n] = _End(other.state, other.starts + end.starts)
                    break
            else:
                found.append(end)
        return found

    def same(self, low: lm.State, high: lm.State) -> bool:
        """Return whether both are at one minimum: as good, and within three standard errors."""
        variance = low.reduced.variance(int(self.search.free.sum()))
        apart = high.theta - low.theta
        period = np.where(np.isfinite(self.search.period), self.search.period, 1.0)
        turned = apart - period * np.round(apart / period)
        apart = np.where(np.isfinite(self.search.period), turned, apart)
        distance = apart @ low.reduced.hessian @ apart
        better = abs(high.reduced.chisqr - low.reduced.chisqr)
        return bool(better < variance and distance < 9 * variance)
