"""The built-in transport models: rates that are power laws, and rates of free form."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from homodyne_dask.models.parameters import Parameter
from homodyne_dask.models.spline_basis import SplineForm
from homodyne_dask.models.transport import TransportModel

_DIFFUSION = (
    Parameter("D0", "Å²/s", (1.0, 1e6), scale="log", q_power=2),
    Parameter("alpha", "", (-2.0, 2.0)),
    Parameter("D_offset", "Å²/s", (-1e4, 1e4), q_power=2),
)
_SHEAR = (
    Parameter("gamma_dot_t0", "1/s", (1e-8, 1.0), scale="log"),
    Parameter("beta", "", (-2.0, 2.0)),
    Parameter("gamma_dot_t_offset", "1/s", (-0.1, 0.1)),
    Parameter("phi0", "degree", (-90.0, 90.0), period=180.0),
)

_J = ("D0", "alpha", "D_offset")
_GAMMA_DOT = ("gamma_dot_t0", "beta", "gamma_dot_t_offset")

_D0, _ALPHA, _D_OFFSET = _DIFFUSION
_NO_OFFSET = replace(_D_OFFSET, constant=0.0)

BROWNIAN = TransportModel("brownian", (_D0, replace(_ALPHA, constant=0.0), _NO_OFFSET), shear=False)
"""Diffusion at a constant rate, D0: f = exp(-q² D0 (t2 - t1)), D0 = 2 D_SE."""
POWER_LAW = TransportModel(
    "power_law", (_D0, _ALPHA, _NO_OFFSET), shear=False, power_laws=(_J,), simpler="brownian"
)
"""Diffusion at a rate that is a power of time, D0 t^alpha."""
STATIC = TransportModel("static", _DIFFUSION, shear=False, power_laws=(_J,), simpler="power_law")
"""Diffusion: f = exp(-q² ΔC)."""
LAMINAR_FLOW = TransportModel(
    "laminar_flow", _DIFFUSION + _SHEAR, shear=True, power_laws=(_J, _GAMMA_DOT)
)
"""Diffusion under laminar shear between plates a gap L apart."""


def free_form(name: str, shear: bool, splines: Mapping[str, SplineForm]) -> TransportModel:
    """Return the transport model with these rates of free form, J or gamma_dot; the others are power laws."""
    parameters, laws = [], []
    for rate, law, of_law in (("J", _J, _DIFFUSION), ("gamma_dot", _GAMMA_DOT, _SHEAR[:3])):
        if rate == "gamma_dot" and not shear:
            continue
        if rate in splines:
            unit, power = ("Å²/s", 2) if rate == "J" else ("1/s", 0)
            parameters += [
                Parameter(f"{rate}_{n + 1}", unit, (0.0, np.inf), q_power=power)
                for n in range(splines[rate].size)
            ]
        else:
            parameters += of_law
            laws.append(law)
    parameters += _SHEAR[3:] if shear else ()
    return TransportModel(
        name,
        tuple(parameters),
        shear=shear,
        power_laws=tuple(laws),
        simpler="laminar_flow" if shear else "static",
        **splines,
    )


def with_splines(model: TransportModel, splines: Mapping[str, SplineForm]) -> TransportModel:
    """Return the model with other knots of its rates of free form."""
    return free_form(model.name, model.shear, splines) if splines else model


STATIC_FREE = free_form("static_free", False, {"J": SplineForm()})
"""Diffusion at a rate of free form."""
LAMINAR_FLOW_FREE = free_form(
    "laminar_flow_free", True, {"J": SplineForm(), "gamma_dot": SplineForm()}
)
"""Diffusion and laminar shear at rates of free form."""
LAMINAR_FLOW_FREE_J = free_form("laminar_flow_free_J", True, {"J": SplineForm()})
"""The same, the shear rate a power law."""
LAMINAR_FLOW_FREE_SHEAR = free_form(
    "laminar_flow_free_gamma_dot", True, {"gamma_dot": SplineForm()}
)
"""The same, J a power law."""
