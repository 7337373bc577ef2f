"""The strength of smoothing penalties, from the Grams of a pass, and the penalized problem.

With the penalty Σ λ_r thetaᵀS_r theta a rate is as smooth as its prior N(0, φ (λ S)⁻¹) says. λ maximizes the
marginal likelihood of the quadratic model of χ² at this theta (REML), by the updates of Wood and Fasiolo
(2017, "A generalized Fellner-Schall method"); no further pass is needed. Of white noise the scale φ is 1.
Pairs that share a frame or a speckle are correlated: their likelihood counts only 1/φ times, φ being
the variance of the scores of bins over the one that white noise gives.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.models.parameters import Search
from homodyne_dask.models.smoothness import Smoothness
from homodyne_dask.solver.directions import SINGULAR, movable
from homodyne_dask.solver.reduced_problem import Penalty, ReducedProblem, Strengths

MAX_UPDATES = 200
"""Of the strengths."""
TOLERANCE = 1e-6
"""Relative change of all strengths at which the updates end."""
MAX_STRENGTH = 1e5
"""Largest λ, in units of the mean curvature of χ² over that of the penalty: the rate is a straight line."""
MIN_CLUSTERS = 3
"""Fewest clusters whose scores tell φ."""


def penalized(
    search: Search,
    theta: Float[np.ndarray, " p"],
    reduced: ReducedProblem,
    strengths: Strengths | None = None,
) -> ReducedProblem:
    """Return the problem with the penalties of the search at theta; as it is where there are none.

    strengths: those of another theta, which are kept; by default they are chosen.
    """
    smoothness = search.smoothness
    if smoothness is None or not reduced.finite:
        return reduced
    S = smoothness.matrices(len(theta))
    if strengths is None:
        strengths = _chosen(_Quadratic(search, smoothness, theta, reduced, S))
    weight = np.einsum("r,rpq->pq", strengths.values, S)
    gradient = -smoothness.slope(strengths.values, theta)
    free = movable(search, theta, reduced.gradient + gradient)
    effective = _effective(smoothness, reduced.hessian, weight, free)
    chisqr = float(strengths.values @ smoothness.penalties(theta))
    rounding = smoothness.rounding(strengths.values, theta)
    moving = np.array([float(free[at].sum()) for at in smoothness.places.values()])
    return reduced.with_penalty(
        Penalty(
            smoothness.names, strengths, effective, float((moving - effective).sum()),
            weight, gradient, chisqr, rounding,
        )
    )  # fmt: skip


def _effective(
    smoothness: Smoothness,
    hessian: Float[np.ndarray, "p p"],
    weight: Float[np.ndarray, "p p"],
    free: Bool[np.ndarray, " p"],
) -> Float[np.ndarray, " rate"]:
    """Return the effective degrees of freedom of each rate: its part of tr((H + P)⁻¹H)."""
    share = np.zeros(len(free))
    if free.any():
        of = np.ix_(free, free)
        share[free] = 1 - np.diag(_solved((hessian + weight)[of], weight[of]))
    return np.array([share[at].sum() for at in smoothness.places.values()])


@dataclass(frozen=True)
class _Quadratic:
    """χ² near a theta."""

    search: Search
    smoothness: Smoothness
    theta: Float[np.ndarray, " p"]
    reduced: ReducedProblem
    S: Float[np.ndarray, "rate p p"]

    def minimum(
        self, strengths: Float[np.ndarray, " rate"]
    ) -> tuple[Float[np.ndarray, " p"], Bool[np.ndarray, " p"], Float[np.ndarray, "m m"]]:
        """Return theta at the minimum inside the bounds, what is free there, and H + P of that."""
        weight, theta, search = np.einsum("r,rpq->pq", strengths, self.S), self.theta, self.search
        A = self.reduced.hessian + weight
        right = self.reduced.gradient - self.smoothness.slope(strengths, theta)
        free, step = movable(search, theta, right), np.zeros_like(theta)
        low, high = search.lower - theta, search.upper - theta
        while free.any():
            of = np.ix_(free, free)
            step[free] = _solved(A[of], (right - A @ np.where(free, 0.0, step))[free])
            past = free & ~np.isfinite(search.period) & ((step < low) | (step > high))
            if not past.any():
                break
            step = np.where(past, np.clip(step, low, high), step)
            free = free & ~past
        return theta + step, free, A[np.ix_(free, free)]

    def scale(
        self,
        there: Float[np.ndarray, " p"],
        free: Bool[np.ndarray, " p"],
        A: Float[np.ndarray, "m m"],
    ) -> float:
        """Return φ: the variance of the scores of clusters over that of white noise; of few clusters χ²/N."""
        reduced, clusters = self.reduced, self.smoothness.clusters
        used = (reduced.count > 0) & ~reduced.undetermined
        same = len(clusters) == len(used)  # averages of all bins have one contrast in some modes
        members = [used & (clusters == one) for one in np.unique(clusters[used])] if same else []
        if len(members) < MIN_CLUSTERS:
            return max(reduced.variance(int(self.search.free.sum())), SINGULAR)
        blocks = np.array([reduced.bin_hessian[of].sum(0) for of in members])
        scores = np.array([reduced.bin_gradient[of].sum(0) for of in members]) - blocks @ (
            there - self.theta
        )
        blocks, scores = blocks[:, free][:, :, free], scores[:, free]
        size = np.sqrt(np.maximum(np.diag(A), np.finfo(float).tiny))
        values, vectors = np.linalg.eigh(A / np.outer(size, size))
        root = vectors / np.sqrt(np.maximum(values, SINGULAR)) / size[:, None]
        blocks, scores = root.T @ blocks @ root, scores @ root
        # of white noise the variance of a score of a cluster that the fit leaves is B - B²
        expected = np.einsum("kii->", blocks) - (blocks**2).sum()
        return max(float((scores**2).sum() / expected), SINGULAR) if expected > 0 else 1.0


def _chosen(at: _Quadratic) -> Strengths:
    """Return the strengths of the penalties, and the scale φ of the likelihood."""
    smoothness, H = at.smoothness, at.reduced.hessian
    places = list(smoothness.places.values())
    unit = np.array([np.trace(H[p, p]) / np.trace(S) for p, S in zip(places, at.S, strict=True)])
    unit = np.where(unit > 0, unit, 1.0)
    given = np.array([smoothness.given.get(name, np.nan) for name in smoothness.names])
    strengths, scale = np.where(np.isnan(given), unit, given), 1.0
    for _ in range(MAX_UPDATES):
        there, free, A = at.minimum(strengths)
        scale = at.scale(there, free, A)
        updated, rough_of = strengths.copy(), smoothness.penalties(there)
        for r in np.flatnonzero(np.isnan(given)):
            S, own = at.S[r][np.ix_(free, free)], free[places[r]]
            rank = min(int(own.sum()), len(own) - 2)
            rough = float(rough_of[r])
            spent = rank - strengths[r] * float(np.trace(_solved(A, S)))
            limit = MAX_STRENGTH * unit[r]
            gain = scale * max(spent, 0.0)
            updated[r] = limit if gain >= limit * rough else gain / rough
            updated[r] = max(updated[r], unit[r] / MAX_STRENGTH)
        done = np.abs(np.log(updated / strengths)).max() < TOLERANCE
        strengths = updated
        if done:
            break
    return Strengths(strengths, scale)


def _solved(
    A: Float[np.ndarray, "m m"], right: Float[np.ndarray, "m ..."]
) -> Float[np.ndarray, "m ..."]:
    """Return A⁻¹ times the right-hand side, A scaled to unit diagonal first."""
    size = np.sqrt(np.maximum(np.diag(A), np.finfo(float).tiny))
    scaled = A / np.outer(size, size) + SINGULAR * np.eye(len(A))
    shape = (-1,) + (1,) * (right.ndim - 1)
    return np.linalg.solve(scaled, right / size.reshape(shape)) / size.reshape(shape)
