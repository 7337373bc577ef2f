"""Covariances of the parameters, degrees of freedom, and what the data do not determine.

`naive` is (JᵀWJ)⁻¹, right for white noise; with a loss, times the noise estimated from its influence
function (Huber 1964). Pairs that share a frame are correlated, so the published error bar is the
cluster-robust CR2 (Bell and McCaffrey 2002) with the bin as cluster; it needs at least 8 clusters
and is absent otherwise.
"""

from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from jaxtyping import Bool, Float, Int

from homodyne_dask.kernels.gram import RobustGram
from homodyne_dask.models.parameters import joined_with_and
from homodyne_dask.solver.directions import SINGULAR
from homodyne_dask.solver.normal_equations import JointEquations, deviation, joint_equations
from homodyne_dask.solver.robust_step import slope_known
from homodyne_dask.solver.variable_projection import ReducedProblem

MIN_CLUSTERS = 8
_WEAK_EIGENVALUE = 1e-7
"""Eigenvalue of the scaled Hessian below which a direction is called weak."""
_STRONG_CORRELATION = 0.99
_MOSTLY_OUTLIERS = (
    "the loss takes most pairs of some bins for outliers, and the others determine no errors: "
    "give a larger loss_scale"
)


@dataclass(frozen=True)
class Uncertainty:
    """Covariances over all parameters; NaN in the rows of those that did not move."""

    naive: Float[np.ndarray, "p p"] | None
    """None where the data do not determine every free parameter."""
    robust: Float[np.ndarray, "p p"] | None
    """None with fewer than 8 clusters."""
    dof: Float[np.ndarray, " p"]
    """Bell-McCaffrey degrees of freedom of the robust errors; NaN where there are none."""
    sentences: tuple[str, ...]
    """What is undetermined or weakly determined."""
    scaling_naive: Float[np.ndarray, "bin 2"]
    """Errors of offset and contrast of every bin for white noise; NaN where fixed or unknown."""
    scaling_robust: Float[np.ndarray, "bin 2"]
    """Cluster-robust ones. In `individual` a bin's own noise enters no other bin: that part is
    the naive error times the design effect of theta (the mean ratio of robust to naive variances)."""
    eigenvalues: Float[np.ndarray, " m"]
    """Of the Hessian of the parameters that moved, scaled to unit diagonal, the smallest first."""
    directions: Float[np.ndarray, "m p"]
    """Their eigenvectors in the scaled parameters; 0 where a parameter did not move."""


def uncertainty(
    names: tuple[str, ...],
    reduced: ReducedProblem,
    moved: Bool[np.ndarray, " p"],
    clusters: Int[np.ndarray, " bin"],
) -> Uncertainty:
    """Return the covariances at an optimum.

    moved: parameters neither fixed nor at a bound. clusters: a number per bin; bins that see the
    same speckle (φ apart by 180°) share one.
    """
    p, used = len(names), reduced.count > 0
    dof, unknown = np.full(p, np.nan), np.full((len(used), 2), np.nan)
    if not (moved.any() and reduced.finite):
        return Uncertainty(None, None, dof, (), unknown, unknown, np.empty(0), np.empty((0, p)))
    joint = joint_equations(reduced, moved)
    values, vectors = np.linalg.eigh(joint.hessian)
    directions = np.zeros((len(values), p))
    directions[:, moved] = vectors.T
    nothing = Uncertainty(None, None, dof, (), unknown, unknown, values, directions)
    chosen = [name for name, m in zip(names, moved, strict=True) if m]
    if values[0] <= SINGULAR:
        return replace(nothing, sentences=_undetermined(chosen, values, vectors))
    if isinstance(reduced.gram, RobustGram) and not slope_known(reduced.gram):
        return replace(nothing, sentences=(_MOSTLY_OUTLIERS,))
    noise = 1.0 if reduced.noise is None else reduced.noise
    robust, scaling_robust = None, unknown
    if clusters_in(reduced, clusters) >= MIN_CLUSTERS:
        scores, blocks = _by_cluster(joint, clusters, used)
        covariance, freedom = cr2(joint.inverse, scores, blocks, joint.moved)
        robust = _expand(joint.of_theta(covariance), moved)
        dof[moved] = freedom
        if joint.linear:
            scaling_robust = joint.of_scaling(covariance)
        elif reduced.columns.shape[1]:
            effect = np.trace(joint.hessian @ covariance) / joint.moved
            followed = joint.of_scaling(covariance)
            scaling_robust = deviation(followed**2 + effect * _own_errors(reduced) ** 2)
    return Uncertainty(
        naive=_expand(noise * joint.of_theta(joint.inverse), moved),
        robust=robust,
        dof=dof,
        sentences=_weakly_determined(
            chosen, values, vectors, joint.inverse[: joint.moved, : joint.moved]
        )
        + _few_bins(names, dof),
        scaling_naive=np.sqrt(noise) * _naive_scaling(reduced, joint),
        scaling_robust=np.where(used[:, None] & ~reduced.at_bound, scaling_robust, np.nan),
        eigenvalues=values,
        directions=directions,
    )


