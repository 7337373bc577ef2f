"""What a kernel is given beside theta: the fit problem, a block of data, and its sub-blocks."""

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int

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
SUBBLOCK_ROWS, SUBBLOCK_COLUMNS = 128, 64
"""Size of a sub-block: its fields fit the second-level cache, and few masked pairs are computed."""
DECAY_CUTOFF = -np.log(1e-16)
"""k ΔC from which f is below rounding beside 1: Σ w f, Σ w f² and all derivatives vanish there."""


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


class SubBlocks(NamedTuple):
    """The sub-blocks of a block that hold a pair that counts, the active ones first."""

    offsets: Int[np.ndarray, "all 2"]
    """First row and column of each in the block; padded to all sub-blocks of a block."""
    n_active: int
    """Number of those in which f has not decayed to zero."""
    n_total: int


def subblock_shape(T: int) -> tuple[int, int]:
    """Return rows and columns of the sub-blocks of a block of side T."""
    return min(SUBBLOCK_ROWS, T), min(SUBBLOCK_COLUMNS, T)


def sub_blocks(
    i0: int,
    j0: int,
    T: int,
    min_lag: int,
    kC: Float[np.ndarray, "point n"],
    frames: tuple[int, int],
) -> SubBlocks:
    """Return the sub-blocks of the block at frames (i0, j0); kC is k·C at all frames.

    frames: the first that is selected and the one after the last. With several points, those are
    active that one of them makes so. C never decreases, so that f <= exp(-k ΔC) of the pair of least
    lag, whatever the shear.
    """
    shape = subblock_shape(T)
    offsets = _with_pairs(i0, j0, T, shape, frames, min_lag)
    last_row = np.minimum(i0 + offsets[:, 0] + shape[0], kC.shape[1]) - 1
    active = (kC[:, j0 + offsets[:, 1]] - kC[:, last_row]).min(axis=0) < DECAY_CUTOFF
    table = np.zeros((-(-T // shape[0]) * -(-T // shape[1]), 2), np.int64)
    table[: len(offsets)] = np.concatenate([offsets[active], offsets[~active]])
    return SubBlocks(table, int(active.sum()), len(offsets))


@cache
def _with_pairs(
    i0: int, j0: int, T: int, shape: tuple[int, int], frames: tuple[int, int], min_lag: int
) -> Int[np.ndarray, "some 2"]:
    first, stop = frames
    grid = [(i, j) for i in range(0, T, shape[0]) for j in range(0, T, shape[1])]
    offsets = [
        (i, j)
        for i, j in grid
        if first - shape[0] < i0 + i < stop
        and first - shape[1] < j0 + j < stop
        and j0 + j + shape[1] - 1 - (i0 + i) >= min_lag
    ]
    return np.array(offsets, np.int64).reshape(-1, 2)
