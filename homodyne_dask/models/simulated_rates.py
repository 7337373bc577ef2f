"""J(t) and γ̇(t) of simulated scans: of the transport models, and of two that no power law describes.

    temperature_step    J = J_before + (J_after - J_before) / (1 + exp(-(t - t_step) / width))
    oscillating_shear   γ̇ = gamma_dot_mean (1 + relative_amplitude sin(2π t / period)), J constant

The rates of the second point in the direction phi0. Neither is fitted by its formula.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from homodyne_dask.models.rate_forms import RATES, rate
from homodyne_dask.models.transport import RATE_FLOOR, Convention

STEP = ("J_before", "J_after", "t_step", "width")
"""Å²/s, Å²/s, s, s."""
OSCILLATION = ("J", "gamma_dot_mean", "relative_amplitude", "period", "phi0")
"""Å²/s, 1/s, no unit, s, degree."""
DIRECTION = "phi0"
"""degree."""
Rates = dict[str, Float[np.ndarray, " n"]]


def true_rates(
    model: str, parameters: Mapping[str, Any], t: Float[np.ndarray, " n"], convention: Convention
) -> Rates | None:
    """Return J [Å²/s] and, under shear, gamma_dot [1/s] at times above 0 [s].

    model, parameters: as a simulated file has them; None for those that have no rates.
    """
    names, given = {*parameters}, parameters
    if model == "temperature_step" and names == {*STEP}:
        rise = 0.5 * (1 + np.tanh((t - given["t_step"]) / (2 * given["width"])))
        return {"J": given["J_before"] + (given["J_after"] - given["J_before"]) * rise}
    if model == "oscillating_shear" and names == {*OSCILLATION}:
        wave = given["relative_amplitude"] * np.sin(2 * np.pi * t / given["period"])
        return {
            "J": np.full(len(t), float(given["J"])),
            "gamma_dot": given["gamma_dot_mean"] * (1 + wave),
        }
    if names - {DIRECTION} not in ({*RATES["J"]}, {*RATES["J"], *RATES["gamma_dot"]}):
        return None
    floors = {
        "J": RATE_FLOOR,
        "gamma_dot": RATE_FLOOR if convention is Convention.HOMODYNE else None,
    }
    return {
        name: rate(t, np.array([given[one] for one in of], float), floors[name])[0]
        for name, of in RATES.items()
        if names.issuperset(of)
    }
