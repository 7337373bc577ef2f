"""Workers and schedulers that die, hang, leave and come back in the middle of a fit."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

import homodyne_dask as hd
from homodyne_dask import cluster
from homodyne_dask.cluster import local_cluster, worker_environment
from homodyne_dask.errors import ClusterError
from tests.faults.programs import ENVIRONMENT, finish, passes, start, still_there, wait_for_pass
from tests.synthetic import FLOW, angles, fit_here, measured, store

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
POOR = dict(zip(hd.LAMINAR_FLOW.names, FLOW * [1.6, 0.5, 1, 0.4, 0.5, 1, 1], strict=True))


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    """4 angles of 1100 frames: 6 chunks of 512 x 512 each, 2.4 million pairs."""
    return store(measured(FLOW, 1100, angles(4), dt=0.1), tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def quiet(scan):
    """The fit in this process."""
    return fit_here(scan, hd.LAMINAR_FLOW, gap="200 um", initial=POOR)


def bits(result):
    values, errors = result.parameters["value"], result.parameters["stderr_naive"]
    history = [(h["theta"], h["chisqr"], h["damping"]) for h in result.history if "pass" in h]
    return values.values.tobytes(), errors.values.tobytes(), result.chisqr, history


def disturbed(scan, client, disturb: Callable[[int], None], memory="stream"):
    """Fit while `disturb` is called, in a thread of its own, as each next pass begins."""
    threads = []

    def after(state):
        threads.append(threading.Thread(target=disturb, args=(state.passes,)))
        threads[-1].start()

    try:
        return hd.fit(
            scan, hd.LAMINAR_FLOW, gap="200 um", initial=POOR, client=client, memory=memory,
            progress=after,
        )  # fmt: skip
    finally:
        for thread in threads:
            thread.join()


def everything(client) -> list[psutil.Process]:
    """The workers of a local cluster and their nannies."""
    nannies = [psutil.Process(worker.process.pid) for worker in client.cluster.workers.values()]
    return [p for nanny in nannies for p in (nanny, *nanny.children(recursive=True))]


def processes(client) -> list[psutil.Process]:
    """The worker processes of a local cluster, not their nannies."""
    return [p for p in everything(client) if "spawn_main" in " ".join(p.cmdline())]


def busy(client) -> bool:
    """Whether a worker holds a task of a pass."""
    workers = list(client.cluster.scheduler.workers.values())
    return any("gram-" in str(task.key) for worker in workers for task in list(worker.processing))


def when_busy(client, seconds: float = 5) -> None:
    until = time.monotonic() + seconds
    while not busy(client) and time.monotonic() < until:
        time.sleep(0.001)


def test_a_worker_that_hangs_is_replaced_and_changes_no_bit(scan, quiet, monkeypatch):
    monkeypatch.setitem(cluster._SETTINGS, "distributed.scheduler.worker-ttl", "3s")
    stopped = []
    with local_cluster(processes=2, threads=1) as client:
        client.wait_for_workers(2, timeout=60)

        def hang(number):
            if number == 2:
                when_busy(client)
                stopped.append(processes(client)[0])
                stopped[0].suspend()

        result = disturbed(scan, client, hang)
        assert len(stopped) == 1
        assert not still_there(stopped, 20)
    assert bits(result) == bits(quiet)


@contextmanager
def hanging(client) -> Iterator[list[psutil.Process]]:
    """Nothing of a cluster's workers moves, nannies included, until the end of the `with`."""
    whole = everything(client)
    for process in whole:
        process.suspend()
    try:
        yield whole
    finally:
        for process in whole:
            if process.is_running():
                process.resume()


def test_a_cluster_in_which_everything_hangs_is_reported(scan, monkeypatch):
    monkeypatch.setattr(cluster, "NO_PROGRESS", 5.0)
    with local_cluster(processes=1, threads=1) as client:
        client.wait_for_workers(1, timeout=60)
        client.submit(sum, [1]).result()
        with hanging(client), pytest.raises(ClusterError, match="no task finished within 5 s"):
            hd.fit(scan, hd.LAMINAR_FLOW, gap="200 um", initial=POOR, client=client)


@contextmanager
def dask(folder: Path, *words: str) -> Iterator[subprocess.Popen]:
    """A scheduler or a worker as people start them: a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dask", *words], cwd=folder, stderr=subprocess.DEVNULL,
        env=ENVIRONMENT | worker_environment(1),
    )  # fmt: skip
    whole = psutil.Process(process.pid)
    try:
        yield process
    finally:
        for one in (*(whole.children(recursive=True) if whole.is_running() else ()), whole):
            if one.is_running():
                one.kill()
        process.wait()


@pytest.fixture
def elsewhere(tmp_path) -> Iterator[tuple[subprocess.Popen, str]]:
    """A scheduler and one worker, each a process of its own; and the scheduler's address."""
    file = tmp_path / "scheduler.json"
    with dask(
        tmp_path, "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard",
        "--scheduler-file", str(file),
    ) as scheduler:  # fmt: skip
        while not file.exists() or not file.read_text().endswith("}"):
            time.sleep(0.05)
        address = json.loads(file.read_text())["address"]
        with dask(tmp_path, "worker", address, "--host", "127.0.0.1", "--nthreads", "1"):
            yield scheduler, address


@pytest.mark.parametrize(
    "sent", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_killed_scheduler_is_said_within_30_s_and_the_checkpoint_stands(
    scan, tmp_path, elsewhere, sent
):
    scheduler, address = elsewhere
    initial = [w for name, value in POOR.items() for w in ("--initial", f"{name}={value}")]
    words = ["fit", scan.path, "--model", "laminar_flow", "--gap", "200 um", *initial]
    words += ["--output", "result", "--memory", "stream"]
    program = start(*words, "--scheduler", address, folder=tmp_path)
    wait_for_pass(program, 2)
    scheduler.send_signal(sent)
    said = finish(program, seconds=30)
    assert program.returncode == 2, said
    assert "error: the connection to the scheduler is lost" in said
    assert "Traceback" not in said
    again = start(*words, "--resume", folder=tmp_path)
    assert passes(finish(again))[0] >= 2
    assert again.returncode in (0, 3)
