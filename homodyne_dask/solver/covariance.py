"""Covariances of the parameters, degrees of freedom, and what the data do not determine.

`naive` is (JᵀWJ)⁻¹, right for white noise; with a loss, times the noise estimated from its influence
function (Huber 1964). Pairs that share a frame are correlated, so the published error bar is another one:
the cluster-robust CR3 (`cluster_robust`) with the bin as cluster, or that of speckle and counting
(`speckle`). Which of them it is stands in a table of cases, `assessment/which_covariance.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.kernels.gram import spread
from homodyne_dask.models.parameters import Search
from homodyne_dask.solver.array_shapes import (
    BinNumbers,
    LinearParams,
    Moved,
    MovedMatrix,
    Theta,
    ThetaMatrix,
    Which,
)
from homodyne_dask.solver.cluster_robust import (
    MIN_CLUSTERS,
    MIN_FREEDOM,
    by_cluster,
    cr3,
    freedom_of_trace,
)
from homodyne_dask.solver.levenberg_marquardt import MAX_SLOW_STEPS, State
from homodyne_dask.solver.normal_equations import JointEquations, deviation, joint_equations
from homodyne_dask.solver.normal_matrix import SINGULAR, inverse_of, parameter_scales
from homodyne_dask.solver.reduce import ReducedProblem, slope_known

_WEAK_EIGENVALUE = 1e-7
"""Eigenvalue of the scaled Hessian below which a direction is called weak."""
_STRONG_CORRELATION = 0.99
_LARGE_SHARE = 0.3
"""Component of a direction, a unit vector, from which on the parameter is named with it."""


class Determined(NamedTuple):
    undetermined: list[tuple[str, ...]]
    """The parameters of every direction that they do not determine: those whose errors along it are wide."""
    determined: tuple[str, ...]
    """The other free parameters: whose errors are below their scale, or mostly along other directions."""


class Doubt(NamedTuple):
    code: str
    """Of the finding: undetermined, hidden-by-rounding, almost-undetermined, strongly-correlated or
    mostly-outliers."""
    names: tuple[str, ...] = ()
    numbers: Mapping[str, float] = MappingProxyType({})


def determined_at(search: Search, state: State) -> Determined:
    """Return what the data determine; after MAX_SLOW_STEPS not the valley that the steps follow."""
    free = state.movable(search)
    if not (free.any() and state.reduced.finite):
        return Determined([], ())
    slow = state.slow_steps >= MAX_SLOW_STEPS
    directions = state.directions(search, free)
    directions = directions.without_valley() if slow else directions
    parameters_determined = directions.parameters_determined()
    has_large_share = np.abs(directions.vectors.T) > _LARGE_SHARE
    if slow:
        unknown = (has_large_share[~directions.determined].any(0) | ~parameters_determined)[None]
    else:
        variance = state.reduced.variance(int(search.free.sum()))
        lengths = np.sqrt(variance / np.maximum(directions.values, np.finfo(float).eps))
        scale = parameter_scales(search, state.theta)[free] * directions.size
        with np.errstate(divide="ignore", invalid="ignore"):
            errors = np.abs(directions.vectors * lengths).T / scale  # in units of the scales
        parameters_determined |= np.sqrt((errors**2).sum(0)) < 1
        wide = errors > 1
        # a direction is named by its wide parameters with a large share, else by one of both alone
        choices = [has_large_share & wide, wide, has_large_share]
        has_any = [some.any(1, keepdims=True) for some in choices]
        unknown = np.select(has_any, choices, default=False)
        unknown = unknown[~directions.determined]
    names = np.array(search.names)[free]
    groups = dict.fromkeys(tuple(names[some].tolist()) for some in unknown)
    return Determined(
        [group for group in groups if not any(set(group) < set(other) for other in groups)],
        tuple(str(name) for name in names[parameters_determined & ~unknown.any(0)]),
    )


def weakly_determined(
    names: tuple[str, ...], joint: JointEquations, smoothed: Which
) -> tuple[Doubt, ...]:
    """Return what is weakly determined; a coefficient of a spline says nothing by itself."""
    plain, inverse = ~smoothed[joint.which], joint.inverse[: joint.moved, : joint.moved]
    chosen = [name for name, which in zip(names, joint.which & ~smoothed, strict=True) if which]
    if not plain.any():
        return ()
    weak = joint.vectors[:, joint.values <= _WEAK_EIGENVALUE].T if plain.all() else ()
    almost = [Doubt("almost-undetermined", _combination(chosen, vector)) for vector in weak]
    correlated = _strongly_correlated(chosen, inverse[np.ix_(plain, plain)])
    named = [set(doubt.names) for doubt in almost]
    further = (row for row in correlated if not any(set(row.names) <= names for names in named))
    return (*almost, *further)


def _strongly_correlated(names: Sequence[str], inverse: np.ndarray) -> list[Doubt]:
    sd = np.sqrt(np.diag(inverse))
    correlation = inverse / np.outer(sd, sd)
    np.fill_diagonal(correlation, 0.0)
    strong = np.abs(correlation) > _STRONG_CORRELATION
    connected = np.linalg.matrix_power(strong + np.eye(len(names)), len(names)) > 0
    member = connected.argmax(axis=1)  # the first of the parameters that each is connected with
    doubts = []
    for group in (np.flatnonzero(member == n) for n in np.unique(member)):
        if len(group) > 1:
            correlations = correlation[np.ix_(group, group)]
            largest = {"correlation": float(correlations.flat[np.abs(correlations).argmax()])}
            correlated = tuple(names[int(n)] for n in group)
            doubts.append(Doubt("strongly-correlated", correlated, largest))
    return doubts


def _combination(names: Sequence[str], vector: np.ndarray) -> tuple[str, ...]:
    return tuple(
        name for name, share in zip(names, vector, strict=True) if abs(share) > _LARGE_SHARE
    )


CLUSTER_ROBUST, SPECKLE = "cluster-robust", "speckle"
_FOLLOWS_BOUND = 0.5
"""Share of a variance owed to parameters at a bound if these were free, above which the error is withheld."""


@dataclass(frozen=True)
class Uncertainty:
    """Covariances over all parameters; NaN in the rows of those that did not move."""

    naive: ThetaMatrix | None
    """None where the data do not determine every free parameter."""
    robust: ThetaMatrix | None
    """That of `stderr`, by `method`: cluster-robust, of speckle noise, or of a global fit."""
    dof: Theta
    """Degrees of freedom of `stderr` (Bell and McCaffrey for clusters); NaN where there are none, as
    for a parameter that one bin alone determines."""
    withheld: Which
    """Parameters that moved but have no errors: their values follow from another one's bound."""
    doubts: tuple[Doubt, ...]
    scaling_naive: LinearParams
    """Errors of offset and contrast of every bin for white noise; NaN where fixed or unknown."""
    scaling_robust: LinearParams
    """By the method of `robust`. Cluster-robust: in `individual` a bin's own noise enters no other bin, and
    that part is the naive error times the design effect of theta (the mean ratio of robust to naive
    variances)."""
    eigenvalues: Moved
    """Of the Hessian of the parameters that moved, scaled to unit diagonal, the smallest first."""
    directions: Float[np.ndarray, "m p"]
    """Their eigenvectors in the scaled parameters; 0 where a parameter did not move."""
    method: str = CLUSTER_ROBUST
    few: Which | None = None
    """Parameters whose cluster-robust errors have fewer than MIN_FREEDOM; None without such errors."""
    determined_by_all: Which | None = None
    """Of one of several scans in a fit of all: parameters that these determine."""

    def of_few(self, names: Sequence[str]) -> list[str]:
        return [] if self.few is None else np.array(names)[self.few].tolist()

    def without_few(self) -> "Uncertainty":
        if self.robust is None or self.few is None:
            return self
        robust, dof = without(self.robust, self.few), np.where(self.few, np.nan, self.dof)
        any_known = np.isfinite(np.diag(robust)).any()
        return replace(self, robust=robust if any_known else None, dof=dof)


