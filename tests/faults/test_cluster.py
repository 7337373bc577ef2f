"""Workers and schedulers that die, hang, leave and come back in the middle of a fit."""

import signal
import subprocess
import time
from collections.abc import Iterator

import psutil
import pytest

import homodyne_dask as hd
from homodyne_dask.cluster import local as cluster
from homodyne_dask.errors import ClusterError
from homodyne_dask.fitting import fit as fitting
from homodyne_dask.fitting import observer as fit_observer
from homodyne_dask.fitting.events import on_pass
from homodyne_dask.solver import checkpoint
from homodyne_dask.sweep import distributed_tasks
from homodyne_dask.sweep import preflight as admission
from homodyne_dask.sweep.sweep import Sweep
from tests.faults.local_workers import (
    POOR,
    Given,
    by_address,
    disturbed,
    everything,
    processes,
    when_busy,
    workers,
)
from tests.faults.processes import dask, scheduler_at, still_there
from tests.result_bits import result_bits
from tests.synthetic import FLOW, angles, fit_here, measured, module_scan

pytestmark = [
    pytest.mark.cluster, pytest.mark.timeout(240), pytest.mark.usefixtures("many_passes"),
]  # fmt: skip
scan = module_scan(lambda: measured(FLOW, 1100, angles(4), dt=0.1))
"""4 angles of 1100 frames: 6 chunks of 512 x 512 each, 2.4 million pairs."""


@pytest.fixture(scope="module")
def quiet(scan):
    return fit_here(scan, hd.LAMINAR_FLOW, gap="200 um", initial=POOR)


@pytest.mark.long
def test_a_worker_killed_in_each_of_two_passes_changes_no_bit(scan, quiet):
    """And only what the dead had is done again."""
    killed: dict[str, psutil.Process] = {}
    with workers(2) as client:
        given = Given(client)

        def kill(number):
            if number > 2:
                return
            when_busy(client)
            if running := by_address(client):
                address = sorted(running)[number % len(running)]
                killed[address] = running[address]
                running[address].kill()

        result = disturbed(scan, client, kill)
    assert len(killed) == 2
    assert not still_there(list(killed.values()), 10)
    assert {worker for before in given.again().values() for worker in before} <= set(killed)
    assert result_bits(result) == result_bits(quiet)


@pytest.mark.slow
def test_a_worker_that_hangs_is_replaced_and_changes_no_bit(scan, quiet, monkeypatch):
    monkeypatch.setitem(cluster.SCHEDULER_SETTINGS, "distributed.scheduler.worker-ttl", "3s")
    stopped = []
    with workers(2) as client:

        def hang(number):
            if number == 2:
                when_busy(client)
                stopped.append(processes(client)[0])
                stopped[0].suspend()

        result = disturbed(scan, client, hang)
        assert len(stopped) == 1
        assert not still_there(stopped, 20)
    assert result_bits(result) == result_bits(quiet)


def test_a_cluster_in_which_everything_hangs_is_reported(scan, monkeypatch):
    monkeypatch.setattr(cluster, "NO_PROGRESS_TIMEOUT", 2.0)
    with workers(1) as client:
        client.submit(sum, [1]).result()
        whole = everything(client)  # the nanny, too
        for process in whole:
            process.suspend()
        try:
            with pytest.raises(ClusterError, match="no task finished within 2 s"):
                hd.fit(scan, hd.LAMINAR_FLOW, gap="200 um", initial=POOR, client=client)
        finally:
            for process in filter(psutil.Process.is_running, whole):
                process.resume()


@pytest.mark.slow
def test_all_workers_gone_and_one_returning_later_change_no_bit(scan, quiet):
    with workers(2) as client:

        def leave(number):
            if number == 2:
                when_busy(client)
                gone = everything(client)
                # starts within seconds; if none were to come, the fit would end at once
                client.cluster.scale(3)
                for process in gone:
                    process.kill()

        result = disturbed(scan, client, leave, memory="resident")
    assert result_bits(result) == result_bits(quiet)


@pytest.mark.slow
def test_no_worker_coming_back_is_said(scan, monkeypatch):
    setting = "distributed.scheduler.no-workers-timeout"
    monkeypatch.setitem(cluster.SCHEDULER_SETTINGS, setting, "2s")
    with workers(1) as client:

        def leave(_):
            for process in everything(client):
                process.kill()

        with pytest.raises(ClusterError, match="there have been no workers for too long"):
            disturbed(scan, client, leave)


