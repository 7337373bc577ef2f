"""c2 averaged over cells of age and lag: the small arrays of a store from which initial values are found."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

if TYPE_CHECKING:
    from homodyne_dask.store.scan import Scan


@dataclass(frozen=True)
class Cuts:
    """c2 averaged over cells of age and lag; cells without pairs in the selection are excluded."""

    c2: Float[np.ndarray, "bin cell"]
    """NaN where a bin has no pair."""
    count: Int[np.ndarray, "bin cell"]
    """Pairs averaged."""
    t1: Float[np.ndarray, " cell"]
    """s, mean over the cell."""
    t2: Float[np.ndarray, " cell"]
    age: Int[np.ndarray, " cell"]
    """Index of the age interval, in frames of `age_edges`."""
    lag: Int[np.ndarray, " cell"]
    age_edges: Int[np.ndarray, " a"]
    lag_edges: Int[np.ndarray, " l"]


def read_cuts(scan: "Scan", min_lag: int) -> Cuts:
    """Return the averages of the selected bins whose cells lie inside the selected frames.

    min_lag: frames; cells of shorter lags are excluded.
    """
    names = ("c2", "count", "t1", "t2", "age_edges", "lag_edges")
    stored = {name: scan.manifest.read_array(scan.path, f"cuts/{name}") for name in names}
    age, lag = np.meshgrid(
        np.arange(len(stored["age_edges"]) - 1),
        np.arange(len(stored["lag_edges"]) - 1),
        indexing="ij",
    )
    first, last = scan.time[scan.frames[0]], scan.time[scan.frames[1] - 1]
    inside = np.isfinite(stored["t1"]) & (stored["t1"] >= first) & (stored["t2"] <= last)
    inside &= stored["lag_edges"][lag] >= min_lag
    cells = np.array(scan.bins)[:, None], *(axis[None, :] for axis in np.nonzero(inside))
    return Cuts(
        c2=stored["c2"][cells],
        count=stored["count"][cells],
        t1=stored["t1"][inside],
        t2=stored["t2"][inside],
        age=age[inside],
        lag=lag[inside],
        age_edges=stored["age_edges"],
        lag_edges=stored["lag_edges"],
    )
