"""Workers on this machine, and errors of Dask as ClusterError."""

import asyncio
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import dask.config
import psutil
from dask.utils import parse_timedelta
from distributed import (
    Client,
    Future,
    KilledWorker,
    Scheduler,
    SchedulerPlugin,
    Security,
    SpecCluster,
    wait,
)
from distributed.deploy.spec import ProcessInterface

from homodyne_dask.cluster import scratch
from homodyne_dask.cluster._dask_internals import (
    CONNECTION_LOST,
    NO_WORKER,
    connection_lost,
    release_scheduler,
)
from homodyne_dask.cluster.connect import closing_logged, with_timeout
from homodyne_dask.cluster.memory import IDLE_WORKER_BYTES, available_memory, too_little
from homodyne_dask.cluster.settings import (
    MONITOR_SETTINGS,
    SCHEDULER_SETTINGS,
    monitor_environment,
    worker_environment,
)
from homodyne_dask.cluster.workers import JobCluster, Workers, local_workers
from homodyne_dask.errors import ClusterError, require_count, require_type
from homodyne_dask.kernels.gpus import environments_of_gpus
from homodyne_dask.store.processes import code_digest, digest_of_sources, python_command

NO_PROGRESS_TIMEOUT = 300.0
"""Seconds without any finished task after which a pass fails."""
FIRST_WORKER_TIMEOUT = 60.0
"""Seconds to wait for the first worker of a cluster."""
ANSWER_TIMEOUT = 10.0
"""Seconds to wait for a scheduler that is only asked whether it answers, or told that a fit has ended."""


def time_limit(what: str, seconds: float) -> float:
    """Return a time limit in seconds: homodyne-dask.<what> of Dask's configuration, or a default."""
    return parse_timedelta(dask.config.get(f"homodyne-dask.{what}", seconds), "s")


class _Worker(ProcessInterface):
    """A worker under a nanny, started by command and known to the scheduler by its cluster's name for it.

    A cluster scales by that name. Both end soon after this process, however it ended. Closing ends both,
    but not the process that then removes their semaphores from the system's shared memory; it would warn
    of that, therefore -W ignore.
    """

    def __init__(self, scheduler: str, name: Any = None, worker_kwargs: Any = None) -> None:
        self.scheduler, self.name, self.worker_kwargs = scheduler, name, worker_kwargs or {}
        self.process: asyncio.subprocess.Process | None = None
        super().__init__(scheduler, name)

    async def start(self) -> None:
        preload = [scratch.__name__, *dask.config.get("distributed.nanny.preload", [])]
        options = self.worker_kwargs | {"name": self.name, "preload_nanny": preload}
        spec = json.dumps({"cls": "distributed.Nanny", "opts": options})
        watched = {scratch.SCRATCH: options["local_directory"], scratch.DRIVER: str(os.getpid())}
        if dask.config.get("logging-file-config", None) is None:  # Dask takes only one of both
            watched["DASK_LOGGING__DISTRIBUTED"] = "error"  # silence_logs comes after a preload
        command = python_command("-W", "ignore", "-m", "dask", "spec", self.scheduler)
        self.process = await asyncio.create_subprocess_exec(
            *command, "--spec", spec, env=os.environ | monitor_environment() | watched
        )
        await super().start()

    async def close(self) -> None:
        if self.process and self.process.returncode is None:
            children = psutil.Process(self.process.pid).children(recursive=True)
            self.process.kill()
            for child in children:
                with suppress(psutil.NoSuchProcess):
                    if "resource_tracker" not in " ".join(child.cmdline()):
                        child.kill()
            await self.process.communicate()
        await super().close()


