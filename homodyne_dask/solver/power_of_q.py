"""The power of q with which rates of decorrelation scale, from one more parameter at the optimum: no pass.

With J(t) (q/q₀)^δ in place of J(t) rates scale as q^(2 + δ). The derivative by δ at δ = 0 is ln(q/q₀) times
that by the logarithm of J, so the score and the Hessian of δ follow from those of each bin (Rao 1948).
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import stdtr


class NoiseOfRates(NamedTuple):
    """What is known of the noise."""

    variance: float
    """Of a residual of unit weight."""
    effect: float
    """Variance of the parameters over that for uncorrelated noise."""
    dof: float
    """Degrees of freedom of the errors from which it follows."""


MIN_DOF = 1.0
"""Degrees of freedom of the error, below which it says nothing."""


class PowerOfQ(NamedTuple):
    """The power of q of the rates, and the test whether it is 2."""

    power: float
    """2 and one Gauss-Newton step: far from 2 it is about right only."""
    stderr: float
    """For uncorrelated noise, times the root of the design effect of the rates' own errors."""
    dof: float
    p: float
    """Probability of so much from 2 if rates scale as q²."""

    @property
    def differs(self) -> bool:
        """Whether rates do not scale as q²."""
        return self.p < LARGEST_P and abs(self.power - 2) > SMALLEST


LARGEST_P, SMALLEST = 1e-4, 0.05
"""p below which, and deviation from 2 above which, the power is another one."""


def power_of_q(
    scores: Float[np.ndarray, "bin p"],
    blocks: Float[np.ndarray, "bin p p"],
    amplitude: Float[np.ndarray, " p"],
    q: Float[np.ndarray, " bin"],
    moved: Bool[np.ndarray, " p"],
    noise: NoiseOfRates,
) -> PowerOfQ | None:
    """Return the test at an optimum; None where it cannot be made.

    scores, blocks: gradient and Hessian of each bin, contrast and offset eliminated. amplitude: derivative of
    theta by the logarithm of the rates. q: of each bin, known. moved: parameters that are free inside their
    bounds.
    """
    lever = np.log(q / np.exp(np.log(q).mean()))
    of_rate = blocks @ amplitude
    cross, own = lever @ of_rate[:, moved], lever**2 @ (of_rate @ amplitude)
    H = blocks[:, moved][:, :, moved].sum(0)
    whole = np.block([[H, cross[:, None]], [cross[None], own]])
    score = np.append(scores[:, moved].sum(0), lever @ (scores @ amplitude))
    size = np.sqrt(np.diag(whole))
    if not (np.isfinite(size).all() and (size > 0).all()):
        return None
    scaled = whole / np.outer(size, size)
    if np.linalg.cond(scaled) > 1 / np.sqrt(np.finfo(float).eps):
        return None
    inverse = np.linalg.inv(scaled)
    step = float((inverse @ (score / size))[-1] / size[-1])
    stderr = float(np.sqrt(noise.variance * noise.effect * inverse[-1, -1]) / size[-1])
    if not (np.isfinite(stderr) and stderr > 0 and noise.dof >= MIN_DOF):
        return None
    p = float(2 * stdtr(noise.dof, -abs(step) / stderr))
    return PowerOfQ(2 + step, stderr, noise.dof, p)
