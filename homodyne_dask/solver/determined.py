"""Which directions and parameters the data determine at a state of a fit."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.models.parameters import Search
from homodyne_dask.solver.directions import (
    Eigendirections,
    directions_of,
    movable,
    without_unbounded,
)
from homodyne_dask.solver.state import State

MIN_REJECTED_STEPS = 3
"""Rejected steps after which directions whose error exceeds every scale count as undetermined."""
MAX_SLOW_STEPS = 10
"""Slow steps in a row after which a fit ends: it follows a valley whose bottom hardly falls."""


class Determined(NamedTuple):
    """What the data determine at a state."""

    undetermined: list[tuple[str, ...]]
    """The parameters of every direction that they do not determine."""
    determined: tuple[str, ...]
    """The other free parameters, those to whose variances such directions add less than the others."""


def determined_at(search: Search, state: State) -> Determined:
    """Return what the data determine at the state.

    After MAX_SLOW_STEPS the valley that the steps follow is not. It is curved, so that all parameters whose
    variance is mostly along it belong to it.
    """
    free = movable_at(search, state)
    if not (free.any() and state.reduced.finite):
        return Determined([], ())
    slow = state.slow_steps >= MAX_SLOW_STEPS
    directions = directions_at(search, state, free)
    directions = directions.without_valley() if slow else directions
    known = directions.parameters_determined()
    unknown = np.abs(directions.vectors[:, ~directions.determined].T) > 0.3
    if slow:
        unknown = (unknown.any(0) | ~known)[None]
    names = np.array(search.names)[free]
    return Determined(
        [tuple(str(name) for name in names[some]) for some in unknown],
        tuple(str(name) for name in names[known & ~unknown.any(0)]),
    )


def hidden_by_rounding(names: str) -> str:
    """Return the sentence on parameters that sums of float64 may determine, and those of float32 do not."""
    return (
        f"rounding of precision 'mixed' hides whether the data determine {names}: fit with precision "
        f"'float64'"
    )


def movable_at(search: Search, state: State) -> Bool[np.ndarray, " p"]:
    """Return which parameters may move at the state."""
    return movable(search, state.theta, state.reduced.gradient)


def directions_at(
    search: Search,
    state: State,
    which: Bool[np.ndarray, " p"],
    gradient: Float[np.ndarray, " p"] | None = None,
) -> Eigendirections:
    """Return the eigendirections of some parameters.

    After MIN_REJECTED_STEPS those whose error exceeds every scale count as undetermined.
    """
    directions = directions_of(state.reduced, which, gradient)
    if not directions.determined.any() or state.rejected_steps < MIN_REJECTED_STEPS:
        return directions
    variance = state.reduced.variance(int(search.free.sum()))
    return without_unbounded(directions, search, state.theta, which, variance)