def no_uncertainty(parameters: int, bins: int) -> Uncertainty:
    """Return that of a fit without a free parameter, or with sums that are not finite."""
    unknown, none = np.full((bins, 2), np.nan), np.zeros(parameters, bool)
    dof, directions = np.full(parameters, np.nan), np.empty((0, parameters))
    return Uncertainty(None, None, dof, none, (), unknown, unknown, np.empty(0), directions)


def uncertainty(
    names: tuple[str, ...],
    joint: JointEquations,
    clusters: BinNumbers,
    at_bound: Which | None = None,
) -> Uncertainty:
    """Return the covariances at an optimum; clusters: bins that see the same speckle share a number.

    Where a parameter at a bound did not move, those whose variance would be mostly its own, if it were free,
    have no errors.
    """
    p, reduced, moved = len(names), joint.reduced, joint.which
    used, penalty = reduced.count > 0, reduced.penalty
    nothing = no_uncertainty(p, len(reduced.count))
    dof, unknown, none = nothing.dof, nothing.scaling_naive, nothing.withheld
    directions = np.zeros((joint.moved, p))
    directions[:, moved] = joint.vectors.T
    # coefficients of rates of free form
    smoothed = none if penalty is None else np.diag(penalty.weight) > 0
    at_bound = none if at_bound is None else at_bound
    withheld = _follow_bounds(reduced, moved, at_bound & ~moved & ~smoothed)
    held = np.zeros(len(joint.size), bool)
    held[: joint.moved] = at_bound[moved]
    nothing = replace(nothing, withheld=withheld, eigenvalues=joint.values, directions=directions)
    if not joint.determined.all():
        # with sums of float64 the data would determine them: the remedy is precision, not other data
        hidden = joint_equations(reduced.rounded_as_float64, moved).determined
        chosen = np.array(names)[moved].tolist()
        codes = np.where(hidden, "hidden-by-rounding", "undetermined").tolist()
        unknown = [(codes[n], joint.vectors[:, n]) for n in np.flatnonzero(~joint.determined)]
        doubts = (Doubt(code, _combination(chosen, vector)) for code, vector in unknown)
        return replace(nothing, doubts=tuple(doubts))
    if reduced.gram.loss is not None and not slope_known(reduced.gram):
        return replace(nothing, doubts=(Doubt("mostly-outliers"),))
    noise = 1.0 if reduced.noise is None else reduced.noise
    # for white noise; the variance of priors is not that of the noise
    measured = joint.caused_by(joint.prior.noise)
    naive = noise * joint.of_theta(joint.inverse) + (1 - noise) * joint.of_theta(measured)
    # for white noise, in units of its deviation, (offset, contrast) of every bin follow theta (P H⁻¹ Pᵀ) and
    # have noise of their own ((ZᵀWZ)⁻¹)
    P, of_theta = reduced.projection[:, :, moved] / joint.size[: joint.moved], slice(joint.moved)
    inverse = (joint.inverse + (1 / noise - 1) * measured)[of_theta, of_theta]
    followed = np.einsum("kzp,pr,kzr->kz", P, inverse, P)
    expected = moved & ~withheld & ~smoothed
    robust, scaling_robust = None, unknown
    if clusters_in(reduced, clusters) >= MIN_CLUSTERS:
        covariance, freedom, scaling = _robust(joint, clusters, held)
        robust = without(expanded(covariance, moved), withheld)
        dof[moved] = freedom
        dof[withheld] = np.nan
        scaling_robust = unknown if scaling is None else scaling
    return replace(
        nothing,
        naive=without(expanded(naive, moved), withheld),
        robust=robust,
        doubts=weakly_determined(names, joint, smoothed),
        scaling_naive=np.sqrt(noise) * deviation(followed + own_errors(reduced) ** 2),
        scaling_robust=np.where(used[:, None] & ~reduced.at_bound, scaling_robust, np.nan),
        few=None if robust is None else expected & ~(dof >= MIN_FREEDOM),
    )