@pytest.mark.slow
def test_a_cluster_that_grows_and_shrinks_in_mid_pass_changes_no_bit(scan, quiet):
    sizes = []
    with workers(1) as client:
        first = processes(client)[0]

        def adapt(size):
            when_busy(client)
            client.cluster.adapt(minimum=size, maximum=size, interval="100ms", wait_count=1)
            until = time.monotonic() + 120
            while len(client.cluster.scheduler.workers) != size and time.monotonic() < until:
                time.sleep(0.01)
            sizes.append(len(client.cluster.scheduler.workers))

        def scale(number):
            if number == 1:
                first.suspend()  # so that the pass lasts until there are two
                adapt(2)
                first.resume()
            elif number == 3:
                adapt(1)

        result = disturbed(scan, client, scale)
    assert sizes == [2, 1]
    assert result_bits(result) == result_bits(quiet)


@pytest.fixture
def elsewhere(tmp_path) -> Iterator[tuple[subprocess.Popen, str]]:
    """A scheduler and one worker, each a process of its own; and the scheduler's address."""
    with (
        scheduler_at(tmp_path) as (scheduler, address),
        dask(tmp_path, "worker", address, "--host", "127.0.0.1", "--nthreads", "1"),
    ):
        yield scheduler, address


def on_that_scheduler(scan, address: str, **given):
    with hd.connect(address) as client:
        client.wait_for_workers(1, timeout=60)
        given |= {"gap": "200 um", "initial": POOR, "memory": "stream"}
        return hd.fit(scan, hd.LAMINAR_FLOW, client=client, **given)


def wait_a_second_for_answers(monkeypatch) -> None:
    for module in (cluster, distributed_tasks, admission):
        monkeypatch.setattr(module, "ANSWER_TIMEOUT", 1.0)


@pytest.mark.long
def test_a_frozen_scheduler_ends_the_fit_with_a_sentence_and_a_checkpoint(
    scan, tmp_path, elsewhere, monkeypatch
):
    wait_a_second_for_answers(monkeypatch)
    scheduler, address = elsewhere
    held = tmp_path / "checkpoint.json"

    def freeze(event):
        if event.number == 2:
            monkeypatch.setattr(cluster, "NO_PROGRESS_TIMEOUT", 3.0)
            scheduler.send_signal(signal.SIGSTOP)

    with pytest.raises(ClusterError, match=r"for \d s and does not answer.* resume=True"):
        on_that_scheduler(scan, address, checkpoint=held, callbacks=[on_pass(freeze)])
    assert checkpoint._body(held)["passes"] >= 2


STEPS = {
    "before workers are counted": (fitting, "plan_for"),
    "before workers are examined": (admission, "preflight"),
    "before the first pass": (Sweep, "warm_up"),
    "in a pass": (fit_observer.FitObserver, "state"),
}


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("step", STEPS)
def test_a_scheduler_that_dies_is_one_sentence_whenever_it_dies(
    scan, elsewhere, monkeypatch, capfd, step
):
    scheduler, address = elsewhere
    where, name = STEPS[step]
    real = getattr(where, name)

    def after_its_death(*given, **options):
        scheduler.kill()
        scheduler.wait()
        return real(*given, **options)

    monkeypatch.setattr(where, name, after_its_death)
    with pytest.raises(ClusterError, match="the connection to the scheduler was lost: start a"):
        on_that_scheduler(scan, address)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_a_finished_result_is_kept_where_the_scheduler_is_lost_after_the_last_pass(
    scan, quiet, elsewhere, monkeypatch, sent
):
    scheduler, address = elsewhere
    count = Sweep.compilations

    def after_its_loss(sweep):
        monkeypatch.setattr(cluster, "NO_PROGRESS_TIMEOUT", 3.0)
        wait_a_second_for_answers(monkeypatch)
        scheduler.send_signal(sent)
        return count(sweep)

    monkeypatch.setattr(Sweep, "compilations", after_its_loss)
    assert result_bits(on_that_scheduler(scan, address)) == result_bits(quiet)
