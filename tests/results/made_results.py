"""Results of fits, draws and scans of known truth, made without fitting or sampling."""

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import xarray

from homodyne_dask.models import LAMINAR_FLOW, MODELS, STATIC
from homodyne_dask.request.options import FitOptions
from homodyne_dask.results.data import fit_result as fits
from homodyne_dask.results.data.findings import Finding, Findings, finding
from homodyne_dask.results.result_classes import FitResult
from homodyne_dask.solver.levenberg_marquardt import Outcome
from tests import synthetic
from tests.synthetic import CREEP

NAN = math.nan
TRUTH: dict[str, Any] = {"scenario": "creep", "model": "laminar_flow", "convention": "physical"}
TRUTH |= {"gap_angstrom": 2e6}
TRUTH["parameters"] = dict(
    zip(LAMINAR_FLOW.names, (68480.0, -1.327, 1708.0, 9e-4, -0.212, -2.7e-4, 2.0), strict=True)
)


def parameters_of(
    columns: dict[str, Any], method: str = "cluster-robust", findings: Sequence[Finding] = ()
) -> xarray.Dataset:
    known = np.isfinite(columns["stderr"])
    return fits.parameter_table(columns | {"method": np.where(known, method, "")}, findings)


def by_speckle(result: FitResult) -> FitResult:
    table = result.parameters
    columns = {str(key): table[key].values for key in ("param", *table.data_vars)}
    return replace(result, parameters=parameters_of(columns, "speckle"))


def config_of(model: str, **changes: Any) -> dict[str, Any]:
    known = {"model_digest": MODELS[model].digest if model in MODELS else "unknown"}
    others = {"periods": {"phi0": 180.0}, "gap_angstrom": 2e6, "gap_from": "option gap"}
    others |= {"changed": [], "splines": {}}
    return FitOptions().values() | {"model": model} | known | others | changes


def inputs_of(bins: int, **changes: Any) -> dict[str, Any]:
    inputs: dict[str, Any] = {"store": "A0001_c2.zarr", "store_path": "A0001_c2.zarr"}
    inputs |= {
        "store_sha256": "ab" * 32,
        "source_file": "A0001_results.hdf",
        "source_format": "aps-u",
    }
    inputs |= {"source_sha256": "0123456789abcdef" * 4, "frame_time": 0.1, "sigma_source": "counts"}
    inputs |= {"notes": [], "selection": "", "frames": [0, 300], "seconds": [0.0, 29.9]}
    inputs |= {"chunks_left_out": [], "frames_masked": 0, "frames_excluded": []}
    inputs |= {"bins": bins, "independent_bins": bins, "labels": list(range(9, 9 + bins))}
    return inputs | changes


def rate_dof(**of_rate: float) -> xarray.Dataset:
    return xarray.Dataset({name: ("age", [dof]) for name, dof in of_rate.items()}, {"age": [0.0]})


SCALING_ERRORS = [f"{name}_stderr{of}" for name in ("contrast", "offset") for of in ("", "_naive")]


def flow_result() -> FitResult:
    """A converged fit of simulated data with robust errors."""
    n = 9
    phi = np.linspace(-80, 80, n)
    names = list(TRUTH["parameters"])
    return result_of(
        outcome=Outcome.CONVERGED,
        parameters=parameters_of(
            {
                "param": names,
                "value": [68612.3, -1.32714, 1722.5, 9.03e-4, -0.2133, -2.7e-4, 1.9971],
                "stderr": [1532.0, 0.00123, 18.7, 1.2e-5, 0.0099, NAN, 0.011],
                "stderr_naive": [912.0, 0.00061, 9.4, 4.4e-6, 0.0047, NAN, 0.0102],
                "dof": [8.0, 5.5, 4.1, 6.0, 6.1, NAN, 3.2],
                "at_bound": [False] * 7,
                "fixed": [False] * 5 + [True, False],
                "unit": ["Å²/s", "", "Å²/s", "1/s", "", "1/s", "degree"],
            }
        ),
        covariance=fits.covariance_table(np.eye(7), names),
        covariance_naive=fits.covariance_table(np.eye(7), names),
        scaling=fits.scaling_table(
            {
                "label": np.arange(9, 9 + n),
                "q": np.full(n, 0.0054),
                "phi": phi,
                "contrast": np.where(phi == 60, 0.0, 0.30 + 0.03 * np.cos(2 * np.deg2rad(phi))),
                "offset": 1.106 + 0.002 * np.sin(2 * np.deg2rad(phi)),
                "redchi": np.where(phi == 80, NAN, 1.0 + 0.001 * np.arange(n)),
                "ndata": np.where(phi == 80, 0, 44850),
                "undetermined": phi == 60,
            }
            | dict.fromkeys(SCALING_ERRORS, np.full(n, NAN))
        ),
        chisqr=359213.4,
        redchi=1.00117,
        ndata=358800,
        nbins=8,
        passes=8,
        history=(),
        compilations={"gram": 1},
        timings={"start": 1.234, "passes": 0.4567, "total": 123.4},
        findings=Findings(
            [
                finding("strongly-correlated", ["gamma_dot_t0", "beta"], correlation=0.9951),
                finding("bins-without-decay", [9], bins=1, total=9),
            ]
        ),
        rate_dof=rate_dof(J=4.1, J_integral=4.1, gamma_dot=6.0, strain=6.0),
        config=config_of("laminar_flow"),
        inputs=inputs_of(n, notes=["12 exact zeros became unknown"], frames_masked=2),
        truth=TRUTH,
        version="0.1.0",
        versions={"Python": "3.13.0", "jax": "0.12.0", "numpy": "2.3.1"},
    )