def error_used(
    robust: Float[np.ndarray, "*n"], lower: Float[np.ndarray, "*n"], naive: Float[np.ndarray, "*n"]
) -> Float[np.ndarray, "*n"]:
    """Return the errors in which a result is judged: influence, scaling modes, profiles, pulls.

    Each is the cluster-robust one; where it is unknown (NaN), the larger of lower bound and naive error.
    """
    return np.where(np.isfinite(robust), robust, np.fmax(lower, naive))


def clusters_in(reduced: ReducedProblem, clusters: Int[np.ndarray, " bin"]) -> int:
    """Return the number of clusters with data."""
    return len(np.unique(clusters[reduced.count > 0]))


def cr2(
    inverse: Float[np.ndarray, "m m"],
    scores: Float[np.ndarray, "cluster m"],
    blocks: Float[np.ndarray, "cluster m m"],
    first: int | None = None,
) -> tuple[Float[np.ndarray, "m m"], Float[np.ndarray, " first"]]:
    """Return the CR2 covariance and the Bell-McCaffrey degrees of freedom of its first parameters.

    inverse = H⁻¹, H = Σ blocks; with R_kᵀR_k = H_k and A_k = (I - R_k H⁻¹ R_kᵀ)^(-1/2) the score
    of cluster k becomes R_kᵀ A_k R_k^(-ᵀ) g_k (Bell and McCaffrey 2002; Pustejovsky and Tipton 2018).
    """
    m = len(inverse) if first is None else first
    adjusted, roots = [], []
    for g, block in zip(scores, blocks, strict=True):
        values, vectors = np.linalg.eigh(block)
        keep = values > 1e-12 * max(values[-1], np.finfo(float).tiny)
        R = np.sqrt(values[keep])[:, None] * vectors[:, keep].T
        back = vectors[:, keep] / np.sqrt(values[keep])  # R^(-ᵀ)g = backᵀ g
        leverage, axes = np.linalg.eigh(np.eye(len(R)) - R @ inverse @ R.T)
        inside = leverage > 1e-10
        A = (axes[:, inside] / np.sqrt(leverage[inside])) @ axes[:, inside].T
        adjusted.append(R.T @ A @ (back.T @ g))
        roots.append(A @ R)
    meat = np.einsum("ka,kb->ab", adjusted, adjusted)
    covariance = inverse @ meat @ inverse
    freedom = np.array([_satterthwaite(inverse, roots, blocks, p) for p in range(m)])
    return covariance, freedom


def _satterthwaite(
    inverse: Float[np.ndarray, "m m"],
    roots: list[Float[np.ndarray, "r m"]],
    blocks: Float[np.ndarray, "cluster m m"],
    p: int,
) -> float:
    """Return (tr)²/tr² of the quadratic form whose value is the variance of parameter p.

    Under white noise cluster k's projected residual is (I - hat) e, so with l = H⁻¹ e_p and
    a_k = R_kᵀ A_k R_k l the form is Σ (a_kᵀ u_k)² with covariances
    a_jᵀ(δ_jk H_k^+ ... )a_k = δ_jk |b_k|² - b_jᵀR_j H⁻¹ R_kᵀ b_k, b_k = A_k R_k l.
    """
    line = inverse[:, p]
    weights = []
    square = []
    for root, block in zip(roots, blocks, strict=True):
        b = root @ line
        values, vectors = np.linalg.eigh(block)
        keep = values > 1e-12 * max(values[-1], np.finfo(float).tiny)
        R = np.sqrt(values[keep])[:, None] * vectors[:, keep].T
        weights.append(R.T @ b)
        square.append(b @ b)
    W = np.array(weights)
    form = np.diag(square) - W @ inverse @ W.T
    total = np.trace(form)
    return float(total**2 / (form**2).sum()) if total > 0 else np.nan