def _robust(
    joint: JointEquations, clusters: BinNumbers, held: Bool[np.ndarray, " n"]
) -> tuple[MovedMatrix, Moved, LinearParams | None]:
    """Return covariance and freedom of theta, and errors of offset and contrast; None where fixed."""
    scores, blocks, place = by_cluster(joint, clusters)
    beyond = joint.inverse @ np.where(held, joint.gradient, 0.0)
    if place is None:
        scores = scores - blocks @ beyond
    else:
        of_clusters = blocks @ np.append(beyond, 0.0)[place][:, :, None]
        scores = scores - spread(of_clusters[:, :, 0], place, len(beyond) + 1)[:, :-1]
    of_theta = np.eye(len(joint.inverse))[: joint.moved]
    covariance, freedom = cr3(joint.inverse, scores, blocks, of_theta, joint.prior.scores, place)
    scaling = None
    if joint.linear:
        scaling = joint.of_scaling(covariance)
    elif joint.reduced.columns.shape[1]:
        # the mean ratio of robust to naive variances; what priors determine has none
        caused = (joint.caused_by(prior) for prior in (joint.prior.scores, joint.prior.normal))
        of_all, by_priors, added = (np.trace(joint.hessian @ V) for V in (covariance, *caused))
        effect = (of_all - by_priors) / max(joint.moved - added, SINGULAR)
        followed = joint.of_scaling(covariance)
        scaling = deviation(followed**2 + effect * own_errors(joint.reduced) ** 2)
    return joint.of_theta(covariance), freedom, scaling


