"""Stretched and compressed exponentials, and cumulants.

    stretched         f = exp(-2 x^γ), x = Γ |t2 - t1|
    stretched_q       the same with Γ = rate · (q / 0.01 Å⁻¹)^q_exponent
    stretched_ageing  the same with Γ = rate · age^mu, age = ½ (t1 + t2) in s
    ballistic         the same with Γ = velocity · q
    cumulant          f = exp(-2 x) (1 + ½ polydispersity x²)², the second cumulant (Frisken 2001)
    cumulant_q        the same with Γ = rate · (q / 0.01 Å⁻¹)^q_exponent
    vibration         stretched times (1 + amplitude cos(2π frequency |t2 - t1|)) / (1 + amplitude)

    stretched_free    f = exp(-2 x^γ), x = Γ(½ (t1 + t2)) |t2 - t1|: stretched_ageing without its formula
    distribution_of_rates    f = g², g = Σ w_k exp(-Γ_k |t2 - t1|), the weights w_k > 0 of sum 1

Γ of models without q is that of the selected rings; fit one ring at a time for its dependence on q.

The last two have a function of free form, of splines, among their parameters. The logarithm of the weights is
a sum of splines of ln Γ, whose second differences are penalized as those of rates are: weights cannot be
negative, and a lognormal distribution of any width is among them (a smooth density by its penalized
logarithm: Good and Gaskins 1971; of rates from light scattering: Provencher 1982).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import numpy as np
from jaxtyping import Float

from homodyne_dask.models.parameters import Parameter
from homodyne_dask.models.parametrized import FREE_FORMS, Beat
from homodyne_dask.models.rate_forms import LOG_DENSITY, RATE, LogDensityForm, SplineForm
from homodyne_dask.models.user_defined import Bin, SeparableModel

Q_REFERENCE = 0.01
"""1/Å: where Γ of stretched_q is its parameter `rate`."""
_RATE = Parameter("rate", "1/s", (1e-6, 1e6), scale="log")
_Q_EXPONENT = Parameter("q_exponent", "", (0.0, 6.0))
STRETCHING = Parameter("stretching", "", (0.1, 3.0))
_POLYDISPERSITY = Parameter("polydispersity", "", (0.0, 2.0))
"""The variance of Γ over its square; above 2 the second cumulant is no decay."""
MAX_X = 350.0
"""From which on the exponential of a cumulant is 0, however large its factor."""


def decay(x: Any, stretching: Any) -> Any:
    """Return exp(-2 x^γ), 1 at x = 0."""
    xp = x.__array_namespace__()
    # the outer `where` alone would hide the logarithm of 0, but not its derivative
    log = xp.log(xp.where(x > 0, x, 1.0))
    return xp.where(x > 0, xp.exp(-2 * xp.exp(stretching * log)), 1.0)


def _cumulant(x: Any, polydispersity: Any) -> Any:
    xp = x.__array_namespace__()
    x = xp.minimum(x, MAX_X)
    return xp.exp(-2 * x) * (1 + 0.5 * polydispersity * x**2) ** 2


def _constant(rate: Any, age: Any, bin: Bin) -> Any:
    return rate


def _power_of_q(rate: Any, q_exponent: Any, age: Any, bin: Bin) -> Any:
    return rate * (bin.q / Q_REFERENCE) ** q_exponent


def _ageing(rate: Any, mu: Any, age: Any, bin: Bin) -> Any:
    return rate * age**mu


def _ballistic(velocity: Any, age: Any, bin: Bin) -> Any:
    return velocity * bin.q


def _vibrating(theta: Any, t1: Any, t2: Any, bin: Bin) -> Any:
    rate, stretching, amplitude, frequency = theta
    lag = abs(t2 - t1)
    wave = lag.__array_namespace__().cos(2 * math.pi * frequency * lag)
    return (1 + amplitude * wave) / (1 + amplitude) * decay(rate * lag, stretching)


def _model(
    name: str, shape: Callable[..., Any], rate: Callable[..., Any], *parameters: Parameter
) -> SeparableModel:
    """Return the model f = shape(Γ |t2 - t1|, last parameter), with Γ = rate(other parameters, age, bin)."""

    def f(theta: Any, t1: Any, t2: Any, bin: Bin) -> Any:
        *of_rate, last = theta
        return shape(rate(*of_rate, 0.5 * (t1 + t2), bin) * abs(t2 - t1), last)

    return SeparableModel(name, parameters, f, isotropic=True)


STRETCHED = _model("stretched", decay, _constant, _RATE, STRETCHING)
STRETCHED_Q = _model("stretched_q", decay, _power_of_q, _RATE, _Q_EXPONENT, STRETCHING)
_RATE_AT_1_S = Parameter("rate", "1/s", (1e-9, 1e9), scale="log")
_MU = Parameter("mu", "", (-3.0, 3.0))
STRETCHED_AGEING = _model("stretched_ageing", decay, _ageing, _RATE_AT_1_S, _MU, STRETCHING)
_VELOCITY = Parameter("velocity", "Å/s", (1e-6, 1e12), scale="log")
BALLISTIC = _model("ballistic", decay, _ballistic, _VELOCITY, STRETCHING)
CUMULANT = _model("cumulant", _cumulant, _constant, _RATE, _POLYDISPERSITY)
CUMULANT_Q = _model("cumulant_q", _cumulant, _power_of_q, _RATE, _Q_EXPONENT, _POLYDISPERSITY)
VIBRATION = SeparableModel(
    "vibration",
    (
        *STRETCHED.parameters,
        Parameter("amplitude", "", (0.0, 1.0)),
        Parameter("frequency", "Hz", (1e-9, 1e9), scale="log"),
    ),
    _vibrating,
    isotropic=True,
    simpler="stretched",
    beat=Beat("frequency", decays=("rate",), fraction="amplitude"),
)
MODELS = STRETCHED, STRETCHED_Q, STRETCHED_AGEING, BALLISTIC, CUMULANT, CUMULANT_Q, VIBRATION


START_WIDTHS, START_SHARES = (0.3, 0.7, 1.5), (0.2, 0.5, 0.8)
"""In ln Γ, and of the first of two, of lognormal distributions from which fits may start."""


@dataclass(frozen=True, eq=False, repr=False)
class SplineModel(SeparableModel):
    curve: str = field(kw_only=True)
    """What the splines are: `RATE` [1/s] against age [s], or `LOG_DENSITY` against ln Γ."""
    form: SplineForm = field(kw_only=True)
    model_of_form: Callable[[Any], "SplineModel"] = field(kw_only=True)

    @property
    def splines(self) -> dict[str, SplineForm]:
        return {self.curve: self.form}

    @property
    def start(self) -> str:
        return "distribution" if self.curve == LOG_DENSITY else "rate splines"

    def with_splines(self, splines: Mapping[str, SplineForm]) -> "SplineModel":
        return self.model_of_form(splines[self.curve])

    def current(self) -> Self:
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.model_of_form, (self.form,)


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
        curve=RATE,
        form=form,
        model_of_form=stretched_free,
    )


def weights_of(form: LogDensityForm, theta: Float[Any, " size"]) -> Float[Any, " node"]:
    """Return the weight of each of the nodes, of sum 1; of NumPy or JAX as theta is."""
    xp = theta.__array_namespace__()
    log = theta @ form.basis(form.nodes)
    # the largest is 1: no density is too steep to be a number
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
        curve=LOG_DENSITY,
        form=form,
        model_of_form=distribution_of_rates,
    )


def lognormals(form: LogDensityForm) -> Float[np.ndarray, "point size"]:
    """Return coefficients of one and of two lognormal distributions, of some widths, shares and rates."""
    x, middle, points = form.centres, form.size // 2, []
    peaks = {
        (x0, width): -(((x - x0) / width) ** 2) / 2 for x0 in x[1:-1:2] for width in START_WIDTHS
    }
    for (first, width), low in peaks.items():
        points.append(low)
        for (second, other), high in peaks.items():
            if first < second and width == other:
                points += [np.logaddexp(np.log(p / (1 - p)) + low, high) for p in START_SHARES]
    return np.array([log - log[middle] for log in points])


STRETCHED_FREE = stretched_free(SplineForm())
DISTRIBUTION = distribution_of_rates(LogDensityForm())
SPLINE_MODELS = STRETCHED_FREE, DISTRIBUTION
FREE_FORMS[STRETCHED.name] = {"spline": STRETCHED_FREE}
