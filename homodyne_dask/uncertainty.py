"""How far to believe the values: covariances, degrees of freedom, and what is not determined.

`naive` is (JᵀWJ)⁻¹, right for white noise. Pairs that share a frame are correlated, so the
published error bar is the cluster-robust CR2 (Bell and McCaffrey 2002) with the bin as cluster; it
needs at least 8 clusters and is absent otherwise.
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from jaxtyping import Bool, Float, Int

from homodyne_dask.parameters import listed
from homodyne_dask.scaling import Reduced

MIN_CLUSTERS = 8
_SINGULAR = 1e-14
_WEAK = 1e-7
"""Eigenvalue of the scaled Hessian below which a direction is called weak."""
_CORRELATED = 0.99


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


def uncertainty(
    names: tuple[str, ...],
    reduced: Reduced,
    moved: Bool[np.ndarray, " p"],
    clusters: Int[np.ndarray, " bin"],
) -> Uncertainty:
    """Return the covariances at an optimum.

    moved: parameters neither fixed nor at a bound. clusters: a number per bin; bins that see the
    same speckle (φ apart by 180°) share one.
    """
    p = len(names)
    naive = robust = None
    dof = np.full(p, np.nan)
    if not moved.any():
        return Uncertainty(None, None, dof, ())
    some = np.ix_(moved, moved)
    H = reduced.hessian[some]
    size = np.sqrt(np.where(np.diag(H) > 0, np.diag(H), 1.0))
    scaled = H / np.outer(size, size)
    values, vectors = np.linalg.eigh(scaled)
    chosen = [name for name, m in zip(names, moved, strict=True) if m]
    if values[0] <= _SINGULAR:
        return Uncertainty(None, None, dof, _undetermined(chosen, values, vectors))
    inverse = vectors / values @ vectors.T
    naive = _expand(inverse / np.outer(size, size), moved)
    used = reduced.count > 0
    if len(np.unique(clusters[used])) >= MIN_CLUSTERS:
        scores, blocks = _by_cluster(reduced, moved, clusters, size)
        covariance, freedom = cr2(inverse, scores, blocks)
        robust = _expand(covariance / np.outer(size, size), moved)
        dof[moved] = freedom
    sentences = _weak(chosen, values, vectors, inverse) + _few(names, dof)
    return Uncertainty(naive, robust, dof, sentences)


def friedel_clusters(
    q: Float[np.ndarray, " bin"], phi: Float[np.ndarray, " bin"]
) -> Int[np.ndarray, " bin"]:
    """Return a cluster number per bin: bins of equal q whose φ differ by 180° see one speckle.

    Within half the spacing of neighbouring angles of a ring, at most 5°.
    """
    clusters = np.arange(len(q))
    for ring in np.unique(np.nan_to_num(q, nan=-1.0)):
        members = np.flatnonzero(np.nan_to_num(q, nan=-1.0) == ring)
        if len(members) < 2:
            continue
        gaps = np.diff(np.sort(np.mod(phi[members], 360)))
        width = min(5.0, 0.5 * gaps[gaps > 1e-9].min(initial=10.0))
        for a, b in combinations(members, 2):
            apart = (phi[a] - phi[b]) % 360
            if abs(apart - 180) < width:
                clusters[b] = clusters[a]
    return clusters


def cr2(
    inverse: Float[np.ndarray, "m m"],
    scores: Float[np.ndarray, "cluster m"],
    blocks: Float[np.ndarray, "cluster m m"],
) -> tuple[Float[np.ndarray, "m m"], Float[np.ndarray, " m"]]:
    """Return the CR2 covariance and its Bell-McCaffrey degrees of freedom per parameter.

    inverse = H⁻¹, H = Σ blocks; with R_kᵀR_k = H_k and A_k = (I - R_k H⁻¹ R_kᵀ)^(-1/2) the score
    of cluster k becomes R_kᵀ A_k R_k^(-ᵀ) g_k (Bell and McCaffrey 2002; Pustejovsky and Tipton 2018).
    """
    m = len(inverse)
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
    reduced: Reduced,
    moved: Bool[np.ndarray, " p"],
    clusters: Int[np.ndarray, " bin"],
    size: Float[np.ndarray, " m"],
) -> tuple[Float[np.ndarray, "cluster m"], Float[np.ndarray, "cluster m m"]]:
    used = reduced.count > 0
    scores, blocks = [], []
    for cluster in np.unique(clusters[used]):
        of = used & (clusters == cluster)
        scores.append(reduced.bin_gradient[of].sum(0)[moved] / size)
        H = reduced.bin_hessian[of].sum(0)[np.ix_(moved, moved)]
        blocks.append(H / np.outer(size, size))
    return np.array(scores), np.array(blocks)


def _expand(small: Float[np.ndarray, "m m"], moved: Bool[np.ndarray, " p"]) -> np.ndarray:
    full = np.full((len(moved), len(moved)), np.nan)
    full[np.ix_(moved, moved)] = small
    return full


def _undetermined(names: list[str], values: np.ndarray, vectors: np.ndarray) -> tuple[str, ...]:
    return tuple(
        f"the data do not determine {_combination(names, vectors[:, n])}"
        for n in np.flatnonzero(values <= _SINGULAR)
    )


def _weak(
    names: list[str], values: np.ndarray, vectors: np.ndarray, inverse: np.ndarray
) -> tuple[str, ...]:
    weak = [
        f"{_combination(names, vectors[:, n])} {'is' if _lone(vectors[:, n]) else 'are'} almost "
        f"undetermined: fix one, or report only what they give together"
        for n in np.flatnonzero(values <= _WEAK)
    ]
    sd = np.sqrt(np.diag(inverse))
    correlation = inverse / np.outer(sd, sd)
    strong = [
        f"{names[a]} and {names[b]} are determined only in combination "
        f"(correlation {correlation[a, b]:+.4f}): quote them with their covariance"
        for a, b in combinations(range(len(names)), 2)
        if abs(correlation[a, b]) > _CORRELATED
    ]
    return tuple(weak + strong)


def _few(names: tuple[str, ...], dof: Float[np.ndarray, " p"]) -> tuple[str, ...]:
    return tuple(
        f"the error of {name} rests on one or two bins ({freedom:.1f} degrees of freedom)"
        for name, freedom in zip(names, dof, strict=True)
        if freedom < 2
    )


def _lone(vector: np.ndarray) -> bool:
    return int((np.abs(vector) > 0.3).sum()) == 1


def _combination(names: list[str], vector: np.ndarray) -> str:
    return listed([name for name, part in zip(names, vector, strict=True) if abs(part) > 0.3])
