"""The fit problem: all that a worker needs besides the data and theta."""

from dataclasses import dataclass
from typing import Any

from homodyne_dask.models import Convention


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


def coarse_frames(frames: tuple[int, int], factor: int) -> tuple[int, int]:
    """Return the first coarse frame with none but selected ones, and the one after the last."""
    return -(-frames[0] // factor), frames[1] // factor


def coarse_min_lag(min_lag: int, factor: int) -> int:
    """Return the lag in coarse frames from which all fine pairs of a cell are min_lag apart."""
    return min_lag if factor == 1 else -(-(min_lag + factor - 1) // factor)
