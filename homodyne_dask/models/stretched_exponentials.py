"""Stretched and compressed exponentials, and cumulants.

    stretched         f = exp(-2 x^γ), x = Γ |t2 - t1|
    stretched_q       the same with Γ = rate · (q / 0.01 Å⁻¹)^q_exponent
    stretched_ageing  the same with Γ = rate · age^mu, age = ½ (t1 + t2) in s
    ballistic         the same with Γ = velocity · q
    cumulant          f = exp(-2 x) (1 + ½ polydispersity x²)², the second cumulant (Frisken 2001)
    cumulant_q        the same with Γ = rate · (q / 0.01 Å⁻¹)^q_exponent
    vibration         stretched times (1 + amplitude cos(2π frequency |t2 - t1|)) / (1 + amplitude)

Γ of models without q is that of the selected rings; fit one ring at a time for its dependence on q.
"""

import math
from collections.abc import Callable
from typing import Any

from homodyne_dask.models.parameters import Beat, Parameter
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
