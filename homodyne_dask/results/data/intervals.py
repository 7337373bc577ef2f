"""Confidence intervals from an error and its degrees of freedom: all those of the program."""

import numpy as np
from jaxtyping import Float

from homodyne_dask.errors import OptionError

FEWEST = 1.0
"""Degrees of freedom below which an error is taken as known from so many."""


def half_width(percent: float, dof: Float[np.ndarray, "*n"] | float) -> Float[np.ndarray, "*n"]:
    """Return the half width of a confidence interval in standard errors: Student's t.

    percent: probability that the interval holds the true value, above 0 and below 100, else OptionError.
    dof: of the standard error, infinite where the error is known; NaN gives NaN.
    """
    from scipy.special import stdtrit  # loads for a fifth of a second

    if not 0 < percent < 100:
        raise OptionError(f"percent = {percent!r}: give a number between 0 and 100, such as 95")
    return stdtrit(np.maximum(dof, FEWEST), 0.5 + percent / 200)


def normal_deviate(
    deviation: Float[np.ndarray, "*n"], dof: Float[np.ndarray, "*n"] | float
) -> Float[np.ndarray, "*n"]:
    """Return the normal deviate that is as improbable as a deviation in standard errors of few dof."""
    from scipy.special import ndtri, stdtr  # loads for a fifth of a second

    below = stdtr(np.maximum(dof, FEWEST), -np.abs(deviation))
    return np.sign(deviation) * -ndtri(np.maximum(below, np.finfo(float).tiny))
