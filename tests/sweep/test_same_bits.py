"""One answer, whoever computes it, and nobody before it was examined: real processes, real signals."""

import os
import shutil
from collections import Counter

import pytest
from distributed import SchedulerPlugin

import homodyne_dask as hd
from homodyne_dask.cluster import local as cluster
from homodyne_dask.cluster.local import local_cluster
from homodyne_dask.errors import ClusterError
from homodyne_dask.fitting import observer
from homodyne_dask.fitting.events import on_pass, on_progress
from homodyne_dask.sweep import preflight as admission
from tests.faults.processes import another, dask
from tests.result_bits import result_bits
from tests.synthetic import CREEP, FLOW, angles, fit_here, measured, module_scan, store

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
scan = module_scan(lambda: measured(FLOW, 600, angles(9), dt=0.2))
"""9 angles of 600 frames: three blocks of 512 x 512, 1.6 million pairs."""


@pytest.fixture(scope="module")
def quiet(scan):
    """The fit in this process."""
    return fit_here(scan, hd.LAMINAR_FLOW, gap="200 um")


@pytest.mark.long
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("memory", ["resident", "stream"])
def test_one_worker_and_two_resident_or_streaming_give_the_same_bits(
    scan, quiet, processes, memory
):
    with cluster.local_cluster(processes=processes, threads=1) as client:
        result = hd.fit(scan, hd.LAMINAR_FLOW, gap="200 um", client=client, memory=memory)
    assert result_bits(result) == result_bits(quiet)
    assert result.run.compilations["gram"] <= 1


@pytest.mark.slow
def test_free_rates_have_the_same_bits_on_two_workers(scan):
    one = scan.select(phi=-90.0)
    options = {"rates": "spline", "knots": 8}
    here = fit_here(one, "static", **options)
    with cluster.local_cluster(processes=2, threads=1) as client:
        there = hd.fit(one, "static", client=client, memory="stream", **options)
    assert result_bits(there) == result_bits(here)
    assert there.rates.equals(here.rates)


@pytest.mark.slow
def test_the_errors_of_few_angles_and_a_profile_have_the_same_bits(scan):
    few = scan.select(phi=(-90.0, -10.0))
    options = {"gap": "200 um", "fixed": {"D_offset": 100.0}, "profile": ("phi0",)}
    here = fit_here(few, hd.LAMINAR_FLOW, **options)
    with cluster.local_cluster(processes=2, threads=1) as client:
        there = hd.fit(few, hd.LAMINAR_FLOW, client=client, **options)
    assert result_bits(there) == result_bits(here)
    assert here.errors.covariance is not None
    assert there.errors.covariance.values.tobytes() == here.errors.covariance.values.tobytes()
    assert there.errors.profiles["phi0"].identical(here.errors.profiles["phi0"])


@pytest.mark.long
def test_a_small_fit_that_fails_on_a_worker_is_a_row_and_the_rest_goes_on(scan, tmp_path):
    shutil.copytree(scan.path, tmp_path / "spoilt.zarr")
    (tmp_path / "spoilt.zarr/c2/c/0/0/0").unlink()  # of the first window alone
    given = {"gap": "200 um", "fixed": {"D_offset": 100.0, "gamma_dot_t_offset": 1e-5}}
    with cluster.local_cluster(processes=1, threads=1) as client:
        series = hd.fit_each(
            tmp_path / "spoilt.zarr", hd.LAMINAR_FLOW, over="age", client=client,
            windows=[(0.0, 90.0), (104.0, 120.0)], **given,
        )  # fmt: skip
    assert [entry.outcome == "FAILED" for entry in series.entries] == [True, False]
    assert "cannot be read" in series.entries[0].message


def test_workers_are_examined_before_they_are_sent_whole_fits(scan, monkeypatch):
    def refuse(*_):
        raise ClusterError("worker 0 has jaxlib 0.0.1")

    monkeypatch.setattr(admission, "preflight", refuse)
    with (
        cluster.local_cluster(processes=1, threads=1) as client,
        pytest.raises(ClusterError, match=r"jaxlib 0\.0\.1"),
    ):
        hd.fit_each(scan, hd.LAMINAR_FLOW, over="age", windows=3, client=client, gap="200 um")


MANY = str(100 * (os.cpu_count() or 1))
"""More threads than there are cores."""


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
    tmp_path, monkeypatch
):
    scan = store(measured(CREEP, 60, [0.0, 45.0], dt=0.1), tmp_path)
    given = {"initial": {"D0": 9000.0, "alpha": 0.0}, "fixed": {"D_offset": 1000.0}}
    refused, left, logged = [], [], []
    # in place of caplog, whose handler a cluster silences together with those of Dask
    monkeypatch.setattr(observer.LOG, "warning", lambda form, *words: logged.append(form % words))
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
    assert any(words in line for line in logged)
    assert words.startswith("worker odd has jaxlib 0.0.1, but ")
