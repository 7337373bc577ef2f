"""Whatever is computed on one worker, on two, and with one killed in the middle: the same bits."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.fitting.fit import plan_for
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.sweep.sweep import sweep_of
from tests.applications import public
from tests.faults.local_workers import workers
from tests.result_bits import result_bits
from tests.synthetic import angles, fit_here, measured, module_scan

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]
TRUTH = np.array([20000.0, -0.4, 500.0])
OPTIONS: dict[str, Any] = {"fixed": {"D_offset": 500.0}}
scan = module_scan(lambda: measured(TRUTH, 1100, angles(9), dt=0.02, sigma=0.1))
"""9 angles of 1100 frames: 6 blocks of 512 x 512, 5 million pairs."""


@pytest.fixture(scope="module")
def result(scan):
    return fit_here(scan, "static", **OPTIONS)


def comparison_bits(scan, _, client):
    made = hd.compare_models(scan, ["brownian", "static"], client=client)
    return made.fits, {name: result_bits(one) for name, one in made.results.items()}


def series_bits(scan, _, client):
    made = hd.fit_each(scan, "static", over="age", windows=3, client=client, **OPTIONS)
    return [result_bits(entry.result) for entry in made.entries]


def wide_bits(scan, _, client):
    request = prepare(scan, "static", **OPTIONS)
    thetas = TRUTH * (1 + 0.1 * np.random.default_rng(1).standard_normal((25, 3)))
    sweep = sweep_of(plan_for(request, client), scan.selection, request.problem, client)
    made = sweep.wide(thetas)
    return made.moments.tobytes(), made.pairs.tobytes()


def posterior_bits(scan, result, client):
    made = public("posterior")(result, scan, draws=200, seed=5, client=client)
    drawn, likelihood = (made.tree[name].dataset for name in ("posterior", "log_likelihood"))
    arrays = (made.theta, drawn["contrast"].values, likelihood["c2"].values)
    return made.plain["largest_error"], [array.tobytes() for array in arrays]


CALLS: dict[str, tuple[Callable[..., Any], str]] = {
    "compare_models": (comparison_bits, "gram-"),
    "fit_each": (series_bits, "fit-"),
    "a wide pass": (wide_bits, "wide_gram-"),
    "posterior": (posterior_bits, "wide_gram-"),
}
"""What must be the same, and the task in which the worker dies."""


@pytest.mark.parametrize("call", CALLS)
def test_a_killed_worker_changes_no_bit(scan, result, call):
    bits, doomed = CALLS[call]
    with workers(1) as client:
        first = bits(scan, result, client)
    for killed in ("", doomed):
        with workers(2, killed) as client:
            assert bits(scan, result, client) == first
