"""Comparisons and series with a worker killed in the middle: the same bits."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import homodyne_dask as hd
from tests.faults.local_workers import workers
from tests.result_bits import result_bits
from tests.synthetic import angles, fit_here, measured, store

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]
TRUTH = np.array([20000.0, -0.4, 500.0])
OPTIONS: dict[str, Any] = {"fixed": {"D_offset": 500.0}}


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    """9 angles of 1100 frames: 6 blocks of 512 x 512, 5 million pairs."""
    scans = measured(TRUTH, 1100, angles(9), dt=0.02, sigma=0.1)
    return store(scans, tmp_path_factory.mktemp("killed"))


@pytest.fixture(scope="module")
def result(scan):
    return fit_here(scan, "static", **OPTIONS)


def comparison_bits(scan, _, client):
    made = hd.compare_models(scan, ["brownian", "static"], client=client)
    return made.table, {name: result_bits(one) for name, one in made.results.items()}


def series_bits(scan, _, client):
    made = hd.fit_each(scan, "static", over="age", windows=3, client=client, **OPTIONS)
    return [result_bits(entry.result) for entry in made.entries]


COMMANDS: dict[str, tuple[Callable[..., Any], str]] = {
    "compare_models": (comparison_bits, "gram-"),
    "fit_each": (series_bits, "fit-"),
}
"""What must be the same, and the task in which the worker dies."""


@pytest.mark.parametrize("command", COMMANDS)
def test_a_killed_worker_changes_no_bit_of_any_command(scan, result, command):
    bits, doomed = COMMANDS[command]
    with workers(1) as client:
        first = bits(scan, result, client)
    with workers(2, doomed) as client:
        assert bits(scan, result, client) == first
