"""Rates of free form as a user asks for them: which rates, their knots, and options by the name of a rate."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.errors import OptionError, nearest, require_known, shown
from homodyne_dask.models.parameters import Parametrized, Search
from homodyne_dask.models.spline_basis import MIN_KNOTS, Smoothness, SplineForm
from homodyne_dask.models.spline_models import (
    LEAST_STRENGTH,
    LOG_DENSITY,
    SPLINE_MODELS,
    STRETCHED_FREE,
    THIRD,
    SplineModel,
)
from homodyne_dask.models.stretched_exponentials import STRETCHED
from homodyne_dask.models.transport import FREE_FORMS as OF_TRANSPORT
from homodyne_dask.models.transport import FREE_MODELS, TransportModel, with_splines

FREE_FORMS: Mapping[str, Mapping[str, TransportModel | SplineModel]] = {
    **{law.name: forms for law, forms in OF_TRANSPORT.items()},
    STRETCHED.name: {"spline": STRETCHED_FREE},
}
"""Models with rates of free form in place of formulas, by the name of the model and the option `rates`."""


def free_forms(model: Parametrized) -> Mapping[str, TransportModel | SplineModel]:
    """Return the models with rates of free form in place of formulas, by the option `rates`."""
    return FREE_FORMS.get(model.name, {})


def with_free_rates[M: Parametrized](
    model: M, rates: str | None
) -> M | TransportModel | SplineModel:
    """Return the model with the rates of free form that a user asked for, as 'spline' or 'J=spline'.

    Raises OptionError for other texts and for models that have no such form.
    """
    if rates is None:
        return model
    forms = free_forms(model)
    if rates in forms:
        return forms[rates]
    if model.name in {of[rates].name for of in FREE_FORMS.values() if rates in of}:
        return model
    if forms:
        raise OptionError(
            f"rates = {shown(rates)} is unknown for {model.name}; {nearest(rates, forms)}"
        )
    raise OptionError(
        f"rates = {shown(rates)} is given, but the rates of {model.name} cannot be splines: use static, "
        f"laminar_flow, poiseuille_flow or stretched"
    )


def on_times[M: Parametrized](
    model: M, time: Float[np.ndarray, " n"], knots: int | None
) -> M | TransportModel | SplineModel:
    """Return the model with its splines spread over the times of the frames in use, or over their rates.

    knots: how many splines a rate has. Raises OptionError for fewer than 4, for more than frames, and
    where no rate is of free form.
    """
    if not (isinstance(model, TransportModel | SplineModel) and model.splines):
        if knots is not None:
            raise OptionError(
                f"knots = {knots} is given, but {model.name} has no splines: add rates='spline'"
            )
        return model
    if knots is not None and not MIN_KNOTS <= knots <= len(time):
        raise OptionError(
            f"knots = {knots} cannot be used: give a number from {MIN_KNOTS} to {len(time)}, the number of "
            f"frames in use"
        )
    return _with(model, {name: form.over(time, knots) for name, form in model.splines.items()})


def _with(
    model: TransportModel | SplineModel, splines: Mapping[str, SplineForm]
) -> TransportModel | SplineModel:
    if isinstance(model, SplineModel):
        return model.made(splines[model.of])
    return with_splines(model, splines)


def with_coefficients[M: Parametrized](
    model: M, number: int, time: Float[np.ndarray, " n"]
) -> M | TransportModel | SplineModel:
    """Return the model with its splines spread over times, as many as so many parameters make.

    As it is where its splines have places already, or the number does not fit.
    """
    splines = model.splines
    if not splines or any(form != type(form)() for form in splines.values()):
        return model
    others = len(model.names) - sum(form.size for form in splines.values())
    knots, left = divmod(number - others, len(splines))
    return model if left or knots < MIN_KNOTS else on_times(model, time, knots)


def with_stored_splines(
    name: str, splines: Mapping[str, Mapping[str, Any]]
) -> TransportModel | SplineModel:
    """Return the model of that name with the splines that a result stored."""
    model = next(free for free in (*FREE_MODELS, *SPLINE_MODELS) if free.name == name)
    stored = {one: type(form)(**splines[one]) for one, form in model.splines.items()}
    return _with(model, stored)


def by_coefficient(
    model: Parametrized, what: str, given: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """Return values by name with those of a rate of free form given to each of its coefficients.

    Splines sum to 1: coefficients of one value are a rate of that value. Raises OptionError for a rate and
    one of its coefficients together.
    """
    places = model.places
    if given is None or not any(name in places for name in given):
        return given
    values: dict[str, Any] = {}
    for name, value in given.items():
        for each in model.names[places[name]] if name in places else [name]:
            if each in values:
                raise OptionError(
                    f"{what}: {each} is given twice, by its own name and by that of its rate"
                )
            values[each] = value
    return values


def check_profile(model: Parametrized, name: object) -> None:
    """Raise OptionError where χ² cannot be followed along a parameter of that name."""
    if model.splines:
        raise OptionError(
            f"profile of {name}: {model.name} has rates without a formula, whose smoothness would "
            f"change along the profile: leave it out"
        )
    require_known(name, model.names, f"profile: unknown parameter {name!r}")


def check_priors(model: Parametrized, given: Mapping[str, Any] | None) -> None:
    """Raise OptionError for a prior of a whole rate of free form: coefficients may have some."""
    for name, form in model.splines.items():
        if given is not None and name in given:
            raise OptionError(
                f"prior of {name}: {model.name} has no formula for this rate, and one prior cannot describe "
                f"a whole curve: give bounds of {name}, or priors of {name}_1 to {name}_{form.size}"
            )


def smoothness_of(
    model: Parametrized,
    search: Search,
    given: Mapping[str, float] | None,
    clusters: Int[np.ndarray, " bin"],
) -> Smoothness | None:
    """Return how the rates of free form are smoothed; None where there are none.

    given: strengths by rate. Raises OptionError for unknown rates, and where bounds let J be negative.
    """
    places = model.places
    for name in {"J", "rate"} & places.keys():
        if (lowest := search.lower[places[name]].min()) < 0:
            raise OptionError(
                f"bounds of {name} begin at {lowest:g}, but a rate of decorrelation cannot be negative: "
                f"give bounds of 0 or above"
            )
    given = given or {}
    for name in given:
        if not places:
            raise OptionError(
                f"smoothness is given, but {model.name} has no splines: add rates='spline'"
            )
        wrong = f"smoothness: {model.name} has no splines for a rate {shown(name)}"
        require_known(name, places, wrong)
    moving = {name: at for name, at in places.items() if search.free[at].any()}
    if not moving:
        return None
    ages = {name: model.splines[name].ages for name in moving}
    third, least = (
        {name: one for name in moving if name == LOG_DENSITY} for one in (THIRD, LEAST_STRENGTH)
    )
    return Smoothness(moving, ages, dict(given), clusters, third, least)


def power_law_model(model: TransportModel) -> TransportModel:
    """Return the model with the same shear whose rates are power laws."""
    return next(law for law in OF_TRANSPORT if law.shear is model.shear)


def of_power_law(
    model: TransportModel, theta: Float[np.ndarray, " p"], t: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " m"]:
    """Return the parameters of a model of free form nearest to those of the power law (`power_law_model`).

    t: times of the frames in use, above 0 [s].
    """
    law = power_law_model(model)
    made = np.empty(model.size)
    made[model.direction] = theta[law.direction]
    for name, (form, here) in model.rates.items():
        of_law, there = law.rates[name]
        if isinstance(form, SplineForm):
            made[here] = form.projected(t, of_law.at(t, theta[there], None)[0])
        else:
            made[here] = theta[there]
    return made
