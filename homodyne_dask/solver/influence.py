"""How a result depends on single bins, clusters and the scaling mode, estimated from the last Gram alone."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.solver.array_shapes import BinNumbers, PerBin, Theta, Vector, Which
from homodyne_dask.solver.cluster_robust import by_cluster, cr3
from homodyne_dask.solver.normal_equations import (
    JointEquations,
    joint_equations,
    solve_normal_equations,
)
from homodyne_dask.solver.reduce import ReducedProblem, reduce
from homodyne_dask.solver.scaling_modes import ALIKE, MODES, Scaling, scaling_of

AT_ONCE = 1_000_000
"""Values of normal matrices that are solved together."""


def _steps_without(
    joint: JointEquations, groups: BinNumbers
) -> Iterator[tuple[Int[np.ndarray, " some"], Vector]]:
    """Yield the bins of each group, and the step to the optimum without them, where there is one."""
    total, gradient = joint.normal, joint.gradient
    bins = np.flatnonzero(joint.reduced.count > 0)
    bins = bins[np.argsort(groups[bins], kind="stable")]
    members = np.split(bins, np.flatnonzero(np.diff(groups[bins])) + 1) if len(bins) else []
    together = max(AT_ONCE // max(total.size, 1), 1)
    for n in range(0, len(members), together):
        some = members[n : n + together]
        normal = np.stack([total - joint.blocks[group].sum(0) for group in some])
        right = np.stack([gradient - joint.scores[group].sum(0) for group in some])
        steps, determined = solve_normal_equations(normal, right, joint.moved)
        yield from (
            (group, step)
            for group, step, has_optimum in zip(some, steps, determined, strict=True)
            if has_optimum
        )


def leave_one_out(
    joint: JointEquations, groups: BinNumbers | None = None
) -> Float[np.ndarray, "group p"]:
    """Return the change of each parameter without a bin, or group; NaN where others do not determine all."""
    groups = np.arange(len(joint.scores)) if groups is None else groups
    change = np.full((groups.max() + 1, len(joint.which)), np.nan)
    for bins, step in _steps_without(joint, groups):
        change[groups[bins[0]], joint.which] = step[: joint.moved] / joint.size[: joint.moved]
    return change


class LeftOutClusters(NamedTuple):
    """How well each cluster of bins that has pairs is predicted by the others, in the order of its number.

    That is leave-one-out cross-validation by one Gauss-Newton step: a parameter that the data do not need
    makes χ² larger (Arlot and Celisse 2010).
    """

    of_bin: PerBin
    """χ² of each bin at the parameters that the other clusters determine, with contrast and offset fitted to
    it unless bins share them. NaN without pairs, and where the others do not determine all parameters."""
    first: Int[np.ndarray, " cluster"]
    ndata: Int[np.ndarray, " cluster"]
    chisqr: Float[np.ndarray, " cluster"]
    left_out_chisqr: Float[np.ndarray, " cluster"]
    penalty: float
    """tr(H⁻¹J) of all clusters, in units of χ²; NaN where one of them alone determines a parameter."""
    linear: int


def left_out_clusters(joint: JointEquations, clusters: BinNumbers) -> LeftOutClusters:
    """Return χ² of clusters at the parameters that the others determine, and the penalty to compare it with.

    tr(H⁻¹J) is that of the composite likelihood information criterion (Varin and Vidoni 2005), H the normal
    matrix of what bins share, J the variance of its scores. It is tr(HV) with the covariance V of the error
    bars (`cr3`): of the scores themselves it would be too small where clusters are few.
    """
    reduced, used = joint.reduced, joint.reduced.count > 0
    left_out, penalty = np.full(len(used), np.nan), np.nan
    for bins, step in _steps_without(joint, clusters):
        rise = np.einsum("i,bij,j->b", step, joint.blocks[bins], step)
        rise -= 2 * joint.scores[bins] @ step
        left_out[bins] = reduced.chisqr_per_bin[bins] + rise
    if joint.determined.all():
        scores, blocks, _ = by_cluster(joint, clusters)
        of_data = cr3(joint.inverse, scores, blocks, joint.inverse[:0])[0]
        penalty = float(np.trace((blocks.sum(0) + joint.prior.normal) @ of_data))
    members = [used & (clusters == cluster) for cluster in np.unique(clusters[used])]
    return LeftOutClusters(
        of_bin=left_out,
        first=np.array([np.flatnonzero(bins)[0] for bins in members]),
        ndata=np.array([int(reduced.count[bins].sum()) for bins in members]),
        chisqr=np.array([reduced.chisqr_per_bin[bins].sum() for bins in members]),
        left_out_chisqr=np.array([left_out[bins].sum() for bins in members]),
        penalty=penalty,
        linear=reduced.linear,
    )


class ScalingComparison(NamedTuple):
    mode: str
    chisqr: float
    aic: float
    """Difference from the lowest of the compared modes, as is `bic`; unknown as NaN."""
    bic: float
    fitted: int
    change: Theta
    """NaN where theta is fixed or undetermined."""


def compare_scalings(
    reduced: ReducedProblem, scaling: Scaling, phi: PerBin, moved: Which, effect: float | None = 1.0
) -> list[ScalingComparison]:
    """Return every scaling mode, each one Gauss-Newton step from the fit's optimum.

    It is exact for contrast and offset and linear in theta. effect: the design effect of correlated pairs;
    AIC and BIC count χ² in units of it times the reduced χ² of 'individual' (QAIC, Burnham and Anderson
    2002), and pairs as that many fewer: only differences between modes mean something. None: neither is
    known.
    """
    individual = _step(reduced, Scaling(), moved)
    effect = np.nan if effect is None else effect
    of_priors = 0.0 if reduced.theta_prior is None else reduced.theta_prior.chisqr
    scale = effect * (individual.chisqr - of_priors) / max(reduced.ndata - individual.fitted, 1)
    pairs = max(reduced.ndata / effect, 1)
    modes = []
    for mode in _modes_to_compare(scaling, phi):
        step = _step(reduced, scaling if mode == scaling.mode else scaling_of(mode, phi), moved)
        if mode.startswith("fourier") and step.fitted >= individual.fitted:
            continue  # as many columns as angles: that is `individual`
        relative = step.chisqr / scale if scale > 0 else np.nan
        aic, bic = relative + 2 * step.fitted, relative + step.fitted * np.log(pairs)
        modes.append(step._replace(mode=mode, aic=aic, bic=bic))
    aic, bic = (min(values) for values in zip(*((row.aic, row.bic) for row in modes), strict=True))
    return [row._replace(aic=row.aic - aic, bic=row.bic - bic) for row in modes]


def _modes_to_compare(scaling: Scaling, phi: PerBin) -> list[str]:
    unavailable = {"fixed", *ALIKE} - {scaling.mode}  # nobody gave values, or which bins are alike
    if not np.isfinite(phi).all():
        unavailable |= {mode for mode in MODES if mode.startswith("fourier")}
    return [mode for mode in MODES if mode not in unavailable]


def _step(reduced: ReducedProblem, scaling: Scaling, moved: Which) -> ScalingComparison:
    assert reduced.gram.loss is None
    other = reduce(reduced.gram, scaling, reduced.sum_rounding, reduced.theta_prior)
    other = other if reduced.penalty is None else other.with_penalty(reduced.penalty)
    joint = joint_equations(other, moved)
    gradient = other.gradient[moved] / joint.size[: joint.moved]
    step, determined = solve_normal_equations(joint.hessian, gradient, joint.moved)
    change = np.full(len(moved), np.nan)
    if determined:
        change[moved] = step / joint.size[: joint.moved]
    chisqr = max(other.fit_chisqr - float(gradient @ step), 0.0)
    spared = 0.0 if other.penalty is None else other.penalty.spared
    fitted = int(moved.sum()) - round(spared) + other.linear
    return ScalingComparison("", chisqr, np.nan, np.nan, fitted, change)