def static_result() -> FitResult:
    """A static fit of one bin of unknown q that does not determine everything."""
    base = flow_result()
    found = [
        finding("undetermined", ["D0", "D_offset"], "--model brownian"),
        finding("q-unknown", ["D0", "D_offset"]),
    ]
    return changed(
        base,
        outcome=Outcome.SINGULAR,
        parameters=parameters_of(
            {
                "param": ["D0", "alpha", "D_offset"],
                "value": [0.012345678, -0.487, -2.0],
                "stderr": [NAN, NAN, NAN],
                "stderr_naive": [0.00042, 0.0996, NAN],
                "dof": [NAN, NAN, NAN],
                "at_bound": [False, False, True],
                "fixed": [False, False, False],
                "unit": ["1/s", "", "1/s"],
            },
            findings=found,
        ),
        covariance=None,
        scaling=base.scaling.isel(bin=[0]).assign(q=("bin", [NAN]), phi=("bin", [NAN])),
        findings=Findings(found),
        compilations={},
        config=config_of("static", scaling="shared", gap_angstrom=None, min_lag=2),
        inputs=base.provenance.inputs
        | {"notes": [], "source_format": "npz", "sigma_source": "scatter"},
        truth=None,
    )


LEFT_OUT_CHISQR = np.linspace(100.0, 140.0, 9)
"""χ² of nine independent bins left out, of the best model."""

MISFIT = Findings([finding("model-misfit-shape", share=0.1, p=1e-5)])


def result_of_model(model: str, free: int, above=0.0, misfit: bool = False, **changes) -> FitResult:
    of = flow_result()
    chisqr = 1000.0 - 10 * free
    columns = {
        "left_out_chisqr": ("cluster", LEFT_OUT_CHISQR + above),
        "ndata": ("cluster", np.full(9, 150)),
        "chisqr": ("cluster", np.full(9, chisqr / 9)),
    }
    defaults = {
        "left_out": xarray.Dataset(columns | {"penalty": 3.0 * free, "linear": 18}),
        "chisqr": chisqr,
        "redchi": 1.0,
        "findings": MISFIT if misfit else Findings(),
        "parameters": of.parameters.assign(fixed=("param", np.arange(7) >= free)),
        "config": config_of(model),
    }
    return changed(of, **(defaults | changes))


FLOW = np.array([20000.0, -0.4, 1000.0, 9e-4, -0.2, 1e-5, 3.0])


def result_for(
    scan, theta, covariance=None, naive=None, convention="physical", table=None, **changes
):
    """The result of a fit that found the truth `measured` scans are made from; table: of parameters."""
    model = LAMINAR_FLOW if len(theta) == 7 else STATIC
    names, p, k = list(model.names), len(theta), len(scan.bins)
    missing = np.full(p, np.nan)
    columns = {"stderr": missing, "stderr_naive": missing, "dof": missing, "value": theta}
    flags = {"at_bound": np.zeros(p), "fixed": np.zeros(p), "unit": [""] * p}
    bins = {"contrast": np.full(k, 0.2), "offset": np.ones(k), "redchi": np.ones(k)}
    bins |= dict.fromkeys(SCALING_ERRORS, np.full(k, np.nan))
    bins |= {"ndata": np.full(k, 10), "undetermined": np.zeros(k), "q": scan.q, "phi": scan.phi}
    passes = [(900.0, 2.0, True), (None, None, False), (120.0, 0.1, False), (100.0, 1e-5, True)]
    history = tuple(
        {"pass": n, "chisqr": c, "decrement": d, "accepted": a}
        for n, (c, d, a) in enumerate(passes, start=1)
    )
    return result_of(
        outcome=Outcome.CONVERGED,
        parameters=parameters_of(
            columns | flags | {"param": names} | (table or {}),
            findings=changes.get("findings", ()),
        ),
        covariance=fits.covariance_table(covariance, names),
        covariance_naive=fits.covariance_table(naive, names),
        scaling=fits.scaling_table(bins | {"label": scan.label}),
        chisqr=100.0,
        redchi=1.0,
        ndata=10 * k,
        nbins=k,
        passes=len(passes),
        config=config_of(model.name, convention=convention, gap_angstrom=synthetic.GAP),
        **(
            {"compilations": {}, "timings": {}, "findings": Findings(), "inputs": inputs_of(k)}
            | {"history": history, "influence": influence_of_bins(scan, names)}
            | changes
        ),
    )


