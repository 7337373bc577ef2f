"""Cluster-robust covariance of type CR3, and its degrees of freedom.

CR3 (Bell and McCaffrey 2002) divides the residuals of a cluster by what the fit leaves of them, CR2 by the
root of that. CR3 is nearly the jackknife over clusters (MacKinnon, Nielsen and Webb 2023). With few degrees
of freedom intervals from CR2 hold the truth too rarely, those from CR3 as often as they say.
"""

import numpy as np
from jaxtyping import Bool, Float, Int

from homodyne_dask.solver.normal_equations import JointEquations

_MIN_LEVERAGE = 1e-8
"""Share of a cluster's residual that is left by the fit, below which it is rounding."""
_MIN_SHARE = 1e-6
"""Share of a parameter's variance along such a direction, above which it has no error."""


def cr3(
    inverse: Float[np.ndarray, "m m"],
    scores: Float[np.ndarray, "cluster m"],
    blocks: Float[np.ndarray, "cluster m m"],
    first: int | None = None,
) -> tuple[Float[np.ndarray, "m m"], Float[np.ndarray, " first"]]:
    """Return the CR3 covariance and the Bell-McCaffrey degrees of freedom of its first parameters.

    Both are NaN for a parameter that one cluster alone determines: its residuals show no scatter.
    inverse = H⁻¹, H = Σ blocks; with R_kᵀR_k = H_k and A_k = (I - R_k H⁻¹ R_kᵀ)⁻¹ the score of
    cluster k becomes R_kᵀ A_k R_k^(-ᵀ) g_k (Bell and McCaffrey 2002; Pustejovsky and Tipton 2018).
    """
    m = len(inverse) if first is None else first
    adjusted, roots = [], []
    lost, rounding = np.zeros(len(inverse)), 10 * np.finfo(float).eps * np.linalg.norm(inverse, 2)
    for g, block in zip(scores, blocks, strict=True):
        values, vectors = np.linalg.eigh(block)
        keep = values > 1e-12 * max(values[-1], np.finfo(float).tiny)
        R = np.sqrt(values[keep])[:, None] * vectors[:, keep].T
        back = vectors[:, keep] / np.sqrt(values[keep])  # R^(-ᵀ)g = backᵀ g
        leverage, axes = np.linalg.eigh(np.eye(len(R)) - R @ inverse @ R.T)
        inside = leverage > max(_MIN_LEVERAGE, rounding)
        A = (axes[:, inside] / leverage[inside]) @ axes[:, inside].T
        lost += np.square(axes[:, ~inside].T @ R @ inverse).sum(0)
        adjusted.append(R.T @ A @ (back.T @ g))
        roots.append(A @ R)
    meat = np.einsum("ka,kb->ab", adjusted, adjusted)
    covariance = inverse @ meat @ inverse
    freedom = np.array([_satterthwaite(inverse, roots, blocks, p) for p in range(m)])
    alone = lost > _MIN_SHARE * np.diag(inverse)
    covariance[alone, :] = covariance[:, alone] = np.nan
    return covariance, np.where(alone[:m], np.nan, freedom)


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


def by_cluster(
    joint: JointEquations, clusters: Int[np.ndarray, " bin"], used: Bool[np.ndarray, " bin"]
) -> tuple[Float[np.ndarray, "cluster n"], Float[np.ndarray, "cluster n n"]]:
    """Return the scores and blocks of clusters: sums over their bins."""
    members = [used & (clusters == cluster) for cluster in np.unique(clusters[used])]
    scores = np.array([joint.scores[of].sum(0) for of in members])
    return scores, np.array([joint.blocks[of].sum(0) for of in members])