@contextmanager
def local_cluster(
    processes: int | None = None,
    threads: int | None = None,
    memory: int | None = None,
    dashboard: str | None = "127.0.0.1:0",
    security: Security | None = None,
    gpus: int = 0,
) -> Iterator[Client]:
    """Start workers on this machine for the duration of a `with` block; yields a client at once.

    processes, threads, dashboard: number of worker processes, of threads of each, and address of the
    dashboard (None: no dashboard). A plain script needs no main guard. By default there are as many threads
    as cores, 4 per process, with three quarters of the memory that this process may use. Scheduler and
    dashboard listen on the loopback address only. security: TLS settings from files; only users who can
    read them may connect. gpus: start this number of workers with one GPU each instead. Raises
    OptionError, and PlanError for too little memory.

    >>> with hd.local_cluster(threads=1) as client: hd.plan("A0123_c2.zarr", "static", client=client).model
    'static'
    """
    if (now := digest_of_sources()) != code_digest():
        raise ClusterError(
            f"the files of homodyne-dask have changed since they were loaded (digest {now}, previously "
            f"{code_digest()}), and new workers would use the new ones: restart this program"
        )
    counts = {"processes": processes, "threads": threads, "memory": memory, "gpus": gpus or None}
    for name, value in counts.items():
        require_count(name, value)
    if dashboard is not None:
        require_type("dashboard", dashboard, str, "an address, such as '127.0.0.1:8787', or None")
    if security is not None:
        require_type("security", security, Security, "TLS settings as a distributed.Security")
    made = local_workers(gpus, processes, threads, memory)
    threads, memory = made.threads_each, made.memory // made.processes
    # to Dask 0 bytes are no limit, and a nanny starts a worker that is over its limit again, without end
    if memory < IDLE_WORKER_BYTES:
        raise too_little("a worker", IDLE_WORKER_BYTES, memory)
    protocol, files = "tls://" if security else "tcp://", None
    if security is not None:  # the names of a worker's files, as they pass through a command
        names = ("tls_ca_file", "tls_worker_cert", "tls_worker_key")
        files = {"require_encryption": True} | {name: getattr(security, name) for name in names}
    worker_kwargs = {
        "host": "127.0.0.1",
        "nthreads": threads,
        "memory_limit": memory,
        "silence_logs": 40,
        "dashboard_address": None,
        "dashboard": False,
        "protocol": protocol,
        "security": files,
    }
    scheduler_options = {
        "host": "127.0.0.1",
        "protocol": protocol,
        "security": security,
        "dashboard": dashboard is not None,
        "dashboard_address": dashboard,
        "preload": ["homodyne_dask.apps.dashboard"] if dashboard is not None else [],
    }
    with (
        scratch.scratch_folder() as folder,
        dask.config.set(SCHEDULER_SETTINGS | MONITOR_SETTINGS),
    ):
        there = {"local_directory": str(folder)}
        of_gpus = environments_of_gpus(gpus) or [{}] * made.processes
        environments = [{"env": worker_environment(threads) | of_gpu} for of_gpu in of_gpus]
        options = [worker_kwargs | there | environment for environment in environments]
        workers = [{"cls": _Worker, "options": {"worker_kwargs": kwargs}} for kwargs in options]
        cluster = SpecCluster(
            workers=dict(enumerate(workers)),
            scheduler={"cls": Scheduler, "options": scheduler_options | there},
            worker=workers[0],
            name="homodyne_dask",
            security=security,
            silence_logs=40,  # pyright: ignore[reportArgumentType] - a level, as in LocalCluster
        )
        try:
            with closing_logged(cluster), closing_logged(Client(cluster)) as client:
                yield client
        finally:
            release_scheduler(cast(Scheduler, cluster.scheduler))


@contextmanager
def cluster_errors(client: Client) -> Iterator[None]:
    """Turn errors of Dask when tasks cannot be finished into a ClusterError with the reason."""
    try:
        yield
    except NO_WORKER as e:
        raise ClusterError(
            f"there have been no workers for too long ({e}{_missing_workers(client)}): start some, then fit "
            f"again with --resume"
        ) from e
    except KilledWorker as e:
        raise ClusterError(
            f"the workers cannot finish the work ({e}{_missing_workers(client)}): see the workers' logs "
            f"for the cause"
        ) from e
    except (OSError, *CONNECTION_LOST) as e:
        if connection_lost(e):
            raise ClusterError(
                "the connection to the scheduler was lost: start a scheduler, then fit again with --resume"
            ) from e
        if isinstance(e, TimeoutError):
            raise ClusterError(_no_progress(client)) from e
        raise


