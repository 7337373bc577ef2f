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
    """Return exp(-2 x) (1 + ½ μ x²)²."""
    xp = x.__array_namespace__()
    x = xp.minimum(x, MAX_X)
    return xp.exp(-2 * x) * (1 + 0.5 * polydispersity * x**2) ** 2


def _scaled(rate: Any, q_exponent: Any, t1: Any, t2: Any, bin: Bin) -> Any:
    return rate * (bin.q / Q_REFERENCE) ** q_exponent * abs(t2 - t1)


def _constant(theta: Any, t1: Any, t2: Any, bin: Bin) -> Any:
    rate, stretching = theta
    return decay(rate * abs(t2 - t1), stretching)


def _at_q(theta: Any, t1: Any, t2: Any, bin: Bin) -> Any:
    rate, q_exponent, stretching = theta
    return decay(_scaled(rate, q_exponent, t1, t2, bin), stretching)


def _ageing(theta: Any, t1: Any, t2: Any, bin: Bin) -> Any:
    rate, mu, stretching = theta
    return decay(rate * (0.5 * (t1 + t2)) ** mu * abs(t2 - t1), stretching)


def _ballistic(theta: Any, t1: Any, t2: Any, bin: Bin) -> Any:
    velocity, stretching = theta
    return decay(velocity * bin.q * abs(t2 - t1), stretching)


def _cumulant_constant(theta: Any, t1: Any, t2: Any, bin: Bin) -> Any:
    rate, polydispersity = theta
    return _cumulant(rate * abs(t2 - t1), polydispersity)


def _cumulant_at_q(theta: Any, t1: Any, t2: Any, bin: Bin) -> Any:
    rate, q_exponent, polydispersity = theta
    return _cumulant(_scaled(rate, q_exponent, t1, t2, bin), polydispersity)


def _vibrating(theta: Any, t1: Any, t2: Any, bin: Bin) -> Any:
    rate, stretching, amplitude, frequency = theta
    lag = abs(t2 - t1)
    wave = lag.__array_namespace__().cos(2 * math.pi * frequency * lag)
    return (1 + amplitude * wave) / (1 + amplitude) * decay(rate * lag, stretching)


STRETCHED = SeparableModel("stretched", (_RATE, STRETCHING), _constant, isotropic=True)
"""A stretched exponential of the lag, the same at every age."""
STRETCHED_Q = SeparableModel("stretched_q", (_RATE, _Q_EXPONENT, STRETCHING), _at_q, isotropic=True)
"""The same with a rate that is a power of q: `rate` is that at q = 0.01 1/Å; q_exponent 2 is diffusion."""
STRETCHED_AGEING = SeparableModel(
    "stretched_ageing",
    (
        Parameter("rate", "1/s", (1e-9, 1e9), scale="log"),
        Parameter("mu", "", (-3.0, 3.0)),
        STRETCHING,
    ),
    _ageing,
    isotropic=True,
)
"""The same with a rate that is a power of the age: `rate` is that at an age of 1 s."""
BALLISTIC = SeparableModel(
    "ballistic",
    (Parameter("velocity", "Å/s", (1e-6, 1e12), scale="log"), STRETCHING),
    _ballistic,
    isotropic=True,
)
"""A stretched exponential whose rate is proportional to q."""
CUMULANT = SeparableModel("cumulant", (_RATE, _POLYDISPERSITY), _cumulant_constant, isotropic=True)
"""The second cumulant of the lag, the same at every age."""
CUMULANT_Q = SeparableModel(
    "cumulant_q", (_RATE, _Q_EXPONENT, _POLYDISPERSITY), _cumulant_at_q, isotropic=True
)
"""The same with a rate that is a power of q."""
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
"""A stretched exponential, and a vibration of the instrument or the sample."""
MODELS = STRETCHED, STRETCHED_Q, STRETCHED_AGEING, BALLISTIC, CUMULANT, CUMULANT_Q, VIBRATION
