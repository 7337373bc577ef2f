"""The fit by the package homodyne: its template for laminar flow, `fit_nlsq_jax` on arrays.

Only what a user has to fill in is filled in: the experiment, the start, the bounds, and how contrast
and offset are treated. The package chooses its way by the points of the matrix, angles x N x N: below
100,000 it fits contrast and offset per angle whatever it is told, from 1,000,000 on it does as told,
between them it computes its model point by point. So compare at the size that is meant.

Called as `python -m tests.benchmarks.peers.homodyne DATA RESULT SCALING [exact]`; with `exact` the
fit ends by tolerances of 1e-15 instead of the template's 1e-8, which leave it 0.04 standard errors
from its optimum.
"""

import sys
import time
from importlib import metadata
from pathlib import Path

from tests.benchmarks.peers import data

MODES = {"shared": "auto", "individual": "individual"}
"""Its names; from three angles on 'auto' is one averaged contrast and offset, fitted for all."""
EXACT = dict.fromkeys(("tolerance", "ftol", "xtol", "gtol"), 1e-15)


def configuration(scaling: str, frames: int, exact: bool):
    import homodyne
    from homodyne.config import ConfigManager

    template = Path(homodyne.__file__).parent / "config/templates/homodyne_laminar_flow.yaml"
    manager = ConfigManager(str(template))
    held = manager.config
    held["analyzer_parameters"] |= {
        "dt": data.DT,
        "start_frame": 1,
        "end_frame": frames,
        "scattering": {"wavevector_q": data.Q},
        "geometry": {"stator_rotor_gap": data.GAP},
    }
    held["initial_parameters"] |= {
        "parameter_names": [*data.NAMES, "contrast", "offset"],
        "values": [*data.START, data.CONTRAST, data.OFFSET],
    }
    bounds = dict(zip(data.NAMES, zip(data.LOWER, data.UPPER, strict=True), strict=True))
    bounds |= {"contrast": data.CONTRAST_BOUNDS, "offset": data.OFFSET_BOUNDS}
    held["parameter_space"]["bounds"] = [
        {"name": name, "min": low, "max": high} for name, (low, high) in bounds.items()
    ]
    held["optimization"]["nlsq"]["anti_degeneracy"]["per_angle_mode"] = MODES[scaling]
    if exact:
        held["optimization"]["nlsq"] |= EXACT
    return manager


def main(source: str, target: str, scaling: str, *exact: str) -> None:
    from homodyne.optimization import fit_nlsq_jax

    case = data.load(Path(source))
    manager = configuration(scaling, len(case.time), bool(exact))
    c2 = case.c2.astype(float)
    given = {
        "phi_angles_list": case.phi,
        "c2_exp": c2,
        "t1": case.time,
        "t2": case.time,
        "wavevector_q_list": [data.Q],
        "sigma": data.SIGMA + 0 * c2,
    }
    began = time.perf_counter()
    result = fit_nlsq_jax(given, manager)
    seconds = time.perf_counter() - began
    found = [float(v) for v in result.parameters]
    scalings = (len(found) - len(data.NAMES)) // 2
    data.report(
        Path(target),
        data.Estimate(found[-7:], found[:scalings], found[scalings : 2 * scalings]),
        status=result.convergence_status,
        note=(
            f"{result.iterations} iterations, quality {result.quality_flag}, "
            f"reduced chisqr by its own account {result.reduced_chi_squared:.4g}"
        ),
        fit_seconds=seconds,
        version=metadata.version("homodyne"),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
