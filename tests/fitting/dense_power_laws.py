"""Dense least squares of power laws that share an exponent: every pair a row, nothing eliminated."""

from typing import NamedTuple

import numpy as np
import scipy.optimize

from tests import reference


class Pairs(NamedTuple):
    """Pairs of frames of one bin."""

    q: float
    time: np.ndarray
    group: int
    """Which of the rates it has."""
    at: tuple[np.ndarray, np.ndarray]
    y: np.ndarray


def decay(D0, alpha, q, time):
    """f of all pairs of frames."""
    C = reference.integral(D0 * np.maximum(time, np.median(np.diff(time)) / 2) ** alpha, time)
    return np.exp(-(q**2) * np.abs(C[:, None] - C))


def dense_fit(bins, rates, alpha, sigma):
    """(D0 of each group, alpha), their naive covariance, and χ²; each bin has its contrast and offset."""
    n = len(rates)

    def residual(x):
        linear = x[n + 1 :].reshape(-1, 2)
        left = [
            of.y - offset - contrast * decay(np.exp(x[of.group]), x[n], of.q, of.time)[of.at]
            for of, (contrast, offset) in zip(bins, linear, strict=True)
        ]
        return np.concatenate(left, dtype=float) / sigma

    start = np.concatenate([np.log(rates), [alpha], np.tile([0.3, 1.0], len(bins))])
    exact = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15}
    found = scipy.optimize.least_squares(residual, start, "3-point", **exact)
    value = np.append(np.exp(found.x[:n]), found.x[n])
    scale = np.append(value[:n], 1.0)  # from logarithms of rates
    covariance = np.linalg.inv(found.jac.T @ found.jac)[: n + 1, : n + 1]
    return value, covariance * np.outer(scale, scale), 2 * found.cost
