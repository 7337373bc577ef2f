"""Widths of error bands of a curve: at each time, and for the whole curve at once.

The band of the whole curve is that of Scheffé's kind with the constant of the tube formula (Naiman 1986; Sun
and Loader 1994). With u(t) the unit vector of the curve's error in coordinates in which the parameters have
the unit covariance, κ the length of its path, and ν degrees of freedom, the curve leaves a band of c standard
errors somewhere with a probability of at most

    κ/π (1 + c²/ν)^(-ν/2) + P(|t_ν| > c)
"""

import numpy as np
from jaxtyping import Float
from scipy.special import stdtr, stdtrit

WIDEST = 1e6
"""Standard errors: the search for c ends there."""
_HALVINGS = 80


def half_width(level: float, dof: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return the half width, in standard errors, of a band that holds the curve at each time.

    level: the probability. dof: infinite where the error is known.
    """
    return stdtrit(np.maximum(dof, 1.0), 0.5 + level / 2)


def half_width_everywhere(
    level: float,
    gradient: Float[np.ndarray, "p n"],
    covariance: Float[np.ndarray, "p p"],
    dof: Float[np.ndarray, " n"],
) -> Float[np.ndarray, " n"]:
    """Return the half width, in standard errors, of a band that holds the curve at all times at once."""
    kappa, freedom = path_length(gradient, covariance), np.maximum(dof, 1.0)
    low, high = np.zeros(len(dof)), np.full(len(dof), WIDEST)
    for _ in range(_HALVINGS):
        c = 0.5 * (low + high)
        outside = kappa / np.pi * _tail(c, freedom) + 2 * stdtr(freedom, -c)
        too_narrow = outside > 1 - level
        low, high = np.where(too_narrow, c, low), np.where(too_narrow, high, c)
    return np.where(np.isnan(dof), np.nan, high)


def _tail(c: Float[np.ndarray, " n"], dof: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return (1 + c²/ν)^(-ν/2), exp(-c²/2) where ν is infinite."""
    with np.errstate(invalid="ignore"):
        finite = np.exp(-0.5 * dof * np.log1p(c**2 / dof))
    return np.where(np.isfinite(dof), finite, np.exp(-0.5 * c**2))


def path_length(gradient: Float[np.ndarray, "p n"], covariance: Float[np.ndarray, "p p"]) -> float:
    """Return κ, the sum of the angles between the errors of the curve at neighbouring times."""
    size = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    scale = np.where(size > 0, size, 1.0)
    values, vectors = np.linalg.eigh(covariance / np.outer(scale, scale))
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    error = root.T @ (gradient * scale[:, None])
    length = np.linalg.norm(error, axis=0)
    u = error[:, length > 0] / length[length > 0]
    chords = np.linalg.norm(np.diff(u, axis=1), axis=0)
    return float(2 * np.arcsin(np.minimum(chords / 2, 1.0)).sum())
