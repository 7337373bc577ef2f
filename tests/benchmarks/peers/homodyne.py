"""The fit by homodyne, or by xpcsjax: the package's template for laminar flow, its fit of arrays.

Of the template only what a user must set is set: the experiment, initial values, bounds, and the mode of
contrast and offset. The package chooses its method by the points of the matrix, angles x N x N: below
100,000 it fits contrast and offset per angle in every mode, from 1,000,000 on it follows the mode, and
in between it computes its model point by point. So compare at the size of interest.

Called as `python -m tests.benchmarks.peers.homodyne DATA RESULT SCALING [exact] [xpcsjax]`; with `exact` the
fit ends by tolerances of 1e-15 instead of 1e-8 in the template, with which it
ends 0.04 standard errors from its optimum.
"""

import sys
import time
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path

from tests.benchmarks.peers import data

MODES = {"shared": "auto", "individual": "individual"}
"""Its modes; from three angles on 'auto' fits one contrast and one offset for all angles."""
EXACT = dict.fromkeys(("tolerance", "ftol", "xtol", "gtol"), 1e-15)


def configuration(scaling: str, frames: int, exact: bool, package: str = "homodyne"):
    folder = Path(import_module(package).__file__ or "").parent
    template = folder / "config" / "templates" / f"{package}_laminar_flow.yaml"
    manager = import_module(f"{package}.config").ConfigManager(str(template))
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


def fit_of(package: str) -> Callable:
    """Return the function of a package that fits arrays."""
    if package == "xpcsjax":
        return import_module("xpcsjax").fit_nlsq
    return import_module("homodyne.optimization").fit_nlsq_jax


def main(source: str, target: str, scaling: str, *words: str) -> None:
    package = "xpcsjax" if "xpcsjax" in words else "homodyne"
    fit = fit_of(package)
    case = data.load(Path(source))
    manager = configuration(scaling, len(case.time), "exact" in words, package)
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
    result = fit(arrays, manager)
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
        version=metadata.version(package),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
