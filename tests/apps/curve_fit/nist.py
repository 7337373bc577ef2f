"""The 27 nonlinear problems of NIST's Statistical Reference Datasets, as functions of JAX arrays.

tests/data/nist_strd.json holds, by problem, both certified starts, the certified values with their
standard deviations and residual sum of squares, and the data y and x.
"""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np

CERTIFIED = json.loads((Path(__file__).parent / "nist_strd.json").read_text())


def _exponentials(x, b1, b2, b3, b4, b5, b6):
    return b1 * jnp.exp(-b2 * x) + b3 * jnp.exp(-b4 * x) + b5 * jnp.exp(-b6 * x)


def _chwirut(x, b1, b2, b3):
    return jnp.exp(-b1 * x) / (b2 + b3 * x)


def _peaks(x, b1, b2, b3, b4, b5, b6, b7, b8):
    peaks = b3 * jnp.exp(-(((x - b4) / b5) ** 2)) + b6 * jnp.exp(-(((x - b7) / b8) ** 2))
    return b1 * jnp.exp(-b2 * x) + peaks


def _cubics(x, b1, b2, b3, b4, b5, b6, b7):
    return (b1 + b2 * x + b3 * x**2 + b4 * x**3) / (1 + b5 * x + b6 * x**2 + b7 * x**3)


def _saturation(x, b1, b2):
    return b1 * (1 - jnp.exp(-b2 * x))


def _enso(x, b1, b2, b3, b4, b5, b6, b7, b8, b9):
    def wave(period, cosine, sine):
        return cosine * jnp.cos(2 * jnp.pi * x / period) + sine * jnp.sin(2 * jnp.pi * x / period)

    return b1 + wave(12.0, b2, b3) + wave(b4, b5, b6) + wave(b7, b8, b9)


def _roszman(x, b1, b2, b3, b4):
    return b1 - b2 * x - jnp.arctan(b3 / (x - b4)) / jnp.pi


FUNCTIONS = {
    "Bennett5": lambda x, b1, b2, b3: b1 * (b2 + x) ** (-1 / b3),
    "BoxBOD": _saturation,
    "Chwirut1": _chwirut,
    "Chwirut2": _chwirut,
    "DanWood": lambda x, b1, b2: b1 * x**b2,
    "ENSO": _enso,
    "Eckerle4": lambda x, b1, b2, b3: b1 / b2 * jnp.exp(-0.5 * ((x - b3) / b2) ** 2),
    "Gauss1": _peaks,
    "Gauss2": _peaks,
    "Gauss3": _peaks,
    "Hahn1": _cubics,
    "Kirby2": lambda x, b1, b2, b3, b4, b5: (b1 + b2 * x + b3 * x**2) / (1 + b4 * x + b5 * x**2),
    "Lanczos1": _exponentials,
    "Lanczos2": _exponentials,
    "Lanczos3": _exponentials,
    "MGH09": lambda x, b1, b2, b3, b4: b1 * (x**2 + b2 * x) / (x**2 + b3 * x + b4),
    "MGH10": lambda x, b1, b2, b3: b1 * jnp.exp(b2 / (x + b3)),
    "MGH17": lambda x, b1, b2, b3, b4, b5: b1 + b2 * jnp.exp(-b4 * x) + b3 * jnp.exp(-b5 * x),
    "Misra1a": _saturation,
    "Misra1b": lambda x, b1, b2: b1 * (1 - (1 + 0.5 * b2 * x) ** -2.0),
    "Misra1c": lambda x, b1, b2: b1 * (1 - (1 + 2 * b2 * x) ** -0.5),
    "Misra1d": lambda x, b1, b2: b1 * b2 * x / (1 + b2 * x),
    "Nelson": lambda x, b1, b2, b3: b1 - b2 * x[0] * jnp.exp(-b3 * x[1]),
    "Rat42": lambda x, b1, b2, b3: b1 / (1 + jnp.exp(b2 - b3 * x)),
    "Rat43": lambda x, b1, b2, b3, b4: b1 / (1 + jnp.exp(b2 - b3 * x)) ** (1 / b4),
    "Roszman1": _roszman,
    "Thurber": _cubics,
}


def data(name):
    """The response and the predictors of a problem; Nelson's model is one of log y."""
    held = CERTIFIED[name]
    y = np.array(held["y"])
    return (np.log(y) if name == "Nelson" else y), [np.array(x) for x in held["x"]]
