"""`check_rates`: whether the rates of a fit follow their power laws, by one more pass over the data."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from homodyne_dask.errors import OptionError, require_function, require_type
from homodyne_dask.fitting.fit import plan_for, workers_for_plan
from homodyne_dask.fitting.posterior.posterior import request_of
from homodyne_dask.fitting.request import Request
from homodyne_dask.models.deviations import Deviating, with_deviations
from homodyne_dask.models.gaussian_priors import PriorTerms
from homodyne_dask.results.figures.fit_view import fitted_scan
from homodyne_dask.results.fit_result import FitResult
from homodyne_dask.results.rates_check import Deviation, RatesCheck
from homodyne_dask.solver.cluster_robust import by_cluster
from homodyne_dask.solver.normal_equations import joint_equations
from homodyne_dask.solver.reduced_problem import ReducedProblem
from homodyne_dask.solver.robust_step import reduced_problem
from homodyne_dask.solver.sign_flips import (
    MIN_CLUSTERS,
    Scores,
    ScoresAlong,
    largest,
    one_step,
    project,
    spread,
)
from homodyne_dask.store.rings import friedel_clusters
from homodyne_dask.store.scan import Scan
from homodyne_dask.sweep.sweep import sweep_of

if TYPE_CHECKING:
    from distributed import Client

LEVEL = 0.05
"""p up to which a deviation counts as one."""
MOST_DEVIATIONS = 5
_POWER = 0.84
"""Standard errors beyond the critical value at which a deviation is found in 80 % of repeats."""
TENTH = 0.1
"""Of the record."""


def check_rates(
    result: FitResult,
    scan: Scan | None = None,
    *,
    client: "Client | None" = None,
    progress: Callable[[str], None] | None = None,
) -> RatesCheck:
    """Return whether J and the shear rate of a fit follow their power laws, and where they do not.

    result: a fit of a transport model that converged. scan: what was fitted; by default it is opened where
    the store was. client: a Dask client; None starts workers where a fit would. progress: called with words
    for each step.

    One pass over all data at the optimum gives the scores of relative deviations of each rate over all
    stretches of time up to half the record, with the fit's parameters free. The largest one, over its error,
    is compared with the same of scores whose signs are flipped, bin by bin, so that p allows for correlated
    speckle and for looking everywhere (`solver/sign_flips.py`). Raises OptionError for fits that did not
    converge or have no power laws, for fewer than 6 independent bins, and for other data than the fit's.
    """
    require_function("progress", progress)
    require_type("result", result, FitResult, "the result of a fit")
    scan = fitted_scan(result) if scan is None else scan
    if not result.converged:
        raise OptionError(
            f"rates are checked of a fit that converged, and this one ended so: {result.outcome.value}"
        )
    request = request_of(result, scan)
    model, time = request.problem.model, request.scan.time[request.scan.use]
    alternative = with_deviations(model, time) if model.has_transport_rates else None
    if alternative is None:
        raise OptionError(
            f"{model.name} has rates without a power law, or none: check static, laminar_flow, or another "
            f"model whose rates are power laws"
        )
    if progress is not None:
        progress("one pass at the optimum")
    reduced = _pass(request, result, alternative, client)
    theta = result.parameters["value"].values.astype(float)
    moved = request.search.free_inside_bounds(theta)
    clusters = friedel_clusters(request.scan.q, request.scan.phi)
    found = deviations_in(alternative, reduced, moved, clusters)
    return RatesCheck(
        model=result.config["model"],
        store=result.inputs["store"],
        rates=alternative.rates,
        **found._asdict(),
    )


def _pass(
    request: Request, result: FitResult, of: Deviating, client: "Client | None"
) -> ReducedProblem:
    """Return the problem in the fit's parameters and the deviations, at the optimum without these."""
    theta = result.parameters["value"].values.astype(float)
    there = replace(request, problem=replace(request.problem, model=of.model))
    linear_params = None
    if request.problem.loss != "linear":
        columns = result.scaling["offset"].values - 1, result.scaling["contrast"].values
        linear_params = np.nan_to_num(np.stack(columns, axis=1))
    plan = plan_for(there, client)
    with workers_for_plan(plan, client) as connected:
        sweep = sweep_of(plan, request.scan.selection, there.problem, connected)
        gram = sweep(of.whole(theta), linear_params)
    prior = request.search.prior_terms(theta)
    if prior is not None:
        gradient, weight = of.whole(prior.gradient), of.whole(prior.weight)
        prior = PriorTerms(prior.chisqr, gradient, weight, prior.rounding)
    return reduced_problem(gram, request.scaling, linear_params, request.sum_rounding, prior)


