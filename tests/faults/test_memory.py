"""A worker takes no more memory than its plan says."""

from itertools import product
from resource import RUSAGE_SELF, getrusage

import pytest

import homodyne_dask as hd
from homodyne_dask.cluster.local import local_cluster
from tests.benchmarks import data

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(3000)]
SIZE_LABELS = [(300, 5, 1), (300, 23, 4), (900, 23, 1), (900, 23, 3), (1800, 8, 1), (1800, 23, 2)]
"""Frames, angles, and how many times each of them."""
GRID = list(product(SIZE_LABELS, [1, 2], ["stream", "resident"]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sizes")


@pytest.mark.parametrize(("size", "threads", "memory"), GRID)
def test_a_worker_takes_no_more_memory_than_the_plan_says(folder, size, threads, memory):
    frames, angles, times = size
    scan = hd.open_dataset(data.widened(folder, frames, times, angles))
    with local_cluster(processes=1, threads=threads) as client:
        plan = hd.plan(scan, hd.LAMINAR_FLOW, memory=memory, client=client)
        result = hd.fit(scan, hd.LAMINAR_FLOW, memory=memory, client=client)
    measured = max(entry.get("peak_bytes", 0) for entry in result.run.history)
    print(f"{size} {threads} {memory}: {measured / plan.memory_per_worker:.2f} of what is said")
    assert 0 < measured <= plan.memory_per_worker


def test_free_rates_of_few_angles_take_no_more_either(folder):
    scan, free = hd.open_dataset(data.store(folder, 1800, 5)), {"rates": "spline", "knots": 23}
    with local_cluster(processes=1, threads=2) as client:
        plan = hd.plan(scan, "laminar_flow", memory="stream", client=client, **free)
        result = hd.fit(scan, "laminar_flow", memory="stream", client=client, **free)
        [measured] = client.run(lambda: getrusage(RUSAGE_SELF).ru_maxrss * 1024).values()
    assert result.converged
    assert 200e6 < measured <= plan.memory_per_worker
