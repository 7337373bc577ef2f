"""The rates J(t) and γ̇(t) of a fit, and their standard errors."""

import numpy as np
from jaxtyping import Float, Int

RATES = {
    "J": ("D0", "alpha", "D_offset"),
    "gamma_dot": ("gamma_dot_t0", "beta", "gamma_dot_t_offset"),
}
"""The parameters (a, b, c) of each rate a t^b + c; it has the unit of a."""


def rate(
    t: Float[np.ndarray, " n"], theta: Float[np.ndarray, " 3"], floor: float | None
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "3 n"]]:
    """Return a t^b + c and its gradient by a, b, c; below the floor the floor and zeros."""
    amplitude, exponent, offset = theta
    power = t**exponent
    value = amplitude * power + offset
    gradient = np.stack([power, amplitude * power * np.log(t), np.ones_like(t)])
    if floor is None:
        return value, gradient
    return np.maximum(value, floor), np.where(value < floor, 0.0, gradient)


def rate_stderr(
    gradient: Float[np.ndarray, "p n"], covariance: Float[np.ndarray, "p p"]
) -> Float[np.ndarray, " n"]:
    """Return one standard error of a rate by the delta method; NaN in the covariance counts as 0."""
    known = np.nan_to_num(covariance)
    return np.sqrt(np.maximum(np.einsum("in,ij,jn->n", gradient, known, gradient), 0.0))


def some_ages(n: int, most: int) -> Int[np.ndarray, " age"]:
    """Return at most so many of the numbers from 0 to n - 1, both included, denser at the beginning."""
    if n <= most:
        return np.arange(n)
    found = [1]
    for left in range(most - 1, 0, -1):
        last = found[-1]
        found.append(max(last + 1, round(last * (n / last) ** (1 / left))))
    return np.array(found) - 1
