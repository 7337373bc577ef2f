"""What a result says of rates of free form in place of their coefficients."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool
from xarray import Dataset

from homodyne_dask.fitting.request import Request
from homodyne_dask.results.tables import smoothing_table
from homodyne_dask.solver import levenberg_marquardt as lm


def rate_of_each(request: Request) -> dict[int, str]:
    """Return the rate of free form of each coefficient, by its place in theta."""
    smoothness = request.search.smoothness
    places = {} if smoothness is None else smoothness.places
    return {n: rate for rate, at in places.items() for n in range(at.start, at.stop)}


def rates_at_bounds(
    request: Request, state: lm.State, at_bound: Bool[np.ndarray, " p"]
) -> list[str]:
    """Return a sentence for each rate of free form of which coefficients are at a bound."""
    smoothness = request.search.smoothness
    places = {} if smoothness is None else smoothness.places
    return [
        f"{rate}(t) is at its bound {state.theta[at][at_bound[at]].min():g} in {int(at_bound[at].sum())} of "
        f"{at.stop - at.start} splines: it has no error there"
        for rate, at in places.items()
        if at_bound[at].any()
    ]


def names_of_rates(request: Request, which: Sequence[int]) -> list[str]:
    """Return the names of parameters; a rate of free form stands for its coefficients."""
    rate_of = rate_of_each(request)
    return list(dict.fromkeys(rate_of.get(n, request.search.names[n]) for n in which))


def smoothing_of(request: Request, state: lm.State) -> Dataset | None:
    """Return how the rates of free form are smoothed; None where there are none."""
    penalty, smoothness = state.reduced.penalty, request.search.smoothness
    if penalty is None or smoothness is None:
        return None
    return smoothing_table(penalty, [at.stop - at.start for at in smoothness.places.values()])
