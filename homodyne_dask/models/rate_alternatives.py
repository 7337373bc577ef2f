"""Power laws of a rate and relative deviations from them at some times: the alternatives of `check_rates`."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.models.parameters import Parameter
from homodyne_dask.models.rate_forms import DEFAULT_KNOTS, MIN_KNOTS, DeviatingForm, SplineForm
from homodyne_dask.models.transport import TransportModel

FRAMES_PER_SPLINE = 3
"""Fewest frames of a record for each spline."""


class Deviating(NamedTuple):
    """A model with deviations from its power laws."""

    model: TransportModel
    deviates: Bool[np.ndarray, " m"]
    """Which of its parameters are deviations; the others are those of the model of power laws."""
    splines: SplineForm
    rates: tuple[str, ...]
    """Whose deviations they are, in this order."""

    def whole(self, values: Float[np.ndarray, " p"], fill: float = 0.0) -> Float[np.ndarray, " m"]:
        """Return values of all parameters from those of the model of power laws."""
        made = np.full(self.model.size, fill, np.result_type(values, type(fill)))
        made[~self.deviates] = values
        return made


def with_deviations(model: TransportModel, time: Float[np.ndarray, " n"]) -> Deviating | None:
    """Return the model with deviations from its power laws; None where a rate is no power law.

    time: of the frames in use [s].
    """
    if model.splines:
        return None
    number = max(MIN_KNOTS, min(DEFAULT_KNOTS, len(time) // FRAMES_PER_SPLINE))
    form = DeviatingForm(SplineForm(number, float(time[0]), float(time[-1])))
    rates = ("J", "gamma_dot") if model.shear else ("J",)
    parameters, deviates = [], []
    for n, rate in enumerate(rates):
        more = [Parameter(f"{rate}_deviation_{k}", "", (-np.inf, np.inf)) for k in range(number)]
        parameters += [*model.parameters[3 * n : 3 * n + 3], *more]
        deviates += [False] * 3 + [True] * number
    rest = model.parameters[3 * len(rates) :]
    made = TransportModel(
        f"{model.name} with deviations",
        (*parameters, *rest),
        shear=model.shear,
        J=form,
        gamma_dot=form,
    )
    return Deviating(made, np.array(deviates + [False] * len(rest)), form.splines, rates)
