"""The fit of the same arrays by each program, in the environment of its package.

python -m tests.benchmarks.peers.programs PROGRAM DATA RESULT SCALING [WORD ...]

homodyne_dask makes a store of the arrays and calls `hd.fit`; with the word ready its time begins when the
workers run and have imported what they need; without gpu processors compute, wherever it runs. nlsq is a
script of a user: the model written in jax, each pair t1 < t2 once, contrast and offset among the parameters.

homodyne and xpcsjax get their own template for laminar flow with what a user must set: the experiment,
initial values, bounds, and the mode of contrast and offset; with exact the fit ends by tolerances of 1e-15
instead of 1e-8, with which it ends 0.04 standard errors from its optimum. They choose a method by the points
of the matrix, angles x N x N: below 100,000 contrast and offset are fitted per angle in every mode, from
1,000,000 on as the mode says, and in between the model is computed point by point. So compare at the size of
interest.
"""

import sys
import time
from contextlib import ExitStack
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.peers import data

MODES = {"shared": "auto", "individual": "individual"}
"""Of homodyne; from three angles on 'auto' fits one contrast and one offset for all angles."""
EXACT = dict.fromkeys(("tolerance", "ftol", "xtol", "gtol"), 1e-15)


def load_in_worker() -> None:
    """Import in a worker what a fit needs."""
    import jax.numpy as jnp

    import homodyne_dask.sweep.sweep  # noqa: F401

    jnp.zeros(1).block_until_ready()


def homodyne_dask(source: Path, target: Path, scaling: str, words: tuple[str, ...]) -> None:
    import homodyne_dask as hd

    store = target.with_suffix(".zarr")
    began = time.perf_counter()
    hd.ingest(source, store)
    ingested = time.perf_counter() - began
    names, client = hd.LAMINAR_FLOW.names, None
    bounds = dict(zip(names, zip(data.LOWER, data.UPPER, strict=True), strict=True))
    with ExitStack() as stack:
        if "ready" in words:
            client = stack.enter_context(hd.local_cluster())
            client.wait_for_workers(1)
            client.run(load_in_worker)
        began = time.perf_counter()
        result = hd.fit(
            store, hd.LAMINAR_FLOW, gap=data.GAP, convention="homodyne", scaling=scaling, bounds=bounds,
            initial=dict(zip(names, data.START, strict=True)), client=client,
            device="gpu" if "gpu" in words else "cpu",
        )  # fmt: skip
        seconds = time.perf_counter() - began
    numbers = (result.parameters.value, result.scaling.contrast, result.scaling.offset)
    covariance = result.errors.covariance_naive
    data.report(
        target,
        data.Estimate(
            *(array.values.tolist() for array in numbers),
            None if covariance is None else covariance.values.tolist(),
        ),
        status=result.outcome.name.lower(),
        note=f"{result.passes} passes; ingest of the arrays {ingested:.1f} s of the process",
        fit_seconds=seconds,
        version=metadata.version("homodyne-dask"),
    )


def configuration(scaling: str, frames: int, exact: bool, package: str) -> Any:
    folder = Path(import_module(package).__file__ or "").parent
    template = folder / "config" / "templates" / f"{package}_laminar_flow.yaml"
    manager = import_module(f"{package}.config").ConfigManager(str(template))
    settings = manager.config
    experiment = {"dt": data.DT, "start_frame": 1, "end_frame": frames}
    experiment["scattering"] = {"wavevector_q": data.Q}
    experiment["geometry"] = {"stator_rotor_gap": data.GAP}
    settings["analyzer_parameters"] |= experiment
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


