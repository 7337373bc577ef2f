"""The fit by the package homodyne: its template for laminar flow, `fit_nlsq_jax` on arrays.

Of the template only what a user must set is set: the experiment, initial values, bounds, and the mode of
contrast and offset. The package chooses its method by the points of the matrix, angles x N x N: below
100,000 it fits contrast and offset per angle in every mode, from 1,000,000 on it follows the mode, and
in between it computes its model point by point. So compare at the size of interest.

Called as `python -m tests.benchmarks.peers.homodyne DATA RESULT SCALING [exact]`; with `exact` the
fit ends by tolerances of 1e-15 instead of 1e-8 in the template, with which it
ends 0.04 standard errors from its optimum.
"""

import sys
import time
from importlib import metadata
from pathlib import Path

from tests.benchmarks.peers import data

MODES = {"shared": "auto", "individual": "individual"}
"""Its modes; from three angles on 'auto' fits one contrast and one offset for all angles."""
EXACT = dict.fromkeys(("tolerance", "ftol", "xtol", "gtol"), 1e-15)


def configuration(scaling: str, frames: int, exact: bool):
    import homodyne
    from homodyne.config import ConfigManager

    template = Path(homodyne.__file__).parent / "config/templates/homodyne_laminar_flow.yaml"
    manager = ConfigManager(str(template))
    settings = manager.config
    settings["analyzer_parameters"] |= {
        "dt": data.DT,
        "start_frame": 1,
        "end_frame": frames,
        "scattering": {"wavevector_q": data.Q},
        "geometry": {"stator_rotor_gap": data.GAP},
    }
    settings["initial_parameters"] |= {
        "parameter_names": [*data.NAMES, "contrast", "offset"],
        "values": [*data.START, data.CONTRAST, data.OFFSET],
    }
    bounds = dict(zip(data.NAMES, zip(data.LOWER, data.UPPER, strict=True), strict=True))
    bounds |= {"contrast": data.CONTRAST_BOUNDS, "offset": data.OFFSET_BOUNDS}
    settings["parameter_space"]["bounds"] = [
        {"name": name, "min": low, "max": high} for name, (low, high) in bounds.items()
    ]
    settings["optimization"]["nlsq"]["anti_degeneracy"]["per_angle_mode"] = MODES[scaling]
    if exact:
        settings["optimization"]["nlsq"] |= EXACT
    return manager


def main(source: str, target: str, scaling: str, *exact: str) -> None:
    from homodyne.optimization import fit_nlsq_jax

    case = data.load(Path(source))
    manager = configuration(scaling, len(case.time), bool(exact))
    c2 = case.c2.astype(float)
    arrays = {
        "phi_angles_list": case.phi,
        "c2_exp": c2,
        "t1": case.time,
        "t2": case.time,
        "wavevector_q_list": [data.Q],
        "sigma": data.SIGMA + 0 * c2,
    }
    began = time.perf_counter()
    result = fit_nlsq_jax(arrays, manager)
    seconds = time.perf_counter() - began
    found = [float(v) for v in result.parameters]
    scalings = (len(found) - len(data.NAMES)) // 2
    data.report(
        Path(target),
        data.Estimate(found[-7:], found[:scalings], found[scalings : 2 * scalings]),
        status=result.convergence_status,
        note=(
            f"{result.iterations} iterations, quality {result.quality_flag}, "
            f"its own reduced chisqr {result.reduced_chi_squared:.4g}"
        ),
        fit_seconds=seconds,
        version=metadata.version("homodyne"),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