def error_used(
    robust: Float[np.ndarray, "*n"], naive: Float[np.ndarray, "*n"]
) -> Float[np.ndarray, "*n"]:
    """Return standard errors, naive ones where unknown: units of influence, of modes and of profiles."""
    return np.where(np.isfinite(robust), robust, naive)


def clusters_in(reduced: ReducedProblem, clusters: BinNumbers) -> int:
    """Return the number of clusters that show a decay: the others say nothing of theta."""
    return len(np.unique(clusters[(reduced.count > 0) & ~reduced.undetermined]))


def freedom_of_size(joint: JointEquations, clusters: BinNumbers) -> float:
    """Return the degrees of freedom of the mean size of the covariance of theta."""
    _, blocks, _ = by_cluster(joint, clusters)
    return freedom_of_trace(joint.inverse, blocks, joint.hessian)


def _follow_bounds(reduced: ReducedProblem, moved: Which, at_bound: Which) -> Which:
    """Return the parameters of which most variance is owed to those at a bound: correlation squared."""
    follow = np.zeros(len(moved), bool)
    if not at_bound.any():
        return follow
    free = moved | at_bound
    variance, variance_if_free = (
        np.diag(inverse_of(reduced.hessian[np.ix_(which, which)])) for which in (moved, free)
    )
    follow[moved] = variance < (1 - _FOLLOWS_BOUND) * variance_if_free[moved[free]]
    return follow


def without(covariance: ThetaMatrix, which: Which) -> ThetaMatrix:
    """Return the covariance, NaN in the rows and columns of some parameters."""
    return np.where(which[:, None] | which[None, :], np.nan, covariance)


def own_errors(reduced: ReducedProblem) -> LinearParams:
    bins, m = reduced.columns.shape
    inverse = np.repeat(reduced.inverse, bins // len(reduced.inverse), axis=0)
    inverse = inverse.reshape(bins, 2, m, 2, m)
    alone = np.einsum("kazaw,kz,kw->ka", inverse, reduced.columns, reduced.columns)
    free = (reduced.count > 0) & (m > 0)
    has_error = np.stack([free, free & ~reduced.undetermined], axis=1) & ~reduced.at_bound
    return np.where(has_error, deviation(alone), np.nan)


def expanded(small: MovedMatrix, moved: Which) -> ThetaMatrix:
    full = np.full((len(moved), len(moved)), np.nan)
    full[np.ix_(moved, moved)] = small
    return full
