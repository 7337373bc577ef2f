"""Scans and results of known truth, to be drawn."""

from dataclasses import replace

import numpy as np

from homodyne_dask.models import LAMINAR_FLOW, STATIC
from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.result_tables import (
    covariance_table,
    influence_table,
    parameter_table,
    scaling_table,
)
from homodyne_dask.solver.state import Outcome
from tests import synthetic

DIFFUSION = np.array([20000.0, -0.4, 1000.0])
FLOW = np.array([20000.0, -0.4, 1000.0, 9e-4, -0.2, 1e-5, 3.0])
NOTHING = {"compilations": {}, "timings": {}, "undetermined": (), "warnings": (), "inputs": {}}


def result_for(scan, theta, covariance=None, naive=None, convention="physical", **changes):
    """The result of a fit that found the truth `measured` scans are made from."""
    model = LAMINAR_FLOW if len(theta) == 7 else STATIC
    names, p, k = list(model.names), len(theta), len(scan.bins)
    missing = np.full(p, np.nan)
    columns = {"stderr": missing, "stderr_naive": missing, "dof": missing, "value": theta}
    flags = {"at_bound": np.zeros(p), "fixed": np.zeros(p), "unit": [""] * p}
    bins = {"contrast": np.full(k, 0.2), "offset": np.ones(k), "redchi": np.ones(k)}
    bins |= {"ndata": np.full(k, 10), "undetermined": np.zeros(k), "q": scan.q, "phi": scan.phi}
    config = {"model": model.name, "convention": convention, "gap_angstrom": synthetic.GAP}
    passes = [(900.0, 2.0, True), (None, None, False), (120.0, 0.1, False), (100.0, 1e-5, True)]
    history = tuple(
        {"pass": n, "chisqr": c, "decrement": d, "accepted": a}
        for n, (c, d, a) in enumerate(passes, start=1)
    )
    return FitResult(
        outcome=Outcome.CONVERGED,
        parameters=parameter_table(columns | flags | {"param": names}),
        covariance=covariance_table(covariance, names),
        covariance_naive=covariance_table(naive, names),
        scaling=scaling_table(bins | {"label": scan.label}),
        chisqr=100.0,
        redchi=1.0,
        ndata=10 * k,
        nbins=k,
        passes=len(passes),
        config=config | {"min_lag": 1},
        **(NOTHING | {"history": history, "influence": moves(scan, names)} | changes),
    )


def moves(scan, names):
    """By how many standard errors each parameter moves without each bin; the last is fixed."""
    change = np.outer(np.sin(1.0 + np.arange(len(scan.q))), 0.5 * np.arange(1.0, len(names) + 1))
    change[:, -1] = np.nan
    return influence_table(change, names, scan.label)


def scan_of(folder, theta, n=60, phi=(0.0, 45.0, 90.0), dt=0.1, dead=(), q=None, **given):
    """A store of a scan; frames in `dead` have no counts."""
    scans = synthetic.measured(theta, n, phi, dt=dt, **given)
    c2 = scans.c2.copy()
    c2[:, list(dead)] = c2[:, :, list(dead)] = np.nan
    changes = {} if q is None else {"q": np.full(len(scans.q), q)}
    return synthetic.store(replace(scans, c2=c2), folder, **changes)


def truth_of(theta, names):
    parameters = dict(zip(names, theta * 1.1, strict=True))
    return {"model": "laminar_flow", "convention": "physical", "parameters": parameters,
            "gap_angstrom": synthetic.GAP}  # fmt: skip


SMALL = np.diag((0.02 * FLOW) ** 2)
CASES = {
    "laminar flow with truth and robust errors": (
        {"theta": FLOW},
        {"covariance": SMALL, "truth": truth_of(FLOW, LAMINAR_FLOW.names)},
    ),
    "diffusion without covariance, one bin, frames masked": (
        {"theta": DIFFUSION, "phi": [0.0], "dead": [20, 21, 22, 40]},
        {},
    ),
    "q unknown, naive errors only": (
        {"theta": DIFFUSION * [synthetic.Q**2, 1, synthetic.Q**2], "q": np.nan, "phi": [30.0]},
        {"naive": np.diag([0.01, 0.01, 0.01])},
    ),
}
