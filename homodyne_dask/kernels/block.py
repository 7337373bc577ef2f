"""A block of data, the input of kernels: bins of one q on one (t1, t2) tile."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Float32

if TYPE_CHECKING:
    from jax import Array


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
