"""The Stokes-Einstein coefficient and the hydrodynamic radius that follow from Brownian motion.

c2 - offset decays as exp(-2 D_SE q² lag) (Berne and Pecora 1976), so that D_SE = D0 / 2; a sphere of radius R
in a fluid of viscosity η diffuses with D_SE = k_B T / (6π η R) (Einstein 1905).
"""

import math
from collections.abc import Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

from homodyne_dask.errors import OptionError
from homodyne_dask.models import BROWNIAN

if TYPE_CHECKING:
    import xarray

BOLTZMANN = 1.380649e-23
"""J/K, exact (SI of 2019)."""
COLDEST = 50.0
"""K; nothing is fluid below but hydrogen and helium."""
_M2_PER_A2, _NM_PER_M = 1e-20, 1e9


class DerivedQuantity(NamedTuple):
    """The Stokes-Einstein diffusion coefficient, the hydrodynamic radius, or a tied parameter."""

    value: float
    stderr: float
    """From those of the parameters it follows from; NaN where they are not known."""
    unit: str
    """Å²/s of D_SE, nm of R_h."""
    formula: str
    """What it follows from."""


def check_fluid(model: str, temperature: float | None, viscosity: float | None) -> None:
    """Raise OptionError unless both are given, for Brownian motion, or neither."""
    given = {"temperature": temperature, "viscosity": viscosity}
    if not any(value is not None for value in given.values()):
        return
    if model != BROWNIAN.name:
        raise OptionError(
            f"temperature and viscosity give the hydrodynamic radius of Brownian motion, but the "
            f"model is {model}: leave them out, or use the model brownian"
        )
    for name, value in given.items():
        if value is None:
            raise OptionError(
                f"{name} is missing: the hydrodynamic radius needs both temperature and viscosity"
            )
        if (
            isinstance(value, bool)
            or not isinstance(value, Real)
            or not 0 < float(value) < math.inf
        ):
            raise OptionError(f"{name} = {value!r} is not a positive number")
    if temperature is not None and temperature < COLDEST:
        raise OptionError(
            f"temperature = {temperature:g} K is too low for a fluid: give it in K (25 °C is 298.15 K)"
        )


def derived_quantities(
    config: Mapping[str, Any], parameters: "xarray.Dataset"
) -> dict[str, DerivedQuantity]:
    """Return D_SE and, where the fluid is known, R_h; none of other models, or of unknown q or D0.

    config: the options of the fit. parameters: its table, over `param`.
    """
    if config["model"] != BROWNIAN.name:
        return {}
    D0 = parameters.sel(param="D0")
    if D0["unit"].item() != "Å²/s" or not math.isfinite(D0["value"]):
        return {}
    D, share = float(D0["value"]) / 2, float(D0["stderr"] / D0["value"])
    derived = {"D_SE": DerivedQuantity(D, share * D, "Å²/s", "D0 / 2")}
    temperature, viscosity = (config[key] for key in ("temperature", "viscosity"))
    if temperature and viscosity:
        radius = BOLTZMANN * temperature / (6 * math.pi * viscosity * D * _M2_PER_A2) * _NM_PER_M
        words = f"k_B T / (6π η D_SE) at {temperature:g} K and {viscosity:g} Pa·s"
        derived["R_h"] = DerivedQuantity(radius, share * radius, "nm", words)
    return derived
