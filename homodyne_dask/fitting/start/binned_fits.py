"""Fits to binned averages: several at a time, of which only promising ones are continued."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

import numpy as np

from homodyne_dask.fitting.start.averages import Theta
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.models.parameters import Search, shortest
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.reduce import reduce
from homodyne_dask.solver.reduced_problem import ReducedProblem
from homodyne_dask.solver.scaling_modes import Scaling, ScalingPrior

AVERAGES_OPTIONS = lm.Options(max_passes=1000, decrement=1e-2)
"""An approximate optimum of the averages is enough."""


@dataclass(frozen=True)
class BinnedFit:
    """The state of a fit to averages, or of several that reached the same minimum."""

    state: lm.State
    starts: int = 1

    @property
    def lowest(self) -> lm.State:
        """The lowest state of the fit."""
        return self.state.lowest

    @property
    def chisqr(self) -> float:
        """χ² there."""
        return self.lowest.reduced.chisqr

    def minimum(self, free: int | None = None) -> "Minimum":
        """Return where it is; free: number of free parameters, for the variance of a residual."""
        variance = np.nan if free is None else self.lowest.reduced.variance(free)
        return Minimum(self.lowest.theta, self.chisqr, self.starts, variance)


class Minimum(NamedTuple):
    """A minimum of χ² on the averages."""

    theta: Theta
    chisqr: float
    """On the averages; NaN where the user gave theta."""
    starts: int
    """Number of fits that ended there."""
    variance: float = np.nan
    """Of a residual of the averages."""


@dataclass(frozen=True)
class BinnedFits:
    """Fits to the same averages."""

    summary: Callable[[Theta], Gram]
    """Returns their Gram at theta."""
    search: Search
    mode: str
    limits: ScalingPrior | None = None
    """Bounds and priors of contrast and offset; not used where f alone determines the parameters."""

    def started(self, thetas: Sequence[Theta]) -> list[BinnedFit]:
        """Return a fit at its initial point for each theta."""
        evaluated = self._evaluated([lm.Trial(theta) for theta in thetas])
        return [
            BinnedFit(lm.initial_state(self.search, theta, reduced, AVERAGES_OPTIONS))
            for theta, reduced in zip(thetas, evaluated, strict=True)
        ]

    def advanced(self, ends: Sequence[BinnedFit], passes: int) -> list[BinnedFit]:
        """Return every fit after `passes` more passes, or at its end."""
        states = [end.state for end in ends]
        passes_of_all = lm.iterate_several(self.search, self._evaluated, states, AVERAGES_OPTIONS)
        for after in islice(passes_of_all, passes):
            states = after
        return [replace(end, state=state) for end, state in zip(ends, states, strict=True)]

    def ends(self, thetas: Sequence[Theta], passes: int) -> list[BinnedFit]:
        """Return one fit for each minimum near which fits from some points end, the best first."""
        return self.merged(self.advanced(self.started(thetas), passes))

    def chisqr_at(self, thetas: Sequence[Theta]) -> list[float]:
        """Return χ² at each theta, without penalties; infinite where it is not a number."""
        found = [at.chisqr for at in self._evaluated([lm.Trial(theta) for theta in thetas])]
        return [value if np.isfinite(value) else np.inf for value in found]

    def _evaluated(self, trials: Sequence[lm.Trial]) -> list[ReducedProblem]:
        """Return the reduced problem at each trial, with contrast and offset of each bin or of all."""
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
        """Return one fit for each minimum, the best first."""
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
    """Return the fits whose χ² is at most so many times the lowest."""
    finite = [end for end in ends if end.lowest.reduced.finite]
    lowest = min((end.chisqr for end in finite), default=np.inf)
    return [end for end in finite if end.chisqr <= times * lowest]
