"""The strength of smoothing penalties, from the Grams of a pass, and the penalized problem.

With the penalty Σ λ_r thetaᵀS_r theta a rate is as smooth as its prior N(0, φ_r (λ_r S_r)⁻¹) says. λ
maximizes the marginal likelihood of the quadratic model of χ² at this theta (REML), by the updates of Wood
and Fasiolo (2017, "A generalized Fellner-Schall method"); no further pass is needed. Of white noise φ is 1.
Pairs that share a frame or a speckle are correlated: the likelihood of a rate counts only 1/φ_r times, φ_r
being how much the noise of bins roughens that rate over what white noise would. Each rate has its own: the
angles that show one are not those that show the other, and pairs of slow decay are correlated most.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.models.parameters import Search
from homodyne_dask.models.spline_basis import Smoothness
from homodyne_dask.solver.eigendirections import SINGULAR, movable
from homodyne_dask.solver.reduced_problem import Penalty, ReducedProblem, Strengths

MAX_UPDATES = 200
"""Of the strengths."""
TOLERANCE = 1e-6
"""Relative change of all strengths at which the updates end."""
ROUGH_TOLERANCE = 1e-2
"""The same where likelihoods are compared."""
EXPONENTS = (1.0, 2.0, 3.0)
"""Of ages, that are compared with 0."""
MAX_STRENGTH = 1e5
"""Largest λ, in units of the mean curvature of χ² over that of the penalty: the rate is a straight line."""
UNSEEN = 1e-100
"""Curvature of χ² over that of the penalty, below which no pair shows the rate, whatever its unit."""
ROUGHER = 100.0
"""λ over that of the fit that tells the bias. In a linear model of rates that stop, bands held them around
bends at 39 to 44 % of times without the bias, at 68 to 84 % with that from 10 times smaller λ, at 86 to 94 %
with that from 100 times smaller λ, and were at most 1.11 times as wide where rates are smooth."""
MIN_CLUSTERS = 3
"""Fewest clusters whose scores tell φ."""


def penalized(
    search: Search,
    theta: Float[np.ndarray, " p"],
    reduced: ReducedProblem,
    strengths: Strengths | None = None,
    exponents: Float[np.ndarray, " rate"] | None = None,
) -> ReducedProblem:
    """Return the problem with the penalties of the search at theta; as it is where there are none.

    strengths: those of another theta, which are kept; by default they are chosen. exponents: the same of
    exponents alone.
    """
    smoothness = search.smoothness
    if smoothness is None or not reduced.finite:
        return reduced
    if strengths is None:
        given = np.zeros(len(smoothness.places)) if exponents is None else exponents
        at = _Quadratic(search, smoothness, theta, reduced, given)
        strengths = _chosen(at) if exponents is None else _at_exponents(at)
    values, exponents = strengths.values, strengths.exponents
    weights = values[:, None, None] * smoothness.matrices(len(theta), exponents)
    weight, score_variance = weights.sum(0), np.einsum("r,rpq->pq", strengths.scales, weights)
    gradient = -smoothness.slope(values, exponents, theta)
    free = movable(search, theta, reduced.gradient + gradient)
    effective = _effective(smoothness, reduced.hessian, weight, free)
    rough = _Quadratic(search, smoothness, theta, reduced, exponents).minimum(values / ROUGHER)[0]
    pull = -smoothness.slope(values, exponents, rough)
    chisqr = float(values @ smoothness.penalties(theta, exponents))
    rounding = smoothness.rounding(values, exponents, theta)
    moving = np.array([float(free[at].sum()) for at in smoothness.places.values()])
    return reduced.with_penalty(
        Penalty(
            smoothness.names, strengths, effective, float((moving - effective).sum()),
            weight, score_variance, gradient, pull, chisqr, rounding,
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
    exponents: Float[np.ndarray, " rate"]
    """Of ages, as `Smoothness.matrices` takes them."""

    @cached_property
    def S(self) -> Float[np.ndarray, "rate p p"]:
        """The matrix of each penalty."""
        return self.smoothness.matrices(len(self.theta), self.exponents)

    def minimum(
        self, strengths: Float[np.ndarray, " rate"]
    ) -> tuple[Float[np.ndarray, " p"], Bool[np.ndarray, " p"], Float[np.ndarray, "m m"]]:
        """Return theta at the minimum inside the bounds, what is free there, and H + P of that."""
        weight, theta, search = np.einsum("r,rpq->pq", strengths, self.S), self.theta, self.search
        A = self.reduced.hessian + weight
        right = self.reduced.gradient - self.smoothness.slope(strengths, self.exponents, theta)
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

    def scales(
        self,
        there: Float[np.ndarray, " p"],
        free: Bool[np.ndarray, " p"],
        A: Float[np.ndarray, "m m"],
    ) -> Float[np.ndarray, " rate"]:
        """Return φ: how rough the scores of clusters make a rate over white noise; of few clusters χ²/N."""
        reduced, clusters = self.reduced, self.smoothness.clusters
        used = (reduced.count > 0) & ~reduced.undetermined
        same = len(clusters) == len(used)  # averages of all bins have one contrast in some modes
        members = [used & (clusters == one) for one in np.unique(clusters[used])] if same else []
        if len(members) < MIN_CLUSTERS:
            same_for_all = max(reduced.variance(int(self.search.free.sum())), SINGULAR)
            return np.full(len(self.S), same_for_all)
        blocks = np.array([reduced.bin_hessian[of].sum(0) for of in members])
        scores = np.array([reduced.bin_gradient[of].sum(0) for of in members]) - blocks @ (
            there - self.theta
        )
        blocks, scores = blocks[:, free][:, :, free], scores[:, free]
        size = np.sqrt(np.maximum(np.diag(A), np.finfo(float).tiny))
        values, vectors = np.linalg.eigh(A / np.outer(size, size))
        root = vectors / np.sqrt(np.maximum(values, SINGULAR)) / size[:, None]
        blocks, scores = root.T @ blocks @ root, scores @ root
        rough = root.T @ self.S[:, free][:, :, free] @ root
        # of white noise the variance of a score of a cluster that the fit leaves is B - B²
        expected = np.einsum("rij,ji->r", rough, (blocks - blocks @ blocks).sum(0))
        seen = np.einsum("rij,ji->r", rough, scores.T @ scores)
        some = expected > 0
        return np.where(some, np.maximum(seen / np.where(some, expected, 1.0), SINGULAR), 1.0)


def _chosen(at: _Quadratic) -> Strengths:
    """Return the strengths and exponents of the penalties, and the scales φ of the likelihood.

    at: with exponents of 0. Each rate takes the exponent of the largest marginal likelihood: 0 where it
    bends as much late as early, a large one where it bends early, as in ageing and creep, which would else
    cost its smoothness later.
    """
    best = at
    chosen, scales = _strengths(best, _units(best))
    free = best.minimum(chosen)[1]
    for r in range(len(chosen)):
        highest = _likelihood(best, chosen, scales[r], free)
        for exponent in EXPONENTS:
            one = replace(best, exponents=best.exponents.copy())
            one.exponents[r] = exponent
            there, _ = _strengths(one, chosen * _units(one) / _units(best), scales)
            likelihood = _likelihood(one, there, scales[r], free)
            if likelihood > highest:
                best, chosen, highest = one, there, likelihood
    values, scales = _strengths(best, chosen)
    return Strengths(values, best.exponents, scales)


def _at_exponents(at: _Quadratic) -> Strengths:
    values, scales = _strengths(at, _units(at))
    return Strengths(values, at.exponents, scales)


def _units(at: _Quadratic) -> Float[np.ndarray, " rate"]:
    """Return the mean curvature of χ² over that of the penalty, for each rate."""
    H, places = at.reduced.hessian, at.smoothness.places.values()
    unit = np.array([np.trace(H[p, p]) / np.trace(S) for p, S in zip(places, at.S, strict=True)])
    return np.where(unit > UNSEEN, unit, 1.0)


def _strengths(
    at: _Quadratic,
    start: Float[np.ndarray, " rate"],
    scales: Float[np.ndarray, " rate"] | None = None,
) -> tuple[Float[np.ndarray, " rate"], Float[np.ndarray, " rate"]]:
    """Return the strengths of the largest marginal likelihood, and the scales of the likelihood.

    scales: where they are known; then it is enough that the strengths are known well enough to compare.
    """
    smoothness, unit = at.smoothness, _units(at)
    places = list(smoothness.places.values())
    tolerance = TOLERANCE if scales is None else ROUGH_TOLERANCE
    given = np.array([smoothness.given.get(name, np.nan) for name in smoothness.names])
    strengths, found = np.where(np.isnan(given), start, given), np.ones(len(start))
    for _ in range(MAX_UPDATES):
        there, free, A = at.minimum(strengths)
        found = at.scales(there, free, A) if scales is None else scales
        updated, rough_of = strengths.copy(), smoothness.penalties(there, at.exponents)
        for r in np.flatnonzero(np.isnan(given)):
            S = at.S[r][np.ix_(free, free)]
            rank, rough = _rank(free[places[r]]), float(rough_of[r])
            spent = rank - strengths[r] * float(np.trace(_solved(A, S)))
            limit = MAX_STRENGTH * unit[r]
            gain = found[r] * max(spent, 0.0)
            updated[r] = limit if gain >= limit * rough else gain / rough
            updated[r] = max(updated[r], unit[r] / MAX_STRENGTH)
        done = np.abs(np.log(updated / strengths)).max() < tolerance
        strengths = updated
        if done:
            break
    return strengths, found


def _rank(own: Bool[np.ndarray, " size"]) -> int:
    """Return the rank of the penalty of a rate, from which of its coefficients are free."""
    return min(int(own.sum()), len(own) - 2)


def _likelihood(
    at: _Quadratic,
    strengths: Float[np.ndarray, " rate"],
    scale: float,
    free: Bool[np.ndarray, " p"],
) -> float:
    """Return twice the logarithm of the marginal likelihood, but for what exponents do not change."""
    there = at.minimum(strengths)[0]
    step, some = there - at.theta, np.ix_(free, free)
    reduced, penalties = at.reduced, strengths @ at.smoothness.penalties(there, at.exponents)
    chisqr = float(step @ reduced.hessian @ step - 2 * reduced.gradient @ step + penalties)
    A = (reduced.hessian + np.einsum("r,rpq->pq", strengths, at.S))[some]
    size = np.sqrt(np.maximum(np.diag(A), np.finfo(float).tiny))
    curvature = np.linalg.eigvalsh(A / np.outer(size, size))
    found = -chisqr / scale - np.log(np.maximum(curvature, SINGULAR)).sum() - 2 * np.log(size).sum()
    for strength, S, place in zip(strengths, at.S, at.smoothness.places.values(), strict=True):
        own = free[place]
        stiff = np.linalg.eigvalsh(S[place, place][np.ix_(own, own)])[len(own[own]) - _rank(own) :]
        found += np.log(np.maximum(strength * stiff, np.finfo(float).tiny)).sum()
    return float(found)


def _solved(
    A: Float[np.ndarray, "m m"], right: Float[np.ndarray, "m ..."]
) -> Float[np.ndarray, "m ..."]:
    """Return A⁻¹ times the right-hand side, A scaled to unit diagonal first."""
    size = np.sqrt(np.maximum(np.diag(A), np.finfo(float).tiny))
    scaled = A / np.outer(size, size) + SINGULAR * np.eye(len(A))
    shape = (-1,) + (1,) * (right.ndim - 1)
    return np.linalg.solve(scaled, right / size.reshape(shape)) / size.reshape(shape)
