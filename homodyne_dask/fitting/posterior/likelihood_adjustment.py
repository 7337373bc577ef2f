"""The likelihood of pairs that share frames and speckle, adjusted so that its width is the true one.

Pairs are correlated, so the sum of squares is a composite log-likelihood: as if they were not, its curvature
is several times too large. The vertical adjustment of Chandler and Bate (2007) keeps its shape and makes its
curvature at the optimum that of the cluster-robust covariance V: with d the distance from the optimum,

    log L_A = (dᵀV⁻¹d / dᵀHd) · (log L - log L at the optimum).

With too few independent bins for all directions of V only the size is adjusted, by tr(HV)/p (Pauli, Racugno
and Ventura 2011); with some more V is drawn toward that size, as if p bins more had shown it. V itself is
estimated: a Gaussian likelihood becomes one of Student's t, in Q = -2 log L_A proportional to
(1 + Q/dof)^(-(dof + p)/2). Its degrees of freedom are those of what is estimated: for V the smallest of all
parameters, else those of the trace.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.errors import OptionError
from homodyne_dask.fitting.request import Request
from homodyne_dask.fitting.surrogate.coordinates import Coordinates
from homodyne_dask.solver.covariance import clusters_in, freedom_of_size, uncertainty
from homodyne_dask.solver.eigendirections import inverse_of
from homodyne_dask.solver.reduced_problem import ReducedProblem
from homodyne_dask.store.rings import friedel_clusters

_FOR_SOME, _FOR_ALL = 2, 3
"""Independent bins for each direction from which directions are adjusted: in part, and as V says."""
ADJUSTMENTS = ("robust", "none")


@dataclass(frozen=True)
class Adjustment:
    """How χ² becomes a log-likelihood."""

    kind: Literal["robust", "magnitude", "none"]
    note: str
    """One sentence for the report."""
    factor: float
    """χ² is divided by this, on average over directions."""
    dof: float
    """Of the t kernel; inf for a Gaussian likelihood."""
    centre: Float[np.ndarray, " u"]
    """Where the likelihood would be largest, were χ² quadratic and without bounds."""
    below: float
    """By how much χ² would be lower there than at the optimum."""
    hessian: Float[np.ndarray, "u u"]
    """H of ½χ² at the optimum."""
    precision: Float[np.ndarray, "u u"]
    """V⁻¹ where directions are adjusted, else H/factor."""

    def log_likelihood(self, u: Any, chisqr: Any) -> Any:
        """Return the adjusted log-likelihood, of NumPy or of JAX; chisqr: less that at the optimum."""
        xp, q = u.__array_namespace__(), (chisqr + self.below) / self.factor
        if self.kind == "robust":
            d = u - self.centre
            adjusted, raw = ((d @ form * d).sum(-1) for form in (self.precision, self.hessian))
            some = raw > np.finfo(float).tiny
            q = xp.where(some, q * self.factor * adjusted / xp.where(some, raw, 1.0), q)
        if np.isinf(self.dof):
            return -q / 2
        p = len(self.hessian)
        return -(self.dof + p) / 2 * xp.log1p(xp.maximum(q / self.dof, -0.5))

    def q_of(self, log_likelihood: Any) -> Any:
        """Return Q where the adjusted log-likelihood has some values."""
        if np.isinf(self.dof):
            return -2 * log_likelihood
        return self.dof * np.expm1(-2 * log_likelihood / (self.dof + len(self.hessian)))


def adjustment_of(
    request: Request,
    reduced: ReducedProblem,
    at: Coordinates,
    moved: Bool[np.ndarray, " p"],
    lower: Float[np.ndarray, "p p"] | None,
    adjust: str,
) -> Adjustment:
    """Return the adjustment at the optimum of a fit.

    moved: free parameters inside their bounds. lower: the lower bound of the covariance that is known with
    few bins. Raises OptionError where no error but the naive one is known.
    """
    slope = np.linalg.inv(at.slope_at(at.x))  # ∂x/∂u
    H = slope.T @ reduced.hessian[np.ix_(at.free, at.free)] @ slope
    gradient = slope.T @ reduced.gradient[at.free]
    step = inverse_of(H) @ gradient
    centre = {"centre": at.of(at.x) + step, "below": float(step @ gradient), "hessian": H}
    if adjust == "none":
        note = "the noise of pairs counts as uncorrelated: widths are those of the naive errors"
        return Adjustment("none", note, 1.0, np.inf, precision=H, **centre)
    clusters = friedel_clusters(request.scan.q, request.scan.phi)
    errors = uncertainty(request.search.names, reduced, moved, clusters)
    some, number = np.ix_(moved, moved), clusters_in(reduced, clusters)
    covariance = lower if errors.robust is None else errors.robust
    known = covariance is not None and bool(np.isfinite(covariance[some]).all())
    if covariance is None or not known:
        raise OptionError(
            "the data show no scatter between bins from which the width of the posterior follows: give "
            "adjust='none' for the naive one"
        )
    factor = float(np.trace(reduced.hessian[some] @ covariance[some])) / moved.sum()
    if errors.robust is None:
        note = f"{number} independent bins give a lower bound only: widths are at least these"
        return Adjustment("magnitude", note, factor, np.inf, precision=H / factor, **centre)
    p, all_inside = len(H), bool((moved == at.free).all())
    if number < _FOR_SOME * p or not all_inside:
        note = f"widths are on average those of the scatter between {number} independent bins"
        dof = freedom_of_size(reduced, moved, clusters)
        return Adjustment("magnitude", note, factor, dof, precision=H / factor, **centre)
    note = f"widths and correlations are those of the scatter between {number} independent bins"
    dof = float(np.nanmin(errors.dof))
    to_u = np.linalg.inv(slope)
    V = to_u @ covariance[np.ix_(at.free, at.free)] @ to_u.T
    if number < _FOR_ALL * p:
        note += ", drawn toward their mean size: the bins are few"
        dof = freedom_of_size(reduced, moved, clusters)
        V = (number * V + p * factor * inverse_of(H)) / (number + p)
    return Adjustment("robust", note, factor, dof, precision=inverse_of(V), **centre)
