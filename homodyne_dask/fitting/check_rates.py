"""`check_rates`: whether rates of a fit follow their power laws, by one more pass over the data or two.

The alternatives are relative deviations from the power laws at some times. A test finds the stretches of time
over which rates deviate, how much, and how surely.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from homodyne_dask.errors import OptionError, require_function, require_type
from homodyne_dask.fitting.fit import plan_for, workers_for_plan
from homodyne_dask.fitting.posterior.sample_posterior import request_of
from homodyne_dask.fitting.request import Request, require_pairs
from homodyne_dask.models.parameters import Parameter, PriorTerms
from homodyne_dask.models.rate_forms import DeviatingForm
from homodyne_dask.models.spline_basis import DEFAULT_KNOTS, MIN_KNOTS, SplineForm
from homodyne_dask.models.transport import TransportModel
from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.fit_view import fitted_scan
from homodyne_dask.results.data.power_law_test import Deviation, RatesCheck
from homodyne_dask.solver.cluster_robust import by_cluster
from homodyne_dask.solver.normal_equations import JointEquations, joint_equations
from homodyne_dask.solver.reduce import reduce
from homodyne_dask.solver.reduced_problem import ReducedProblem
from homodyne_dask.solver.sign_flip_test import (
    MIN_CLUSTERS,
    Scores,
    ScoresAlong,
    joint_step,
    largest,
    one_step,
    project,
    shares,
    spread,
    weighted,
)
from homodyne_dask.store.scan import Scan
from homodyne_dask.sweep.sweep import sweep_of

if TYPE_CHECKING:
    from distributed import Client

FRAMES_PER_SPLINE = 3
"""Fewest frames of a record for each spline."""
LEVEL = 0.05
"""p up to which a deviation counts as one."""
MOST_DEVIATIONS = 5
_POWER = 0.84
"""Standard errors beyond the critical value at which a deviation is found in 80 % of repeats."""
TENTH = 0.1
"""Of the record."""
_FINE = 20
"""Times per spline at which a deviation is looked at."""
Evaluate = Callable[[Float[np.ndarray, " m"]], ReducedProblem]
"""A pass over all data at parameters of a model with deviations."""


class Deviating(NamedTuple):
    """A model with deviations from its power laws."""

    model: TransportModel
    deviates: Bool[np.ndarray, " m"]
    """Which of its parameters are deviations; the others are those of the model of power laws."""
    splines: SplineForm
    rates: tuple[str, ...]
    """Whose deviations they are, in this order."""

    def whole(self, values: Float[np.ndarray, " p"], fill: float = 0.0) -> Float[np.ndarray, " m"]:
        """Return values of all parameters from those of the model of power laws."""
        made = np.full(self.model.size, fill, np.result_type(values, type(fill)))
        made[~self.deviates] = values
        return made


def with_deviations(model: TransportModel, time: Float[np.ndarray, " n"]) -> Deviating | None:
    """Return the model with deviations from its power laws; None where a rate is no power law.

    time: of the frames in use [s].
    """
    if model.splines:
        return None
    number = max(MIN_KNOTS, min(DEFAULT_KNOTS, len(time) // FRAMES_PER_SPLINE))
    form = DeviatingForm(SplineForm(number, float(time[0]), float(time[-1])))
    rates = ("J", "gamma_dot") if model.shear else ("J",)
    parameters, deviates = [], []
    for n, rate in enumerate(rates):
        more = [Parameter(f"{rate}_deviation_{k}", "", (-np.inf, np.inf)) for k in range(number)]
        parameters += [*model.parameters[3 * n : 3 * n + 3], *more]
        deviates += [False] * 3 + [True] * number
    rest = model.parameters[3 * len(rates) :]
    made = TransportModel(
        f"{model.name} with deviations",
        (*parameters, *rest),
        shear=model.shear,
        J=form,
        gamma_dot=form,
    )
    return Deviating(made, np.array(deviates + [False] * len(rest)), form.splines, rates)


class Found(NamedTuple):
    """What is found of rates, as `RatesCheck` has it."""

    p: float
    level: float
    clusters: int
    deviations: tuple[Deviation, ...]
    detectable: dict[str, float]


def deviations_in(
    of: Deviating,
    evaluate: Evaluate,
    theta: Float[np.ndarray, " p"],
    moved: Bool[np.ndarray, " p"],
    clusters: Int[np.ndarray, " bin"],
) -> Found:
    """Return how rates deviate from their power laws.

    evaluate: makes a pass at parameters of the model with deviations. theta: the optimum of the power laws.
    moved: which of these are free and not at a bound. clusters: a number per bin. Raises OptionError for too
    few of them.
    """
    at_optimum = _Pass(of, evaluate(of.whole(theta)), of.whole(moved, fill=True), clusters)
    unweighted = at_optimum.scores()
    if len(unweighted.scores) < MIN_CLUSTERS:
        raise OptionError(
            f"rates are checked against the scatter between independent bins, but this fit has only "
            f"{len(unweighted.scores)}: fit {MIN_CLUSTERS} or more"
        )
    share = shares(unweighted)
    known = weighted(unweighted, share)
    stretches = _stretches(of)
    directions = np.array([one.direction(of) for one in stretches])
    rate = np.array([one.rate for one in stretches])
    found: list[Deviation] = []
    taken: list[int] = []
    there = at_first = project(known, directions, directions[:0])
    one = first = largest(there, rate, LEVEL)
    while one is not None and one.p <= LEVEL and len(found) < MOST_DEVIATIONS:
        found.append(_deviation(of, stretches[one.at], *one_step(known, there, one.at), one.p))
        taken.append(one.at)
        if found[-1].large:  # one step says little of it, nor of what else there is
            break
        there = project(known, directions, directions[taken])
        one = largest(there, rate, LEVEL)
    if found and not found[-1].large:
        step, sizes = joint_step(known, directions[taken])
        there = at_optimum.moved(evaluate, of.whole(theta), step)
        if there.chisqr(share) < at_optimum.chisqr(share):
            some = [stretches[at] for at in taken]
            found = _refined(of, found, some, sizes, weighted(there.scores(), share))
    detectable = {} if first is None else _detectable(of, stretches, at_first, first.critical)
    p = float("nan") if first is None else first.p
    named = [
        one
        for n, one in enumerate(found)
        if not any(stretches[taken[n]].surrounds(stretches[at]) for at in taken[:n])
    ]
    return Found(p, LEVEL, len(share), tuple(named), detectable)


@dataclass(frozen=True)
class _Pass:
    """What a pass says of the parameters that move and of the deviations."""

    of: Deviating
    reduced: ReducedProblem
    free: Bool[np.ndarray, " m"]
    clusters: Int[np.ndarray, " bin"]

    @cached_property
    def joint(self) -> JointEquations:
        """The normal equations."""
        return joint_equations(self.reduced, self.free)

    @property
    def unit(self) -> Float[np.ndarray, " n"]:
        """What a parameter of the scores is in units of a scaled one: deviations are relative."""
        return np.where(self.added, self.joint.size, 1.0)

    @property
    def added(self) -> Bool[np.ndarray, " n"]:
        """Which of the parameters are deviations."""
        return np.concatenate([self.of.deviates[self.free], np.zeros(self.joint.linear, bool)])

    def scores(self) -> Scores:
        """Return the scores of clusters."""
        reduced, joint, unit = self.reduced, self.joint, self.unit
        used = (reduced.count > 0) & ~reduced.undetermined
        scores, blocks = by_cluster(joint, self.clusters, used)
        both = np.outer(unit, unit)
        return Scores(
            scores * unit, blocks * both, joint.normal * both, joint.gradient * unit, self.added
        )

    def chisqr(self, share: Float[np.ndarray, " cluster"]) -> float:
        """Return χ² of clusters counted as these shares of them; infinite where it is unknown."""
        used = (self.reduced.count > 0) & ~self.reduced.undetermined
        place = np.searchsorted(np.unique(self.clusters[used]), self.clusters[used])
        if not self.reduced.finite or len(np.unique(place)) != len(share):
            return float("inf")
        return float(share[place] @ self.reduced.chisqr_per_bin[used])

    def moved(
        self, evaluate: Evaluate, whole: Float[np.ndarray, " m"], step: Float[np.ndarray, " n"]
    ) -> "_Pass":
        """Return the pass after a step of what the scores are of."""
        of_theta, there = slice(0, self.joint.moved), whole.copy()
        there[self.free] += (step * self.unit / self.joint.size)[of_theta]
        return replace(self, reduced=evaluate(there))


def _refined(
    of: Deviating,
    found: list[Deviation],
    stretches: "list[_Stretch]",
    sizes: Float[np.ndarray, " some"],
    known: Scores,
) -> list[Deviation]:
    """Return the deviations after one more step, from where these sizes and all other parameters led.

    One step alone takes the change of f for linear in the rate, and makes dips too large, rises too small.
    The size of one is that of the rate at the middle of its stretch, to which overlapping ones add.
    """
    made, directions = [], np.array([one.direction(of) for one in stretches])
    for n, (one, stretch) in enumerate(zip(found, stretches, strict=True)):
        added = np.array([other.at_middle_of(stretch) for other in stretches])
        rest = directions - (added / added[n])[:, None] * directions[n]
        only = project(known, directions[n, None] / added[n], np.delete(rest, n, axis=0))
        more, stderr = one_step(known, only, 0)
        made.append(replace(one, size=float(added @ sizes + more), stderr=stderr))
    return made


class _Stretch(NamedTuple):
    """Neighbouring splines of a rate."""

    rate: int
    first: int
    stop: int
    shape: Float[np.ndarray, " fine"]
    """Their sum."""

    def direction(self, of: Deviating) -> Float[np.ndarray, " added"]:
        """Return the deviation of the rate that is 1 where it is largest, and 0 far from the stretch."""
        made = np.zeros((len(of.rates), of.splines.size))
        made[self.rate, self.first : self.stop] = 1 / self.shape.max()
        return made.ravel()

    def at_middle_of(self, other: "_Stretch") -> float:
        """Return the deviation of this direction at the middle of another stretch."""
        middle = int(np.mean(np.flatnonzero(other.shape >= other.shape.max() / 2)))
        return float(self.shape[middle] / self.shape.max()) if self.rate == other.rate else 0.0

    def surrounds(self, other: "_Stretch") -> bool:
        """Return whether this is the same time and more: then it adds to the shape of the other."""
        return self.rate == other.rate and self.first <= other.first and self.stop >= other.stop

    def ends(self, of: Deviating) -> tuple[float | None, float | None]:
        """Return the times at which half of the deviation is reached; None where the record ends before."""
        t = _fine_times(of)
        inside = t[self.shape >= self.shape.max() / 2]
        first, last = float(inside[0]), float(inside[-1])
        return first if first > t[0] else None, last if last < t[-1] else None


def _fine_times(of: Deviating) -> Float[np.ndarray, " fine"]:
    splines = of.splines
    return np.linspace(splines.first, splines.last, _FINE * (splines.size - 3) + 1)


def _stretches(of: Deviating) -> list[_Stretch]:
    """Return all stretches of up to half the record: a longer one is the opposite of the rest."""
    size, basis = of.splines.size, of.splines.basis(_fine_times(of))
    return [
        _Stretch(rate, first, stop, basis[first:stop].sum(0))
        for rate in range(len(of.rates))
        for first in range(size)
        for stop in range(first + 1, min(first + size // 2, size) + 1)
        if first < size - 1 and stop > 1  # the middle of the first and the last spline is outside
    ]


def _deviation(of: Deviating, at: _Stretch, size: float, stderr: float, p: float) -> Deviation:
    first, last = at.ends(of)
    return Deviation(rate=of.rates[at.rate], first=first, last=last, size=size, stderr=stderr, p=p)


def _detectable(
    of: Deviating, stretches: list[_Stretch], there: ScoresAlong, critical: float
) -> dict[str, float]:
    """Return by rate the deviation over a tenth of the record that is found in 80 % of such data."""
    tenth = max(1, round(TENTH * of.splines.size))
    rate = np.array([one.rate for one in stretches])
    of_tenth = np.array([one.stop - one.first == tenth for one in stretches])
    known = there.information > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        stderr = spread(there, rate) / there.information
    return {
        name: float((critical + _POWER) * np.median(stderr[some]))
        for n, name in enumerate(of.rates)
        if (some := known & of_tenth & (rate == n)).any()
    }


def check_rates(
    result: FitResult,
    scan: Scan | None = None,
    *,
    client: "Client | None" = None,
    progress: Callable[[str], None] | None = None,
) -> RatesCheck:
    """Test whether J and the shear rate of a fit follow their power laws, and where they do not.

    result: a converged fit of a transport model. scan: the fitted scan; by default it is opened from its
    store. client: a Dask client; None starts workers where a fit would. progress: called with a description
    of each step.

    One pass over all data at the optimum gives the scores of relative deviations of each rate over all
    stretches of time up to half the record, with the fit's parameters free. The largest one, divided by its
    error, is compared with that of scores whose signs are flipped, bin by bin, so that p allows for
    correlated speckle and for the search over all stretches (`solver/sign_flip_test.py`). A second pass
    determines the sizes of the deviations found. Raises OptionError for fits that did not converge or have
    no power laws, for fewer than 6 independent bins, and for data other than those of the fit.

    >>> hd.check_rates(hd.fit("A0123_c2.zarr", "power_law")).p < 0.05  # the data fall off to a constant rate
    True
    """
    require_function("progress", progress)
    require_type("result", result, FitResult, "the result of a fit")
    scan = fitted_scan(result) if scan is None else scan
    require_pairs(result.config.get("weighting"), "a rate check")
    if not result.converged:
        raise OptionError(
            f"only fits that converged can be checked; this fit ended with: {result.outcome.value}"
        )
    if result.diagnosis.smoothing is not None:
        raise OptionError(
            f"{result.config['model']} has rates without a power law (see their bands in result.rates): to "
            f"test the power laws, fit static or laminar_flow and check that fit"
        )
    request = request_of(result, scan)
    model, time = request.problem.model, request.scan.time[request.scan.use]
    alternative = with_deviations(model, time) if model.has_transport_rates else None
    if alternative is None:
        raise OptionError(
            f"{model.name} has no rates, or rates without a power law: check static, laminar_flow, or "
            "another "
            f"model whose rates are power laws"
        )
    if progress is not None:
        progress("one pass at the optimum")
    theta = result.parameters["value"].values.astype(float)
    moved = request.search.free_inside_bounds(theta)
    clusters = request.clusters
    with _passes(request, result, alternative, client) as evaluate:
        found = deviations_in(alternative, evaluate, theta, moved, clusters)
    return RatesCheck(
        model=result.config["model"],
        store=result.provenance.inputs["store"],
        rates=alternative.rates,
        **found._asdict(),
    )


@contextmanager
def _passes(
    request: Request, result: FitResult, of: Deviating, client: "Client | None"
) -> Iterator[Evaluate]:
    """Yield the function that makes a pass with all parameters of the fit and the deviations."""
    there = replace(request, problem=replace(request.problem, model=of.model))
    linear_params = None
    if request.problem.loss != "linear":
        columns = result.scaling["offset"].values - 1, result.scaling["contrast"].values
        linear_params = np.nan_to_num(np.stack(columns, axis=1))
    plan = plan_for(there, client)
    with workers_for_plan(request.scan, plan, client) as (connected, _):
        sweep = sweep_of(plan, request.scan.selection, there.problem, connected)

        def evaluate(whole: Float[np.ndarray, " m"]) -> ReducedProblem:
            prior = request.search.prior_terms(whole[~of.deviates])
            if prior is not None:
                gradient, weight = of.whole(prior.gradient), of.whole(prior.weight)
                prior = PriorTerms(prior.chisqr, gradient, weight, prior.rounding)
            gram = sweep(whole, linear_params)
            return reduce(gram, request.scaling, request.sum_rounding, prior, linear_params)

        yield evaluate