class Found(NamedTuple):
    """What is found of rates, as `RatesCheck` has it."""

    p: float
    level: float
    clusters: int
    deviations: tuple[Deviation, ...]
    detectable: dict[str, float]


def deviations_in(
    of: Deviating,
    reduced: ReducedProblem,
    moved: Bool[np.ndarray, " p"],
    clusters: Int[np.ndarray, " bin"],
) -> Found:
    """Return how rates deviate from their power laws.

    reduced: the problem with deviations at the optimum without. moved: which parameters of the power laws are
    free and not at a bound. clusters: a number per bin. Raises OptionError for too few of them.
    """
    free = of.whole(moved, fill=True)
    joint, used = joint_equations(reduced, free), (reduced.count > 0) & ~reduced.undetermined
    scores, blocks = by_cluster(joint, clusters, used)
    if len(scores) < MIN_CLUSTERS:
        raise OptionError(
            f"rates are checked by the scatter between independent bins, and this fit has {len(scores)}: fit "
            f"{MIN_CLUSTERS} or more"
        )
    added = np.concatenate([of.deviates[free], np.zeros(joint.linear, bool)])
    unit = np.where(
        added, joint.size, 1.0
    )  # deviations are relative, the others as they are scaled
    both = np.outer(unit, unit)
    known = Scores(scores * unit, blocks * both, joint.normal * both, joint.gradient * unit, added)
    stretches = _stretches(of)
    directions = np.array([one.direction(of) for one in stretches])
    rate = np.array([one.rate for one in stretches])
    found: list[Deviation] = []
    taken = directions[:0]
    there = at_first = project(known, directions, taken)
    one = first = largest(there, rate, LEVEL)
    while one is not None and one.p <= LEVEL and len(found) < MOST_DEVIATIONS:
        found.append(_deviation(of, stretches[one.at], *one_step(known, there, one.at), one.p))
        if found[-1].large:  # one step says little of it, nor of what else there is
            break
        taken = np.concatenate([taken, directions[one.at, None]])
        there = project(known, directions, taken)
        one = largest(there, rate, LEVEL)
    detectable = {} if first is None else _detectable(of, stretches, at_first, first.critical)
    p = float("nan") if first is None else first.p
    return Found(p, LEVEL, len(scores), tuple(found), detectable)


class _Stretch(NamedTuple):
    """Neighbouring splines of a rate."""

    rate: int
    first: int
    stop: int

    def direction(self, of: Deviating) -> Float[np.ndarray, " added"]:
        """Return the deviation of the rate by 1 over the stretch, and 0 elsewhere."""
        made = np.zeros((len(of.rates), of.splines.size))
        made[self.rate, self.first : self.stop] = 1.0
        return made.ravel()


def _stretches(of: Deviating) -> list[_Stretch]:
    """Return all stretches of up to half the record: a longer one is the opposite of the rest."""
    size = of.splines.size
    return [
        _Stretch(rate, first, stop)
        for rate in range(len(of.rates))
        for first in range(size)
        for stop in range(first + 1, min(first + size // 2, size) + 1)
        if first < size - 1 and stop > 1  # the middle of the first and the last spline is outside
    ]


def _deviation(of: Deviating, at: _Stretch, size: float, stderr: float, p: float) -> Deviation:
    """Return a deviation with the times at which half of it is reached."""
    centres, half = of.splines.centres, of.splines.step / 2
    first, last = float(centres[at.first] - half), float(centres[at.stop - 1] + half)
    return Deviation(
        rate=of.rates[at.rate],
        first=first if first > of.splines.first else None,
        last=last if last < of.splines.last else None,
        size=size,
        stderr=stderr,
        p=p,
    )


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