def _no_progress(client: Client) -> str:
    """Return in a sentence that nothing has happened for too long, and whether the scheduler answers."""
    limit = time_limit("no-progress", NO_PROGRESS_TIMEOUT)
    try:
        with_timeout(ANSWER_TIMEOUT, known_workers, client)
        link = with_timeout(ANSWER_TIMEOUT, lambda: client.dashboard_link)
    except (OSError, *CONNECTION_LOST):
        return (
            f"the scheduler has sent no message for {limit:g} s and does not answer: "
            "it has stopped, or its machine cannot be reached; start a scheduler, then fit again with "
            "--resume"
        )
    return (
        f"no task finished within {limit:g} s{_missing_workers(client)}: check the workers on the "
        f"dashboard at {link}"
    )


def known_workers(client: Client) -> dict[str, Any]:
    """Return what the scheduler says of each of its workers, by address; raises what Dask raises.

    Client.scheduler_info returns what the client holds: at times without the workers.
    """
    if (scheduler := cast(Any, client.scheduler)) is None:
        raise asyncio.CancelledError("the client is closed")
    return cast(Any, client.sync)(scheduler.identity, n_workers=-1)["workers"]


def answered(client: Client, call: Any, *given: Any, **options: Any) -> Any:
    """Return what a method of the client returns; raises ClusterError if no answer comes in time."""
    with cluster_errors(client):
        return with_timeout(time_limit("no-progress", NO_PROGRESS_TIMEOUT), call, *given, **options)


def gathered(client: Client, futures: Sequence[Future]) -> list[Any]:
    """Return the results of tasks, however long they take while the scheduler answers.

    Raises what a task raised, and ClusterError where they cannot be finished.
    """
    longest = time_limit("no-progress", NO_PROGRESS_TIMEOUT)
    with cluster_errors(client):
        while pending := [future for future in futures if future.status == "pending"]:
            try:
                wait(pending, timeout=longest)
            except TimeoutError:
                with_timeout(ANSWER_TIMEOUT, known_workers, client)
        results: Any = with_timeout(longest, client.gather, list(futures))
    return results


def add_scheduler_plugin(client: Client, plugin: SchedulerPlugin) -> None:
    """Add a plugin to a client's scheduler; raises ClusterError where that lacks this package."""
    try:
        answered(client, client.register_plugin, plugin)
    except ImportError as e:
        raise ClusterError(
            f"the scheduler cannot load homodyne_dask ({e}): start it in the environment of the fit"
        ) from e


def _missing_workers(client: Client) -> str:
    """Return which workers of a cluster of jobs are missing, as the end of a phrase."""
    jobs = job_cluster(client)
    missing = "" if jobs is None else jobs.missing()
    return missing and f"; {missing}"


def job_cluster(client: Client) -> JobCluster | None:
    """Return the cluster of jobs that a client belongs to; None for any other cluster."""
    return client.cluster if isinstance(client.cluster, JobCluster) else None


def require_client(client: object) -> None:
    """Raise OptionError for what is neither a Dask client nor None."""
    if client is not None:
        how = "`with hd.local_cluster() as client:`, or hd.connect"
        form = f"the client of a cluster ({how}), or leave it out"
        require_type("client", client, Client, form)


def workers_of(client: Client) -> Workers:
    """Return the workers of a client's cluster; for a cluster of jobs, all that it may have.

    Raises ClusterError when no worker connects in time, OptionError for what is not a client.
    """
    require_client(client)
    _wait_for_one(client)
    workers = answered(client, known_workers, client).values()
    present = Workers(
        processes=len(workers),
        threads=sum(worker["nthreads"] for worker in workers),
        memory=sum(worker["memory_limit"] or 0 for worker in workers) or available_memory(),
    )
    jobs = job_cluster(client)
    expected = present if jobs is None else jobs.expected
    return expected if expected.threads > present.threads else present


def _wait_for_one(client: Client) -> None:
    longest = time_limit("first-worker", FIRST_WORKER_TIMEOUT)
    until, jobs = time.monotonic() + longest, job_cluster(client)
    while not answered(client, known_workers, client):
        if time.monotonic() > until or (jobs is not None and jobs.given_up):
            raise ClusterError(
                f"the cluster has no workers, and none joined within {longest:g} "
                f"s{_missing_workers(client)}: "
                f"start some, then fit again"
            )
        time.sleep(0.05)
