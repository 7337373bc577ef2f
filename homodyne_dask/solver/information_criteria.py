"""AIC and BIC of scaling modes, estimated from the last Gram alone."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.solver.normal_equations import joint_equations, solve_normal_equations
from homodyne_dask.solver.reduce import reduce
from homodyne_dask.solver.reduced_problem import ReducedProblem
from homodyne_dask.solver.scaling_modes import ALIKE, MODES, Scaling, scaling_of


class ScalingComparison(NamedTuple):
    """A scaling mode at its own optimum, estimated from the last Gram, for comparison."""

    mode: str
    chisqr: float
    aic: float
    """Difference from the lowest of the compared modes, as is `bic`; unknown as NaN."""
    bic: float
    fitted: int
    """Physical and linear parameters."""
    change: Float[np.ndarray, " p"]
    """Change of theta from that of the fit; NaN where it is fixed or undetermined."""


def compare_scalings(
    reduced: ReducedProblem,
    scaling: Scaling,
    phi: Float[np.ndarray, " bin"],
    moved: Bool[np.ndarray, " p"],
    effect: float | None = 1.0,
) -> list[ScalingComparison]:
    """Return every scaling mode, each one Gauss-Newton step from the fit's optimum.

    The step is exact for contrast and offset and linear in theta: modes that move theta by many
    standard errors are compared only roughly. effect: the design effect, by which correlated pairs
    make variances larger; AIC and BIC count χ² in units of it times the reduced χ² of 'individual'
    (QAIC, Burnham and Anderson 2002), and pairs as that many fewer. These units are those of one fit:
    only differences between its modes mean something. None: the design effect is not known, and
    neither are AIC and BIC.
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


def _step(
    reduced: ReducedProblem, scaling: Scaling, moved: Bool[np.ndarray, " p"]
) -> ScalingComparison:
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
