"""How a result depends on single bins, clusters and the scaling mode, estimated from the last Gram alone."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.solver.array_shapes import BinNumbers, PerBin, SomeBins, Theta, Vector, Which
from homodyne_dask.solver.cluster_robust import by_cluster, cr3
from homodyne_dask.solver.normal_equations import (
    JointEquations,
    joint_equations,
    solve_normal_equations,
)
from homodyne_dask.solver.reduce import ReducedProblem, reduce
from homodyne_dask.solver.scaling_modes import ALIKE, MODES, Scaling, scaling_of


def _steps_without(
    joint: JointEquations, groups: BinNumbers, used: SomeBins
) -> Iterator[tuple[Int[np.ndarray, " some"], Vector]]:
    total, gradient = joint.normal, joint.gradient
    for group in np.unique(groups[used]):
        of = np.flatnonzero((groups == group) & used)
        normal, right = total - joint.blocks[of].sum(0), gradient - joint.scores[of].sum(0)
        step, known = solve_normal_equations(normal, right, joint.moved)
        if known:
            yield of, step


def leave_one_out(
    reduced: ReducedProblem, moved: Which, groups: BinNumbers | None = None
) -> Float[np.ndarray, "group p"]:
    """Return the change of each parameter without a bin, or group; NaN where others do not determine all."""
    joint = joint_equations(reduced, moved)
    groups = np.arange(len(reduced.count)) if groups is None else groups
    change = np.full((groups.max() + 1, len(moved)), np.nan)
    for of, step in _steps_without(joint, groups, reduced.count > 0):
        change[groups[of[0]], moved] = step[: joint.moved] / joint.size[: joint.moved]
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


def left_out_clusters(
    reduced: ReducedProblem, moved: Which, clusters: BinNumbers
) -> LeftOutClusters:
    """Return χ² of clusters at the parameters that the others determine, and the penalty to compare it with.

    tr(H⁻¹J) is that of the composite likelihood information criterion (Varin and Vidoni 2005), H the normal
    matrix of what bins share, J the variance of its scores. It is tr(HV) with the covariance V of the error
    bars (`cr3`): of the scores themselves it would be too small where clusters are few.
    """
    used, joint = reduced.count > 0, joint_equations(reduced, moved)
    left_out, penalty = np.full(len(used), np.nan), np.nan
    for of, step in _steps_without(joint, clusters, used):
        rise = np.einsum("i,bij,j->b", step, joint.blocks[of], step) - 2 * joint.scores[of] @ step
        left_out[of] = reduced.chisqr_per_bin[of] + rise
    if joint.determined.all():
        scores, blocks, _ = by_cluster(joint, clusters, used)
        of_data = cr3(joint.inverse, scores, blocks, joint.inverse[:0])[0]
        penalty = float(np.trace((blocks.sum(0) + joint.prior.normal) @ of_data))
    members = [used & (clusters == cluster) for cluster in np.unique(clusters[used])]
    return LeftOutClusters(
        of_bin=left_out,
        first=np.array([np.flatnonzero(of)[0] for of in members]),
        ndata=np.array([int(reduced.count[of].sum()) for of in members]),
        chisqr=np.array([reduced.chisqr_per_bin[of].sum() for of in members]),
        left_out_chisqr=np.array([left_out[of].sum() for of in members]),
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
    modes, angles_known = [], bool(np.isfinite(phi).all())
    for mode in MODES:
        if mode in ("fixed", *ALIKE) and scaling.mode != mode:
            continue  # nobody gave values
        if mode.startswith("fourier") and not angles_known:
            continue
        one = _step(reduced, scaling if mode == scaling.mode else scaling_of(mode, phi), moved)
        if mode.startswith("fourier") and one.fitted >= individual.fitted:
            continue  # as many columns as angles: that is `individual`
        relative = one.chisqr / scale if scale > 0 else np.nan
        aic, bic = relative + 2 * one.fitted, relative + one.fitted * np.log(pairs)
        modes.append(one._replace(mode=mode, aic=aic, bic=bic))
    least = {key: min(getattr(one, key) for one in modes) for key in ("aic", "bic")}
    return [one._replace(aic=one.aic - least["aic"], bic=one.bic - least["bic"]) for one in modes]


def _step(reduced: ReducedProblem, scaling: Scaling, moved: Which) -> ScalingComparison:
    assert reduced.gram.loss is None
    at = reduce(reduced.gram, scaling, reduced.sum_rounding, reduced.theta_prior)
    at = at if reduced.penalty is None else at.with_penalty(reduced.penalty)
    joint = joint_equations(at, moved)
    gradient = at.gradient[moved] / joint.size[: joint.moved]
    step, known = solve_normal_equations(joint.hessian, gradient, joint.moved)
    change = np.full(len(moved), np.nan)
    if known:
        change[moved] = step / joint.size[: joint.moved]
    chisqr = max(at.fit_chisqr - float(gradient @ step), 0.0)
    spared = 0.0 if at.penalty is None else at.penalty.spared
    fitted = int(moved.sum()) - round(spared) + at.linear
    return ScalingComparison("", chisqr, np.nan, np.nan, fitted, change)