def influence_of_bins(scan, names):
    change = np.outer(np.sin(1.0 + np.arange(len(scan.q))), 0.5 * np.arange(1.0, len(names) + 1))
    change[:, -1] = np.nan
    return fits.table_of({"bin param": {"change": change}}, param=names, label=("bin", scan.label))


def scan_of(folder, theta, n=60, phi=(0.0, 45.0, 90.0), dt=0.1, dead=(), q=None, **given):
    scans = synthetic.measured(theta, n, phi, dt=dt, **given)
    c2 = scans.c2.copy()
    c2[:, list(dead)] = c2[:, :, list(dead)] = np.nan
    changes = {} if q is None else {"q": np.full(len(scans.q), q)}
    return synthetic.store(replace(scans, c2=c2), folder, **changes)


def truth_of(theta, names):
    parameters = dict(zip(names, theta * 1.1, strict=True))
    return {"model": "laminar_flow", "convention": "physical", "parameters": parameters,
            "gap_angstrom": synthetic.GAP}  # fmt: skip


FLOW_COVARIANCE = np.diag((0.02 * FLOW) ** 2)

FIGURE_CASES = {
    "laminar flow with truth and robust errors": (
        {"theta": FLOW},
        {"covariance": FLOW_COVARIANCE, "truth": truth_of(FLOW, LAMINAR_FLOW.names)},
    ),
    "diffusion without covariance, one bin, frames masked": (
        {"theta": CREEP, "phi": [0.0], "dead": [20, 21, 22, 40]},
        {},
    ),
    "q unknown, naive errors only": (
        {"theta": CREEP * [synthetic.Q**2, 1, synthetic.Q**2], "q": np.nan, "phi": [30.0]},
        {"naive": np.diag([0.01, 0.01, 0.01])},
    ),
}


UNITS = ["Å²/s", "", "Å²/s", "1/s", "", "1/s", "degree"]


def fit_of(scan, fixed=(), theta=FLOW):
    is_fixed = np.isin(LAMINAR_FLOW.names, fixed)
    stderr = np.where(is_fixed, np.nan, 0.02 * np.abs(theta))
    table = {"stderr": stderr, "stderr_naive": stderr / 2, "dof": np.full(7, 6.0)}
    inputs = inputs_of(
        len(scan.bins), store="A0123_c2.zarr", store_path=scan.path, store_sha256=scan.digest,
        labels=scan.label.tolist(), frames=list(scan.frames), source_file="A0123.npz",
        source_sha256="ab" * 32, source_format="npz", seconds=[0.0, 5.9],
    )  # fmt: skip
    more = {
        "table": table | {"unit": UNITS, "fixed": is_fixed},
        "truth": truth_of(theta, LAMINAR_FLOW.names),
        "rate_dof": rate_dof(J=6.0, J_integral=6.0, gamma_dot=6.0, strain=6.0),
    }
    covariance = np.diag((0.02 * theta) ** 2)
    return result_for(scan, theta, covariance, inputs=inputs, version="0.1.0", **more)


def flow_result_of(scan) -> FitResult:
    return fit_of(scan, theta=synthetic.FLOW)


def _by_part(values: dict[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    parts = {
        name: {one.name: values.pop(one.name) for one in fields(part) if one.name in values}
        for name, part in fits.PARTS.items()
    }
    return {name: found for name, found in parts.items() if found}, values


def result_of(**values: Any) -> FitResult:
    parts, own = _by_part(values)
    return FitResult(**own, **{name: fits.PARTS[name](**found) for name, found in parts.items()})


def changed(result: FitResult, **values: Any) -> FitResult:
    parts, own = _by_part(values)
    made = {name: replace(getattr(result, name), **found) for name, found in parts.items()}
    return replace(result, **own, **made)
