"""What the workers of a local cluster are as processes, and which of them did what."""

import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from distributed import SchedulerPlugin

import homodyne_dask as hd
from homodyne_dask.cluster.local import local_cluster
from homodyne_dask.fitting.events import on_pass
from tests.synthetic import FLOW

POOR = dict(zip(hd.LAMINAR_FLOW.names, FLOW * [1.6, 0.5, 1, 0.4, 0.5, 1, 1], strict=True))


def disturbed(scan, client, disturb: Callable[[int], None], memory="stream", callbacks=(), **more):
    """Fit while `disturb` is called, in a thread of its own, as each next pass begins.

    It ends before the pass after that one begins. more: other options of `fit`.
    """
    threads: list[threading.Thread] = []

    def after(event):
        join()
        threads.append(threading.Thread(target=disturb, args=(event.number,)))
        threads[-1].start()

    def join() -> None:
        for thread in threads:
            thread.join()

    given = {"gap": "200 um", "initial": POOR, "callbacks": [on_pass(after), *callbacks]}
    try:
        return hd.fit(scan, hd.LAMINAR_FLOW, client=client, memory=memory, **given, **more)
    finally:
        join()


def nannies(client) -> dict[int, psutil.Process]:
    """The processes that a cluster's workers are children of, by the workers' names."""
    held = list(client.cluster.workers.items())
    return {name: psutil.Process(worker.process.pid) for name, worker in held if worker.process}


def everything(client) -> list[psutil.Process]:
    return [p for nanny in nannies(client).values() for p in (nanny, *children(nanny))]


def processes(client) -> list[psutil.Process]:
    return list(by_address(client).values())


def by_address(client) -> dict[str, psutil.Process]:
    """The worker processes that the scheduler knows and that are alive, by address."""
    addresses = {w.name: w.address for w in list(client.cluster.scheduler.workers.values())}
    alive = {}
    for name, nanny in nannies(client).items():
        for child in children(nanny):
            with suppress(psutil.NoSuchProcess):
                if name in addresses and "spawn_main" in " ".join(child.cmdline()):
                    alive[addresses[name]] = child
    return alive


def shared_memory(client) -> set[Path]:
    """The files of the system's shared memory that a local cluster's processes hold."""
    paths: set[str] = set()
    for process in everything(client):
        with suppress(psutil.NoSuchProcess):
            paths |= {m.path for m in process.memory_maps() if m.path.startswith("/dev/shm/")}
    return set(map(Path, paths))


def children(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return process.children(recursive=True)
    return []


def busy(client, named: str = "gram-") -> list[str]:
    """The addresses of the workers that hold a task, of a pass unless said otherwise."""
    workers = list(client.cluster.scheduler.workers.items())
    return [at for at, w in workers if any(named in str(task.key) for task in list(w.processing))]


def when_busy(client, seconds: float = 5) -> None:
    """Return when a worker holds a task of a pass, or after some seconds without one."""
    until = time.monotonic() + seconds
    while not busy(client) and time.monotonic() < until:
        time.sleep(0.001)


class Given(SchedulerPlugin):
    """Which workers each task of a pass was given to, one after another."""

    def __init__(self, client) -> None:
        self.scheduler = client.cluster.scheduler
        self.workers: dict[str, list[str]] = defaultdict(list)
        self.scheduler.add_plugin(self, name="given")

    def transition(self, key, start, finish, *args, **kwargs) -> None:
        if str(key).startswith("gram-") and finish == "processing":
            self.workers[str(key)].append(self.scheduler.tasks[key].processing_on.address)

    def again(self) -> dict[str, list[str]]:
        """The tasks done more than once, with the workers that did not do them last."""
        return {key: found[:-1] for key, found in self.workers.items() if len(found) > 1}


@contextmanager
def workers(processes: int, doomed: str = ""):
    """Workers, one of which is killed while it computes a task of this name."""
    killed: list[int] = []
    with local_cluster(processes=processes, threads=1) as client:
        client.wait_for_workers(processes, timeout=120)
        pids = client.run(os.getpid)

        def kill() -> None:
            until = time.monotonic() + 30
            while time.monotonic() < until and not killed:
                for address in busy(client, doomed)[:1]:
                    killed.append(pids[address])
                    os.kill(pids[address], signal.SIGKILL)

        killer = threading.Thread(target=kill)
        if doomed:
            killer.start()
        yield client
        if doomed:
            killer.join()
            assert len(killed) == 1
            assert not psutil.pid_exists(killed[0])
