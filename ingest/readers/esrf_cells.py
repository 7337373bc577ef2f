"""The cells of age and lag of ESRF's correlators, from their centres: the files do not hold the edges.

xpcs-correlator makes edges and centres from two or three numbers, which the centres tell (`lin_bin`,
`lin_log_bin`, `bin_centers` and `bin_centers_mixed` of its core/utils.py, 0.2.0): the frames, the number of
ages, and of lags the power of 10 from which on they are logarithmic and their number. From these numbers
the edges are made in the same way, to the same bits: a pair at an edge is in the cell in which it was
averaged. As in numpy.histogram2d a cell holds its lower edge, and the last one its upper edge, too.
"""

from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.store.cells import Cells

DECADES = range(5)
"""Powers of 10 from which on cells of lag may be logarithmic."""


def cells_of_centres(
    age: Float[np.ndarray, " a"], lag: Float[np.ndarray, " l"]
) -> Cells | Literal["age", "lag"]:
    """Return the cells with these centres, in frames, or which centres are not those of the correlator."""
    ages = _age_edges(age)
    if ages is None:
        return "age"
    n = int(np.floor(ages[-1])) + 1
    lags = _lag_edges(lag, n)
    if lags is None:
        return "lag"
    return Cells(_first_at(0.5 * np.arange(2 * n - 1), ages), _first_at(np.arange(n), lags), n)


def _age_edges(centres: Float[np.ndarray, " c"]) -> Float[np.ndarray, " e"] | None:
    """Return the edges of the cells of age with these centres, in frames; None if there are none such.

    They are even from 0 to the last frame; or each age, of which two go on a frame, is a cell of its own.
    """
    number = len(centres)
    step = (centres[-1] - centres[0]) / (number - 1)
    if _same(centres, step * (np.arange(number) + 0.5)):
        span = step * number
        return np.linspace(0, round(span) if abs(span - round(span)) < 1e-3 else span, number + 1)
    single = 0.5 * np.arange(number + 1) - 0.25
    return single if _same(centres, single[:-1] + 0.25) else None


def _lag_edges(centres: Float[np.ndarray, " c"], n_frames: int) -> Float[np.ndarray, " e"] | None:
    """Return the edges of the cells of lag with these centres, in frames; None if there are none such.

    Below a power of 10 every lag is a cell of its own; from there to the last they are even in logarithm.
    """
    number = len(centres)
    single = np.arange(number + 1) - 0.5
    if _same(centres, single[:-1] + 0.5):
        return single
    for decade in DECADES:
        first = 10**decade
        if not first < min(number, n_frames - 1):
            return None
        beyond = np.logspace(decade, np.log10(n_frames - 1), number - first + 1)
        beyond[-1] = n_frames - 1
        edges = np.concatenate([single[:first], beyond])
        low, high = edges[:-1], edges[1:]
        middle = np.where(np.arange(number) < first, (low + high) / 2, np.sqrt(np.abs(low) * high))
        if _same(centres, middle):
            return edges
    return None


def _same(one: Float[np.ndarray, " c"], other: Float[np.ndarray, " c"]) -> bool:
    """Return whether centres are the same in frames, as rounded to float32."""
    return np.allclose(one, other, rtol=1e-6, atol=1e-3)


def _first_at(
    values: Float[np.ndarray, " v"], edges: Float[np.ndarray, " e"]
) -> Int[np.ndarray, " e"]:
    """Return the position of the first value in each cell, and one past the last: it is in the last cell."""
    return np.append(
        np.searchsorted(values, edges[:-1]), np.searchsorted(values, edges[-1], side="right")
    )
