"""Values of all cells of a store averaged over age."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from homodyne_dask.store.scan import Cuts


def average_over_age(
    read: Cuts, values: Sequence[Float[np.ndarray, "bin cell"]]
) -> tuple[Float[np.ndarray, " lag"], ...]:
    """Return the lags [s], and each of some values of all cells averaged over age and bins."""
    found = []
    for lag in np.unique(read.lag):
        at = read.lag == lag
        count = read.count[:, at]
        row = [float(np.average((read.t2 - read.t1)[at], weights=np.maximum(count.sum(0), 1)))]
        for of in values:
            some = np.isfinite(of[:, at]) & (count > 0)
            row.append(np.average(of[:, at][some], weights=count[some]) if some.any() else np.nan)
        found.append(row)
    return tuple(np.array(found).T)