def _by_cluster(
    joint: JointEquations, clusters: Int[np.ndarray, " bin"], used: Bool[np.ndarray, " bin"]
) -> tuple[Float[np.ndarray, "cluster n"], Float[np.ndarray, "cluster n n"]]:
    """Return the scores and blocks of clusters: sums over their bins."""
    members = [used & (clusters == cluster) for cluster in np.unique(clusters[used])]
    scores = np.array([joint.scores[of].sum(0) for of in members])
    return scores, np.array([joint.blocks[of].sum(0) for of in members])


def _naive_scaling(reduced: ReducedProblem, joint: JointEquations) -> Float[np.ndarray, "bin 2"]:
    """Return the errors of (offset, contrast) of every bin for white noise.

    They follow theta (P H⁻¹ Pᵀ) and have noise of their own ((ZᵀWZ)⁻¹).
    """
    P = reduced.projection[:, :, joint.which] / joint.size[: joint.moved]
    followed = np.einsum("kzp,pr,kzr->kz", P, joint.inverse[: joint.moved, : joint.moved], P)
    return deviation(followed + _own_errors(reduced) ** 2)


def _own_errors(reduced: ReducedProblem) -> Float[np.ndarray, "bin 2"]:
    """Return the errors of (offset, contrast) of every bin for white noise at a known theta."""
    bins, m = reduced.columns.shape
    own = np.repeat(reduced.inverse, bins // len(reduced.inverse), axis=0)
    own = own.reshape(bins, 2, m, 2, m)
    alone = np.einsum("kazaw,kz,kw->ka", own, reduced.columns, reduced.columns)
    free = (reduced.count > 0) & (m > 0)
    known = np.stack([free, free & ~reduced.undetermined], axis=1) & ~reduced.at_bound
    return np.where(known, deviation(alone), np.nan)


def _expand(small: Float[np.ndarray, "m m"], moved: Bool[np.ndarray, " p"]) -> np.ndarray:
    full = np.full((len(moved), len(moved)), np.nan)
    full[np.ix_(moved, moved)] = small
    return full


def _undetermined(names: list[str], values: np.ndarray, vectors: np.ndarray) -> tuple[str, ...]:
    return tuple(
        f"the data do not determine {_combination(names, vectors[:, n])}"
        for n in np.flatnonzero(values <= SINGULAR)
    )


def _weakly_determined(
    names: list[str], values: np.ndarray, vectors: np.ndarray, inverse: np.ndarray
) -> tuple[str, ...]:
    weak = [
        f"{_combination(names, vectors[:, n])} {'is' if _single_parameter(vectors[:, n]) else 'are'} almost "
        f"undetermined: fix one, or report only what they give together"
        for n in np.flatnonzero(values <= _WEAK_EIGENVALUE)
    ]
    sd = np.sqrt(np.diag(inverse))
    correlation = inverse / np.outer(sd, sd)
    strong = [
        f"{names[a]} and {names[b]} are determined only in combination "
        f"(correlation {correlation[a, b]:+.4f}): quote them with their covariance"
        for a, b in combinations(range(len(names)), 2)
        if abs(correlation[a, b]) > _STRONG_CORRELATION
    ]
    return tuple(weak + strong)


def _few_bins(names: tuple[str, ...], dof: Float[np.ndarray, " p"]) -> tuple[str, ...]:
    return tuple(
        f"the error of {name} rests on one or two bins ({freedom:.1f} degrees of freedom)"
        for name, freedom in zip(names, dof, strict=True)
        if freedom < 2
    )


def _single_parameter(vector: np.ndarray) -> bool:
    return int((np.abs(vector) > 0.3).sum()) == 1


def _combination(names: list[str], vector: np.ndarray) -> str:
    return joined_with_and(
        [name for name, part in zip(names, vector, strict=True) if abs(part) > 0.3]
    )
