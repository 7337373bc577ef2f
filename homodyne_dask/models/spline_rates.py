"""Models given as f with a function of free form, of splines, among their parameters.

    stretched_free        f = exp(-2 x^γ), x = Γ(½ (t1 + t2)) |t2 - t1|: stretched_ageing without its formula
    distribution_of_rates    f = g², g = Σ w_k exp(-Γ_k |t2 - t1|), the weights w_k > 0 of sum 1

The logarithm of the weights is a sum of splines of ln Γ, whose second differences are penalized as those of
rates are: weights cannot be negative, and a lognormal distribution of any width is among them (a smooth
density by its penalized logarithm: Good and Gaskins 1971; of rates from light scattering: Provencher 1982).

Rates of free form as a user asks for them: which rates, their knots, and options by the name of a rate.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.errors import OptionError, nearest, require_known, shown
from homodyne_dask.models.parameters import Parameter, Parametrized, Search
from homodyne_dask.models.rate_forms import MIN_KNOTS, LogDensityForm, Smoothness, SplineForm
from homodyne_dask.models.stretched_exponentials import STRETCHED, STRETCHING, decay
from homodyne_dask.models.transport import FREE_FORMS as OF_TRANSPORT
from homodyne_dask.models.transport import FREE_MODELS, TransportModel, with_splines
from homodyne_dask.models.user_defined import Bin, SeparableModel

Times = Float[np.ndarray, " n"]

RATE, LOG_DENSITY = "rate", "log_density"
THIRD = 10.0
"""Weight of third differences beside second ones: without them distributions have tails that are powers of
the rate, and wrong means."""
LEAST_STRENGTH = 1 / 256
"""Smallest λ/φ. Data of a single rate fit all narrow peaks alike, and λ fell without end: a peak as narrow
as the distance of two nodes has second differences of 16."""
START_WIDTHS, START_SHARES = (0.3, 0.7, 1.5), (0.2, 0.5, 0.8)
"""In ln Γ, and of the first of two, of lognormal distributions from which fits may start."""


@dataclass(frozen=True, eq=False, repr=False)
class SplineModel(SeparableModel):
    of: str = field(kw_only=True)
    """What the splines are: `RATE` [1/s] against age [s], or `LOG_DENSITY` against ln Γ."""
    form: SplineForm = field(kw_only=True)
    made: Callable[[Any], "SplineModel"] = field(kw_only=True)

    @property
    def splines(self) -> dict[str, SplineForm]:
        return {self.of: self.form}

    def current(self) -> Self:
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.made, (self.form,)


def _rate_of_age(form: SplineForm, theta: Any, t1: Any, t2: Any, bin: Bin) -> Any:
    xp = theta.__array_namespace__()
    rate = xp.tensordot(theta[: form.size], form.basis(0.5 * (t1 + t2)), 1)
    return decay(rate * abs(t2 - t1), theta[form.size])


def stretched_free(form: SplineForm) -> SplineModel:
    """Return a stretched exponential whose rate at the mean age of a pair is Σ rate_k B_k(age)."""
    rates = [Parameter(f"{RATE}_{n + 1}", "1/s", (0.0, np.inf)) for n in range(form.size)]
    return SplineModel(
        "stretched_free",
        (*rates, STRETCHING),
        partial(_rate_of_age, form),
        simpler="stretched_ageing",
        isotropic=True,
        digest=f"stretched_free {form}",
        of=RATE,
        form=form,
        made=stretched_free,
    )


def weights_of(form: LogDensityForm, theta: Float[Any, " size"]) -> Float[Any, " node"]:
    """Return the weight of each of the nodes, of sum 1; of NumPy or JAX as theta is."""
    xp = theta.__array_namespace__()
    log = theta @ form.basis(form.nodes)
    weight = xp.exp(log - log.max())
    return weight / weight.sum()


def slopes_of(
    form: LogDensityForm, weight: Float[np.ndarray, " node"]
) -> Float[np.ndarray, "size node"]:
    basis = form.basis(form.nodes)
    return basis - (basis @ weight)[:, None]


def _distributed(form: LogDensityForm, theta: Any, t1: Any, t2: Any, bin: Bin) -> Any:
    lag = abs(t2 - t1)
    xp, rates = lag.__array_namespace__(), np.exp(form.nodes).reshape(-1, *[1] * lag.ndim)
    return xp.tensordot(weights_of(form, theta), xp.exp(-rates * lag), 1) ** 2


def distribution_of_rates(form: LogDensityForm) -> SplineModel:
    """Return the mean field of independent rates, ln w = Σ log_density_k B_k(ln Γ); the middle one is 0."""
    middle = form.size // 2
    coefficients = [
        Parameter(f"{LOG_DENSITY}_{n + 1}", constant=0.0 if n == middle else None)
        for n in range(form.size)
    ]
    return SplineModel(
        "distribution_of_rates",
        tuple(coefficients),
        partial(_distributed, form),
        simpler="cumulant",
        isotropic=True,
        digest=f"distribution_of_rates {form}",
        of=LOG_DENSITY,
        form=form,
        made=distribution_of_rates,
    )


def lognormals(form: LogDensityForm) -> Float[np.ndarray, "point size"]:
    """Return coefficients of one and of two lognormal distributions, of some widths, shares and rates."""
    x, middle, found = form.centres, form.size // 2, []
    peaks = {
        (at, width): -(((x - at) / width) ** 2) / 2 for at in x[1:-1:2] for width in START_WIDTHS
    }
    for (first, width), here in peaks.items():
        found.append(here)
        for (second, other), there in peaks.items():
            if first < second and width == other:
                found += [np.logaddexp(np.log(p / (1 - p)) + here, there) for p in START_SHARES]
    return np.array([of - of[middle] for of in found])


STRETCHED_FREE = stretched_free(SplineForm())
DISTRIBUTION = distribution_of_rates(LogDensityForm())
SPLINE_MODELS = STRETCHED_FREE, DISTRIBUTION


FREE_FORMS: Mapping[str, Mapping[str, TransportModel | SplineModel]] = {
    **{law.name: forms for law, forms in OF_TRANSPORT.items()},
    STRETCHED.name: {"spline": STRETCHED_FREE},
}
"""Models with rates of free form in place of formulas, by the name of the model and the option `rates`."""


def free_forms(model: Parametrized) -> Mapping[str, TransportModel | SplineModel]:
    return FREE_FORMS.get(model.name, {})


def with_free_rates[M: Parametrized](
    model: M, rates: str | None
) -> M | TransportModel | SplineModel:
    """Return the model with the rates of free form that a user asked for, as 'spline' or 'J=spline'."""
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
    model: M, time: Times, knots: int | None
) -> M | TransportModel | SplineModel:
    """Return the model with so many splines (knots) over the times of the frames in use, or over rates."""
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
    model: M, number: int, time: Times
) -> M | TransportModel | SplineModel:
    splines = model.splines
    if not splines or any(form != type(form)() for form in splines.values()):
        return model
    others = len(model.names) - sum(form.size for form in splines.values())
    knots, left = divmod(number - others, len(splines))
    return model if left or knots < MIN_KNOTS else on_times(model, time, knots)


def with_stored_splines(
    name: str, splines: Mapping[str, Mapping[str, Any]]
) -> TransportModel | SplineModel:
    model = next(free for free in (*FREE_MODELS, *SPLINE_MODELS) if free.name == name)
    stored = {one: type(form)(**splines[one]) for one, form in model.splines.items()}
    return _with(model, stored)


def by_coefficient(
    model: Parametrized, what: str, given: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """Return values by name with those of a rate of free form given to each coefficient: splines sum to 1."""
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
    if model.splines:
        raise OptionError(
            f"profile of {name}: {model.name} has rates without a formula, whose smoothness would "
            f"change along the profile: leave it out"
        )
    require_known(name, model.names, f"profile: unknown parameter {name!r}")


def check_priors(model: Parametrized, given: Mapping[str, Any] | None) -> None:
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
    """Return how rates of free form are smoothed, with strengths given by rate; None where there are none."""
    places, given = model.places, given or {}
    for name in {"J", "rate"} & places.keys():
        if (lowest := search.lower[places[name]].min()) < 0:
            raise OptionError(
                f"bounds of {name} begin at {lowest:g}, but a rate of decorrelation cannot be negative: "
                f"give bounds of 0 or above"
            )
    if given and not places:
        raise OptionError(
            f"smoothness is given, but {model.name} has no splines: add rates='spline'"
        )
    for name in given:
        wrong = f"smoothness: {model.name} has no splines for a rate {shown(name)}"
        require_known(name, places, wrong)
    moving = {name: at for name, at in places.items() if search.free[at].any()}
    if not moving:
        return None
    ages, density = (
        {name: model.splines[name].ages for name in moving},
        moving.keys() & {LOG_DENSITY},
    )
    third, least = (dict.fromkeys(density, value) for value in (THIRD, LEAST_STRENGTH))
    return Smoothness(moving, ages, dict(given), clusters, third, least)


def power_law_model(model: TransportModel) -> TransportModel:
    return next(law for law in OF_TRANSPORT if law.shear is model.shear)


def of_power_law(
    model: TransportModel, theta: Float[np.ndarray, " p"], t: Times
) -> Float[np.ndarray, " m"]:
    """Return the parameters of a model of free form nearest to those of its power law; t: above 0 [s]."""
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
