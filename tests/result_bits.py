"""What two results must have in common, bit by bit; and fits whose bits a change of the source must keep.

python -m tests.result_bits FOLDER > before    # data are made in FOLDER, where they are missing
python -m tests.result_bits FOLDER | diff before -
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import homodyne_dask as hd
from homodyne_dask.results.result_classes import FitResult
from tests.esrf_files import averaged, esrf
from tests.reference import f_physical

FLOW = {"model": "laminar_flow", "gap": "200 um"}


def result_bits(result: FitResult) -> tuple[Any, ...]:
    """All that must be the same whoever computes it."""
    passed = [h for h in result.run.history if "pass" in h]
    covariance = result.errors.covariance_naive
    return (
        result.outcome,
        result.passes,
        result.chisqr.hex(),
        result.parameters[["value", "stderr"]].to_array().values.tobytes(),
        None if covariance is None else covariance.values.tobytes(),
        result.scaling["contrast"].values.tobytes(),
        [(h["pass"], h["theta"], h["chisqr"], h["damping"], h["accepted"]) for h in passed],
    )


def folder_bits(folder: Path) -> dict[str, Any]:
    """Return all of a result but the seconds it took."""
    read = json.loads((folder / "summary.json").read_text())
    passed = [
        {key: entry.get(key) for key in ("pass", "theta", "chisqr", "damping", "accepted", "level")}
        for entry in read["history"]
    ]
    kept = ("outcome", "parameters", "covariance", "covariance_naive", "scaling_per_bin", "chisqr")
    return {key: read[key] for key in (*kept, "passes", "ndata")} | {"all": passed}


def make_data(folder: Path) -> None:
    """Write the stores that the reference fits read: flow, repeats, one angle in photons, cells."""
    for n in (1, 2, 3):
        hd.simulate(folder / f"flow{n}.h5", "creep", angles=5, frames=120, seed=n, noise="speckle")
    hd.ingest(folder / "flow1.h5", folder / "flow.zarr")
    hd.ingest([folder / f"flow{n}.h5" for n in (1, 2, 3)], folder / "repeats.zarr")
    hd.simulate(folder / "one.h5", "static", angles=1, frames=400, noise="speckle")
    hd.ingest(folder / "one.h5", folder / "one.zarr")
    n, rng = 90, np.random.default_rng(0)
    theta, t = np.array([3000.0, -0.2, 50.0]), 0.1 * np.arange(n)
    f = [f_physical(theta, t, q, 0.0) for q in (0.01, 0.014)]
    upper = np.triu(1 + 0.3 * np.array(f) + 0.003 * rng.standard_normal((2, n, n)), 1)
    full = upper + upper.transpose(0, 2, 1) + 2 * np.eye(n)
    ttcf, age, lag, _ = averaged(full, 12, 1, 6)
    esrf(folder / "cells.h5", ttcf, 0.1 * age, 0.1 * lag, q=(0.1, 0.14))
    hd.ingest(folder / "cells.h5", folder / "cells.zarr", phi=(0.0, 0.0), sigma=0.003)


def of_result(result: FitResult) -> dict[str, Any]:
    told = dict(result.parameters.data_vars)
    names = ("optimum", "stderr", "stderr_naive", "dof")
    return {name: told[name].values for name in names} | {
        "chisqr": np.array([result.chisqr]),
        "contrast": result.scaling["contrast"].values,
    }


def reference_fits(folder: Path) -> dict[str, dict[str, Any]]:
    """Arrays by fit and name, of one fit for each way through the program."""
    flow, repeats, one = (folder / f"{name}.zarr" for name in ("flow", "repeats", "one"))
    found = {
        "pairs": hd.fit(flow, **FLOW),
        "speckle": hd.fit(flow, **FLOW, weighting="speckle"),
        "loss": hd.fit(flow, **FLOW, loss="huber"),
        "one ring": hd.fit(one, "static"),
        "splines": hd.fit(one, "static", rates="spline", knots=6),
        "power law": hd.fit(one, "power_law", weighting="speckle"),
        "cells": hd.fit(folder / "cells.zarr", "static", fixed={"D_offset": 50.0}),
        "repeats": hd.fit(repeats, **FLOW),
        "profile": hd.fit(flow, **FLOW, profile=("phi0",)),
    }
    bits = {name: of_result(result) for name, result in found.items()}
    for name, options in {"together": {}, "per scan": {"per_scan": "D0"}}.items():
        series = hd.fit_each(repeats, **FLOW, over="scan", **options)
        bits[name] = {f"scan {n}": np.array([r.chisqr]) for n, r in enumerate(series.results)}
        if series.global_fit is not None:
            bits[name] |= {k: v.values for k, v in series.global_fit.parameters.data_vars.items()}
    for name, of, adjust in (("posterior", "one ring", "none"), ("adjusted", "pairs", "robust")):
        sampled = hd.posterior(found[of], draws=400, seed=3, adjust=adjust)
        bits[name] = {"draws": sampled.theta}
    x = np.linspace(0, 4, 200)
    y = 2.5 * np.exp(-1.3 * x) + 0.5 + 0.1 * np.random.default_rng(0).standard_normal(200)
    popt, pcov = hd.curve_fit(lambda x, a, b, c: a * np.e ** (-b * x) + c, x, y, [2, 1, 0.4])
    bits["curve_fit"] = {"popt": popt, "pcov": pcov}
    return bits


def main() -> None:
    folder = Path(sys.argv[1])
    if not (folder / "cells.zarr").exists():
        folder.mkdir(parents=True, exist_ok=True)
        make_data(folder)
    for fit, arrays in reference_fits(folder).items():
        for name, values in arrays.items():
            array = np.ascontiguousarray(values)
            told = array.tobytes() if array.dtype != object else repr(array.tolist()).encode()
            print(
                f"{fit:12} {name:20} {hashlib.sha256(told).hexdigest()[:16]} {np.ravel(array)[:1]}"
            )


if __name__ == "__main__":
    main()
