"""What is fitted: all a worker must know beside the data and theta."""

from dataclasses import dataclass

from homodyne_dask.models.transport import Convention, TransportModel

PRECISIONS = ("float64", "mixed")
"""Of the plane; sums are float64 in both."""


@dataclass(frozen=True)
class Problem:
    """What f is and which pairs count."""

    model: TransportModel
    convention: Convention = Convention.PHYSICAL
    gap: float | None = None
    """Å."""
    min_lag: int = 1
    """Frames; pairs closer than this are left out."""
    precision: str = "float64"
