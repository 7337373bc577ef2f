"""A worker that joins while a fit runs computes nothing before it was examined."""

import os
from collections import Counter

import pytest
from distributed import SchedulerPlugin

import homodyne_dask as hd
from homodyne_dask.cluster.local import local_cluster
from homodyne_dask.fitting.events import on_pass, on_progress
from tests.faults.processes import another, dask
from tests.result_bits import result_bits
from tests.synthetic import CREEP, FLOW, angles, fit_here, measured, module_scan, store

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
MANY = str(100 * (os.cpu_count() or 1))
"""More threads than there are cores."""
scan = module_scan(lambda: measured(FLOW, 1100, angles(4), dt=0.1))
"""4 angles of 1100 frames: 2.4 million pairs."""


class Done(SchedulerPlugin):
    """How many tasks each worker has finished."""

    def __init__(self, scheduler) -> None:
        self.by: Counter[str] = Counter()
        self.scheduler = scheduler
        scheduler.add_plugin(self, name="done")

    def transition(self, key, start, finish, *args, worker="", **kwargs) -> None:
        if (start, finish) == ("processing", "memory"):
            self.by[str(self.scheduler.workers[worker].name)] += 1


def checks(client) -> list[str]:
    """The checks that a scheduler still has."""
    scheduler = client.cluster.scheduler
    held = {*scheduler.worker_plugins, *scheduler.plugins}
    return [name for name in held if name.startswith("homodyne_dask-check")]


@pytest.mark.long
def test_a_worker_that_joins_and_is_not_what_the_fit_needs_is_named_and_computes_nothing(
    tmp_path, caplog
):
    scan = store(measured(CREEP, 60, [0.0, 45.0], dt=0.1), tmp_path)
    given = {"initial": {"D0": 9000.0, "alpha": 0.0}, "fixed": {"D_offset": 1000.0}}
    refused, left = [], []
    path = another("0.0.1", tmp_path)
    with local_cluster(processes=1, threads=1) as client:
        client.wait_for_workers(1, timeout=120)
        done = Done(client.cluster.scheduler)
        joining = client.scheduler.address, "--host", "127.0.0.1", "--no-nanny", "--nthreads", "1"

        def join(event) -> None:
            if event.number == 1:
                with dask(
                    tmp_path, "worker", *joining, "--name", "odd", PYTHONPATH=path, NPROC=MANY
                ) as odd:
                    left.append(odd.wait(120))  # it ends by itself

        result = hd.fit(
            scan, hd.STATIC, **given, client=client,
            callbacks=[on_pass(join), on_progress(lambda now: refused.append(now.refused))],
        )  # fmt: skip
        assert not checks(client)
    assert result.passes > 2
    assert result_bits(result) == result_bits(fit_here(scan, hd.STATIC, **given))
    assert left == [0]
    assert done.by["0"] > 0
    assert "odd" not in done.by
    (words,) = refused[-1]
    assert any(words in logged for logged in caplog.messages)
    version, threads = words.splitlines()
    assert version.startswith("worker odd has jaxlib 0.0.1, but this program has ")
    assert threads.startswith(
        f"worker odd has 1 thread but computes on {MANY}, more than the cores of"
    )