def homodyne(
    source: Path, target: Path, scaling: str, words: tuple[str, ...], package: str = "homodyne"
) -> None:
    fit = (
        import_module("xpcsjax").fit_nlsq
        if package == "xpcsjax"
        else import_module("homodyne.optimization").fit_nlsq_jax
    )
    case = data.load(source)
    manager = configuration(scaling, len(case.time), "exact" in words, package)
    c2 = case.c2.astype(float)
    times = dict.fromkeys(("t1", "t2"), case.time)
    arrays = {"phi_angles_list": case.phi, "c2_exp": c2, "wavevector_q_list": [data.Q]} | times
    began = time.perf_counter()
    result = fit(arrays | {"sigma": data.SIGMA + 0 * c2}, manager)
    seconds = time.perf_counter() - began
    values = [float(v) for v in result.parameters]
    scalings = (len(values) - len(data.NAMES)) // 2
    data.report(
        target,
        data.Estimate(values[-7:], values[:scalings], values[scalings : 2 * scalings]),
        status=result.convergence_status,
        note=(
            f"{result.iterations} iterations, quality {result.quality_flag}, "
            f"its own reduced chisqr {result.reduced_chi_squared:.4g}"
        ),
        fit_seconds=seconds,
        version=metadata.version(package),
    )


def xpcsjax(source: Path, target: Path, scaling: str, words: tuple[str, ...]) -> None:
    homodyne(source, target, scaling, words, "xpcsjax")


def model_of(case: data.Case, scalings: int) -> Any:
    """Return c2 of (angle, row, column) at the parameters, as `curve_fit` calls it."""
    import jax.numpy as jnp

    times = jnp.where(case.time <= data.DT / 2, data.DT / 2, case.time)
    azimuth = jnp.deg2rad(case.phi)

    def integral(a, b, c):
        rate = jnp.maximum(a * times**b + c, 1e-10)
        steps = 0.5 * (rate[1:] + rate[:-1]) * data.DT
        return jnp.concatenate([jnp.zeros(1), jnp.cumsum(steps)])

    def model(x, *parameters):
        D0, alpha, D_offset, gamma, beta, gamma_offset, phi0, *scaling = parameters
        contrast, offset = jnp.array(scaling[:scalings]), jnp.array(scaling[scalings:])
        k, i, j = x.astype(int)
        n = k if scalings > 1 else 0 * k
        C, G = integral(D0, alpha, D_offset), integral(gamma, beta, gamma_offset)
        wave = data.Q * data.GAP / (2 * jnp.pi) * jnp.cos(jnp.deg2rad(phi0) - azimuth)
        shear = jnp.sinc(wave[k] * (G[j] - G[i]) / jnp.pi) ** 4
        return offset[n] + contrast[n] * jnp.exp(-(data.Q**2) * (C[j] - C[i])) * shear

    return model


def nlsq(source: Path, target: Path, scaling: str, _: tuple[str, ...]) -> None:
    curve_fit = import_module("nlsq").curve_fit
    case = data.load(source)
    n, angles = len(case.time), len(case.phi)
    scalings = angles if scaling == "individual" else 1
    i, j = np.triu_indices(n, 1)
    x = np.stack([np.repeat(np.arange(angles), len(i)), np.tile(i, angles), np.tile(j, angles)])
    y = case.c2[:, i, j].ravel().astype(float)
    start, low, high = (
        np.concatenate([physical, np.full(scalings, contrast), np.full(scalings, offset)])
        for physical, contrast, offset in (
            (data.START, data.CONTRAST, data.OFFSET),
            *zip((data.LOWER, data.UPPER), data.CONTRAST_BOUNDS, data.OFFSET_BOUNDS, strict=True),
        )
    )
    sigma = np.full(len(y), data.SIGMA)
    given = {"p0": start, "sigma": sigma, "absolute_sigma": True, "bounds": (low, high)}
    began = time.perf_counter()
    result = curve_fit(model_of(case, scalings), x.astype(float), y, **given)
    seconds = time.perf_counter() - began
    values = [float(v) for v in result.popt]
    data.report(
        target,
        data.Estimate(values[:7], values[7 : 7 + scalings], values[7 + scalings :]),
        status="converged" if result.success else "not converged",
        note=f"{result.get('nfev')} evaluations, {result.get('message')}",
        fit_seconds=seconds,
        version=metadata.version("nlsq"),
    )


if __name__ == "__main__":
    program, source, target, scaling, *words = sys.argv[1:]
    globals()[program](Path(source), Path(target), scaling, tuple(words))
