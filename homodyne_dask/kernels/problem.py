"""What a kernel is given beside theta: the fit problem, and a block of data."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Float32

from homodyne_dask.models import Convention

if TYPE_CHECKING:
    from jax import Array

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
        # whoever makes a problem gets the model as it is then; the problem itself never changes
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


@dataclass(frozen=True)
class Block:
    """Some bins of one q on one (t1, t2) tile; frames outside the data or the selection are NaN.

    Arrays may hold more bins than there are, so that every block has one shape: padded bins are
    never read.
    """

    c2: "Float32[np.ndarray | Array, 'padded T T']"
    """Of NumPy, or of JAX where it was put on a device, which then computes."""
    weight_rows: Float[np.ndarray, "padded T"]
    """1/sigma_row² of the frames of t1."""
    weight_columns: Float[np.ndarray, "padded T"]
    q: Float[np.ndarray, " bin"]
    """1/Å."""
    phi: Float[np.ndarray, " bin"]
    """degree."""
    i0: int
    """The frame of the first row."""
    j0: int
    """The frame of the first column."""

    def padded(self, values: Float[np.ndarray, " bin"]) -> Float[np.ndarray, " padded"]:
        """Return values of the bins with 0 for each padded bin."""
        return np.pad(values, (0, len(self.c2) - len(values)))
