"""Confidence intervals from an error and its degrees of freedom: all those of the program."""

import numpy as np
from jaxtyping import Float
from scipy.special import ndtri, stdtr, stdtrit

from homodyne_dask.errors import OptionError

FEWEST = 1.0
"""Degrees of freedom below which an error is taken as known from so many."""


def half_width(percent: float, dof: Float[np.ndarray, "*n"] | float) -> Float[np.ndarray, "*n"]:
    """Return the half width of a confidence interval in standard errors: Student's t.

    percent: probability that the interval holds the true value, above 0 and below 100, else OptionError.
    dof: of the standard error, infinite where the error is known; NaN gives NaN.
    """
    if not 0 < percent < 100:
        raise OptionError(f"percent = {percent!r}: give a number between 0 and 100, such as 95")
    return stdtrit(np.maximum(dof, FEWEST), 0.5 + percent / 200)


def joint_reach(percent: float, dof: float) -> float:
    """Return the reach of the joint confidence region of two parameters in standard errors: √(2 F).

    percent: probability that the region holds both, above 0 and below 100, else OptionError.
    """
    if not 0 < percent < 100:
        raise OptionError(f"percent = {percent!r}: give a number between 0 and 100, such as 95")
    dof = max(dof, FEWEST)
    # F of 2 and ν degrees of freedom has the survival function (1 + 2F/ν)^(-ν/2)
    outside = 1 - percent / 100
    return float(
        np.sqrt(-2 * np.log(outside) if np.isinf(dof) else dof * (outside ** (-2 / dof) - 1))
    )


def normal_deviate(
    deviation: Float[np.ndarray, "*n"], dof: Float[np.ndarray, "*n"] | float
) -> Float[np.ndarray, "*n"]:
    """Return the normal deviate that is as improbable as a deviation in standard errors of few dof."""
    below = stdtr(np.maximum(dof, FEWEST), -np.abs(deviation))
    return np.sign(deviation) * -ndtri(np.maximum(below, np.finfo(float).tiny))
