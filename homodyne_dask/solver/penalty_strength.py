"""The strength of smoothing penalties, from the Grams of a pass, and the penalized problem.

With the penalty Σ λ_r thetaᵀS_r theta a rate is as smooth as its prior N(0, φ_r (λ_r S_r)⁻¹) says. λ
maximizes the marginal likelihood of the quadratic model of χ² at this theta (REML), by the updates of Wood
and Fasiolo (2017, "A generalized Fellner-Schall method"). Pairs that share a frame or a speckle are
correlated: the likelihood of a rate counts 1/φ_r times, φ_r being how much the noise of bins roughens that
rate over what white noise would (docs/rates.md).
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Float

from homodyne_dask.models.parameters import Search
from homodyne_dask.models.rate_forms import Smoothness
from homodyne_dask.solver.array_shapes import MovedMatrix, PerRate, Theta, Which
from homodyne_dask.solver.cluster_robust import MIN_CLUSTERS_OF_RATES
from homodyne_dask.solver.normal_matrix import SINGULAR, bounded_step, eigensystem, movable, solved
from homodyne_dask.solver.reduce import Penalty, ReducedProblem, Strengths

MAX_UPDATES, TOLERANCE, ROUGH_TOLERANCE = 200, 1e-6, 1e-2
"""Most updates of the strengths, and the relative change at which they end; the rough one is enough where
likelihoods are only compared."""
EXPONENTS = (1.0, 2.0, 3.0)
"""Of ages, that are compared with 0."""
MAX_STRENGTH, LEAST_UNIT = 1e5, 1e-100
"""Largest λ in units of the curvature of χ² over that of the penalty, and the least such unit: where f does
not depend on a rate, there is no curvature to compare with."""
ROUGHER = 100.0
"""Factor by which λ is smaller in the rougher fit that estimates the bias. With it, bands contain the true
rate around bends at 86 to 94 % of times; with 10 instead at 68 to 84 %, without the bias at 39 to 44 %. The
smaller λ is at most the least one of a form that has it."""


def penalized(
    search: Search,
    theta: Theta,
    reduced: ReducedProblem,
    strengths: Strengths | None = None,
    exponents: PerRate | None = None,
) -> ReducedProblem:
    """Return the penalized problem; strengths: kept, else chosen, with `exponents` where given."""
    smooth = search.smoothness
    if smooth is None or not reduced.finite:
        return reduced
    if strengths is None:
        first_exponents = np.zeros(len(smooth.places)) if exponents is None else exponents
        problem = _Quadratic(search, smooth, theta, reduced, first_exponents)
        start = problem.units
        if exponents is None:
            problem, start = _best_exponents(problem)
        values, scales = problem.strengths(start)
        strengths = Strengths(values, problem.exponents, scales)
    values, exponents, scales = strengths
    problem = _Quadratic(search, smooth, theta, reduced, exponents)
    weights = values[:, None, None] * problem.S
    weight, gradient = weights.sum(0), -smooth.slope(values, exponents, theta)
    free = movable(search, theta, reduced.gradient + gradient)
    share, free_block = np.zeros(len(free)), np.ix_(free, free)
    share[free] = 1 - np.diag(solved((reduced.hessian + weight)[free_block], weight[free_block]))
    effective, number_free = (
        np.array([float(number[place].sum()) for place in smooth.places.values()])
        for number in (share, free)
    )
    least = [form.least_strength or np.inf for form in smooth.forms.values()]
    rougher = np.minimum(values / ROUGHER, least * scales)
    return reduced.with_penalty(
        Penalty(
            smooth.names, strengths, effective, float((number_free - effective).sum()), weight,
            np.einsum("r,rpq->pq", scales, weights), gradient,
            -smooth.slope(values, exponents, problem.minimum(rougher)[0]),
            float(values @ smooth.penalties(theta, exponents)), smooth.rounding(values, exponents, theta),
        )
    )  # fmt: skip


def _best_exponents(best: "_Quadratic") -> tuple["_Quadratic", PerRate]:
    """Return the problem with exponents of largest marginal likelihood: large where a rate bends early."""
    chosen, scales = best.strengths(best.units)
    free = best.minimum(chosen)[1]
    for r, scale in enumerate(scales):
        highest = best.likelihood(chosen, scale, free)
        ages = best.smooth.forms[best.smooth.names[r]].ages
        for exponent in EXPONENTS if np.ptp(ages) else ():
            of_rate = np.arange(len(scales)) == r
            candidate = replace(best, exponents=np.where(of_rate, exponent, best.exponents))
            strengths, _ = candidate.strengths(chosen * candidate.units / best.units, scales)
            likelihood = candidate.likelihood(strengths, scale, free)
            if likelihood > highest:
                best, chosen, highest = candidate, strengths, likelihood
    return best, chosen


@dataclass(frozen=True)
class _Quadratic:
    search: Search
    smooth: Smoothness
    theta: Theta
    reduced: ReducedProblem
    exponents: PerRate

    @cached_property
    def S(self) -> Float[np.ndarray, "rate p p"]:
        return self.smooth.matrices(len(self.theta), self.exponents)

    @cached_property
    def units(self) -> PerRate:
        """The mean curvature of χ² over that of the penalty, for each rate."""
        rates, H = zip(self.smooth.places.values(), self.S, strict=True), self.reduced.hessian
        unit = np.array([np.trace(H[p, p]) / np.trace(S) for p, S in rates])
        return np.where(unit > LEAST_UNIT, unit, 1.0)

    def minimum(self, strengths: PerRate) -> tuple[Theta, Which, MovedMatrix]:
        """Return theta at the minimum inside the bounds, what is free there, and H + P of that."""
        A = self.reduced.hessian + np.einsum("r,rpq->pq", strengths, self.S)
        right = self.reduced.gradient - self.smooth.slope(strengths, self.exponents, self.theta)

        def solve(gradient: Theta, free: Which) -> np.ndarray:
            return solved(A[np.ix_(free, free)], gradient[free])

        step, free = bounded_step(self.search, self.theta, A, right, solve)
        return self.theta + step, free, A[np.ix_(free, free)]

    def scales(self, minimum: Theta, free: Which, A: np.ndarray) -> PerRate:
        """Return φ: how rough the scores of clusters make a rate over white noise; of few the reduced χ²."""
        reduced, clusters = self.reduced, self.smooth.clusters
        used = (reduced.count > 0) & ~reduced.undetermined
        members = []
        if len(clusters) == len(used):  # averages of all bins have one contrast in some modes
            members = [used & (clusters == cluster) for cluster in np.unique(clusters[used])]
        if len(members) < MIN_CLUSTERS_OF_RATES:
            # coefficients count as far as the penalty leaves them free: a table has few more points
            effective = np.trace(solved(A, reduced.hessian[np.ix_(free, free)]))
            return np.full(len(self.S), max(reduced.variance(round(effective)), SINGULAR))
        blocks = np.array([reduced.bin_hessian[bins].sum(0) for bins in members])
        scores = np.array([reduced.bin_gradient[bins].sum(0) for bins in members])
        scores = (scores - blocks @ (minimum - self.theta))[:, free]
        root = eigensystem(A).inverse_root
        blocks, scores = root.T @ blocks[:, free][:, :, free] @ root, scores @ root
        rough = root.T @ self.S[:, free][:, :, free] @ root
        # of white noise the variance of a score of a cluster that the fit leaves is B - B²
        expected = np.einsum("rij,ji->r", rough, (blocks - blocks @ blocks).sum(0))
        observed, expects_any = np.einsum("rij,ji->r", rough, scores.T @ scores), expected > 0
        ratio = observed / np.where(expects_any, expected, 1.0)
        return np.where(expects_any, np.maximum(ratio, SINGULAR), 1.0)

    def strengths(
        self, start: PerRate, fixed_scales: PerRate | None = None
    ) -> tuple[PerRate, PerRate]:
        """Return the strengths of largest marginal likelihood and scales φ; less accurate with given φ."""
        by_user = np.array([self.smooth.given.get(name, np.nan) for name in self.smooth.names])
        strengths, scales = np.where(np.isnan(by_user), start, by_user), np.ones(len(start))
        for _ in range(MAX_UPDATES):
            minimum, free, A = self.minimum(strengths)
            scales = self.scales(minimum, free, A) if fixed_scales is None else fixed_scales
            rough, updated = self.smooth.penalties(minimum, self.exponents), strengths.copy()
            for r, place in enumerate(self.smooth.places.values()):
                S, limit = self.S[r][np.ix_(free, free)], MAX_STRENGTH * self.units[r]
                # second differences of a straight line are 0: two directions have no penalty
                rank = min(int(free[place].sum()), len(free[place]) - 2)
                spent = rank - strengths[r] * float(np.trace(solved(A, S)))
                gain = scales[r] * max(spent, 0.0)
                updated[r] = limit if gain >= limit * rough[r] else gain / rough[r]
                least = scales[r] * self.smooth.forms[self.smooth.names[r]].least_strength
                updated[r] = max(updated[r], self.units[r] / MAX_STRENGTH, least)
            updated = np.where(np.isnan(by_user), updated, by_user)
            change = np.abs(np.log(updated / strengths)).max()
            strengths = updated
            if change < (TOLERANCE if fixed_scales is None else ROUGH_TOLERANCE):
                break
        return strengths, scales

    def likelihood(self, strengths: PerRate, scale: float, free: Which) -> float:
        """Return twice the logarithm of the marginal likelihood, but for what exponents do not change."""
        minimum, H = self.minimum(strengths)[0], self.reduced.hessian
        step, penalties = minimum - self.theta, self.smooth.penalties(minimum, self.exponents)
        chisqr = float(step @ H @ step - 2 * self.reduced.gradient @ step + strengths @ penalties)
        A = (H + np.einsum("r,rpq->pq", strengths, self.S))[np.ix_(free, free)]
        scaled = eigensystem(A)
        twice_log = -chisqr / scale - np.log(scaled.positive).sum() - 2 * np.log(scaled.size).sum()
        for strength, S, place in zip(strengths, self.S, self.smooth.places.values(), strict=True):
            is_free = free[place]
            flat = max(
                int(is_free.sum()) + 2 - len(is_free), 0
            )  # directions that the penalty leaves
            stiff = np.linalg.eigvalsh(S[place, place][np.ix_(is_free, is_free)])[flat:]
            twice_log += np.log(np.maximum(strength * stiff, np.finfo(float).tiny)).sum()
        return float(twice_log)
