"""The Stokes-Einstein coefficient that follows from Brownian motion.

c2 - offset decays as exp(-2 D_SE q² lag) (Berne and Pecora 1976), so that D_SE = D0 / 2; a sphere of radius R
in a fluid of viscosity η diffuses with D_SE = k_B T / (6π η R) (Einstein 1905).
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from homodyne_dask.models import BROWNIAN

if TYPE_CHECKING:
    import xarray


class DerivedQuantity(NamedTuple):
    """The Stokes-Einstein diffusion coefficient, or a tied parameter."""

    value: float
    stderr: float
    """From those of the parameters it follows from; NaN where they are not known."""
    unit: str
    formula: str
    """What it follows from."""


def derived_quantities(
    config: Mapping[str, Any], parameters: "xarray.Dataset"
) -> dict[str, DerivedQuantity]:
    """Return D_SE; none of other models, or of unknown q or D0.

    config: the options of the fit. parameters: its table, over `param`.
    """
    if config["model"] != BROWNIAN.name:
        return {}
    D0 = parameters.sel(param="D0")
    if D0["unit"].item() != "Å²/s" or not math.isfinite(D0["value"]):
        return {}
    D, share = float(D0["value"]) / 2, float(D0["stderr"] / D0["value"])
    return {"D_SE": DerivedQuantity(D, share * D, "Å²/s", "D0 / 2")}
