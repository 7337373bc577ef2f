"""Thetas whose f make every f near the optimum by linear combination, and the weights of that.

They are picked by QR with column pivoting from draws around the optimum, evaluated on a sample of pairs
(a reduced basis). On the same sample f at any theta is interpolated from theirs by least squares.
"""

from typing import Any, NamedTuple, cast

import numpy as np
from jaxtyping import Float
from scipy.linalg import qr

SIZES = (8, 16, 24, 32, 48, 64)
"""Numbers of thetas besides the optimum; the wide Gram is compiled for each."""


class Basis(NamedTuple):
    """The thetas of a wide Gram, the optimum first, and how f at others follows from theirs."""

    thetas: Float[np.ndarray, "point p"]
    reference: Float[np.ndarray, "bin pair"]
    """f at the optimum."""
    scale: Float[np.ndarray, "bin pair"]
    """Changes of f on the sample, times this, are in units of √χ²."""
    columns: Float[np.ndarray, "row r"]
    """f_n - f_0, so scaled, of all bins and pairs."""
    weights: Float[np.ndarray, "r row"]
    """Their pseudo-inverse: times f - f_0, so scaled, it is the a of f = f_0 + Σ a_n (f_n - f_0)."""
    error: float
    """Largest estimated error of log p of draws that were held out."""


def choose_basis(
    thetas: Float[np.ndarray, "draw p"],
    f: Float[np.ndarray, "draw bin pair"],
    scale: Float[np.ndarray, "bin pair"],
    held_out: int,
    factor: float,
    tolerance: float,
) -> Basis:
    """Return the smallest basis in SIZES whose error is below a tolerance, else the largest.

    thetas: the optimum, then draws, the last of which are held out to estimate the error. f: at them, on two
    samples of pairs one after the other, to interpolate from and to test. factor: by which the
    log-likelihood is divided.
    """
    n = f.shape[2] // 2
    change = (f[1:] - f[0]) * scale
    here, there = (part.reshape(len(change), -1).T for part in (change[..., :n], change[..., n:]))
    candidates, tested = here[:, :-held_out], here[:, -held_out:]
    Q, R = np.linalg.qr(candidates)
    _, _, pivots = cast(Any, qr(R, mode="economic", pivoting=True))
    wanted = Q.T @ tested
    chosen, error = pivots, np.inf
    for size in (size for size in SIZES if size <= candidates.shape[1]):
        chosen = pivots[:size]
        a = np.linalg.lstsq(R[:, chosen], wanted, rcond=1e-13)[0]
        left = there[:, -held_out:] - there[:, chosen] @ a
        size_left = np.linalg.norm(left, axis=0)
        # in units of √χ²: multiplied with the noise to first order, and its square, which the sample knows
        # to about a third
        error = float(((size_left + size_left**2 / 3) / factor).max())
        if error < tolerance:
            break
    weights = np.linalg.pinv(R[:, chosen], rcond=1e-13) @ Q.T
    picked = np.concatenate([thetas[:1], thetas[1:][chosen]])
    return Basis(picked, f[0][:, :n], scale[:, :n], candidates[:, chosen], weights, error)
