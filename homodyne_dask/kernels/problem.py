"""The fit problem: all that a worker needs besides the data and theta."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from homodyne_dask.models import Convention

SUM_ROUNDING = {"float64": 10 * float(np.finfo(float).eps), "mixed": 2.0**-25}
"""Accuracy of a sum M_ij over a block in units of √(M_ii M_jj), by precision. In `mixed` values of pairs are
rounded to 2⁻²⁴ of themselves, up and down. Sums of two derivatives are less accurate where f decays within
few of many frames (80 to 320 times at 10 frames of 300, 1600 to 7500 at one). Along the flattest direction of
the Hessian the rounding is nevertheless below what follows from this, in 99 % of 300 random scans and in all
that decay in 5 frames or more.
"""


@dataclass(frozen=True)
class Problem:
    """The model, its options, and which pairs count."""

    model: Any
    """A `Model`, as it is when the problem is made; only its backend depends on its type."""
    convention: Convention = Convention.PHYSICAL
    gap: float | None = None
    """Å."""
    min_lag: int = 1
    """Frames; pairs closer than this are excluded."""
    precision: str = "float64"
    loss: str = "linear"
    loss_scale: float = 1.0
    """Residual above which it costs less than its square, in units of sigma."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", self.model.current())

    @property
    def sum_rounding(self) -> float:
        """Accuracy of the sums of this precision."""
        return SUM_ROUNDING[self.precision]


def coarse_frames(frames: tuple[int, int], factor: int) -> tuple[int, int]:
    """Return the first coarse frame with none but selected ones, and the one after the last."""
    return -(-frames[0] // factor), frames[1] // factor


def coarse_min_lag(min_lag: int, factor: int) -> int:
    """Return the lag in coarse frames from which all fine pairs of a cell are min_lag apart."""
    return min_lag if factor == 1 else -(-(min_lag + factor - 1) // factor)
