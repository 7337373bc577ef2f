"""Stretched and compressed exponentials.

    stretched         f = exp(-2 (Γ |t2 - t1|)^γ)
    stretched_q       the same with Γ = rate · (q / 0.01 Å⁻¹)^q_exponent
    stretched_ageing  the same with Γ = rate · age^mu, age = ½ (t1 + t2) in s
    vibration         stretched times (1 + amplitude cos(2π frequency |t2 - t1|)) / (1 + amplitude)

Γ of the first and the last is that of the selected rings; fit one ring at a time for its dependence on q.
"""

import math
from typing import Any

from homodyne_dask.models.parameters import Beat, Parameter
from homodyne_dask.models.user_defined import Bin, SeparableModel

Q_REFERENCE = 0.01
"""1/Å: where Γ of stretched_q is its parameter `rate`."""
_STRETCHING = Parameter("stretching", "", (0.1, 3.0))


def _decay(x: Any, stretching: Any) -> Any:
    """Return exp(-2 x^γ), 1 at x = 0."""
    xp = x.__array_namespace__()
    log = xp.log(xp.where(x > 0, x, 1.0))
    return xp.where(x > 0, xp.exp(-2 * xp.exp(stretching * log)), 1.0)


def _constant(theta: Any, t1: Any, t2: Any, bin: Bin) -> Any:
    rate, stretching = theta
    return _decay(rate * abs(t2 - t1), stretching)


def _at_q(theta: Any, t1: Any, t2: Any, bin: Bin) -> Any:
    rate, q_exponent, stretching = theta
    return _decay(rate * (bin.q / Q_REFERENCE) ** q_exponent * abs(t2 - t1), stretching)


def _ageing(theta: Any, t1: Any, t2: Any, bin: Bin) -> Any:
    rate, mu, stretching = theta
    return _decay(rate * (0.5 * (t1 + t2)) ** mu * abs(t2 - t1), stretching)


def _vibrating(theta: Any, t1: Any, t2: Any, bin: Bin) -> Any:
    rate, stretching, amplitude, frequency = theta
    lag = abs(t2 - t1)
    wave = lag.__array_namespace__().cos(2 * math.pi * frequency * lag)
    return (1 + amplitude * wave) / (1 + amplitude) * _decay(rate * lag, stretching)


STRETCHED = SeparableModel(
    "stretched",
    (Parameter("rate", "1/s", (1e-6, 1e6), scale="log"), _STRETCHING),
    _constant,
    isotropic=True,
)
"""A stretched exponential of the lag, the same at every age."""
STRETCHED_Q = SeparableModel(
    "stretched_q",
    (
        Parameter("rate", "1/s", (1e-6, 1e6), scale="log"),
        Parameter("q_exponent", "", (0.0, 6.0)),
        _STRETCHING,
    ),
    _at_q,
    isotropic=True,
)
"""The same with a rate that is a power of q: `rate` is that at q = 0.01 1/Å; q_exponent 2 is diffusion."""
STRETCHED_AGEING = SeparableModel(
    "stretched_ageing",
    (
        Parameter("rate", "1/s", (1e-9, 1e9), scale="log"),
        Parameter("mu", "", (-3.0, 3.0)),
        _STRETCHING,
    ),
    _ageing,
    isotropic=True,
)
"""The same with a rate that is a power of the age: `rate` is that at an age of 1 s."""
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
MODELS = STRETCHED, STRETCHED_Q, STRETCHED_AGEING, VIBRATION
