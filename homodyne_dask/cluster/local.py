"""Workers on this machine, errors of Dask as ClusterError, and a folder for what Dask writes beside its work.

Dask puts that folder first on the path of imports. Its default, dask-scratch-space in the folder for
temporary files, belongs on a shared machine to whoever made it first: their modules would be run.
"""

import asyncio
import atexit
import json
import math
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import dask.config
import psutil
from dask.utils import parse_timedelta
from distributed import Client, Future, KilledWorker, Scheduler, Security, SpecCluster, as_completed
from distributed.deploy.spec import ProcessInterface

from homodyne_dask.cluster import connect as tls
from homodyne_dask.cluster._dask_internals import (
    CONNECTION_LOST,
    NO_WORKER,
    connection_lost,
    fail_waiting_tasks,
    release_scheduler,
    thread_is_elsewhere,
)
from homodyne_dask.cluster.connect import (
    closing_logged,
    dashboard_of,
    failures_logged,
    with_timeout,
)
from homodyne_dask.cluster.workers import (
    IDLE_WORKER_BYTES,
    MONITOR_SETTINGS,
    SCHEDULER_SETTINGS,
    JobCluster,
    Workers,
    available_memory,
    local_workers,
    monitor_environment,
    too_little,
    worker_environment,
)
from homodyne_dask.errors import (
    ClusterError,
    OptionError,
    first_cause,
    require_count,
    require_type,
    shown,
)
from homodyne_dask.kernels.gpus import environments_of_gpus
from homodyne_dask.machine.cores_and_cgroup_limits import system_text
from homodyne_dask.machine.private_folder import make_private
from homodyne_dask.machine.running_code import code_digest, digest_of_sources, python_command
from homodyne_dask.surroundings import examined, in_words, last_words, loopback, shared_memory
from homodyne_dask.text import size

SCRATCH = "HOMODYNE_DASK_SCRATCH"
"""Environment variable of workers: the folder, which they remove at their end."""
DRIVER = "HOMODYNE_DASK_DRIVER"
"""Environment variable of workers on this machine: the number of the process that started their nanny."""
_PREFIX = "homodyne-dask-"
_OF_TLS = ("tls_ca_file", "tls_worker_cert", "tls_worker_key")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new folder below temporary-directory of Dask's configuration, removed afterwards."""
    around = Path(dask.config.get("temporary-directory", None) or tempfile.gettempdir())
    make_private(around.absolute())
    with tempfile.TemporaryDirectory(
        prefix=_PREFIX, dir=around.absolute(), ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


def dask_setup(_nanny: Any) -> None:
    """Remove the folder when this process ends; preloaded by nannies.

    One on this machine shares the folder with its driver, and ends soon after it, however that ended; its
    worker ends with it: workers of Dask watch a pipe to their nanny. A closed connection is no such sign: a
    worker that has not connected yet would wait for its scheduler for ever.
    """
    remove = partial(shutil.rmtree, os.environ[SCRATCH], ignore_errors=True)

    def end_with(driver: int) -> None:
        while os.getppid() == driver:
            time.sleep(1.0)
        remove()
        os._exit(1)

    if driver := os.environ.get(DRIVER):
        threading.Thread(target=end_with, args=(int(driver),), daemon=True).start()
    else:
        atexit.register(remove)


def script_lines(around: str | None) -> list[str]:
    place = around or dask.config.get("temporary-directory", None) or "${TMPDIR:-/tmp}"
    return [
        f"(umask 077; mkdir -p {place})",
        f"{SCRATCH}=$(mktemp -d -p {place} {_PREFIX}XXXXXXXX) || exit 1",
        f"export {SCRATCH}",
    ]


NO_PROGRESS_TIMEOUT = 300.0
"""Seconds without any finished task after which a pass fails."""
FIRST_WORKER_TIMEOUT = 60.0
FIRST_LOOK = 0.5
"""Seconds after which the workers are asked whether they are paused, and later whether they still are."""
_WAIT = "DASK_HOMODYNE_DASK__FIRST_WORKER=10m"
ANSWER_TIMEOUT = 10.0
"""Seconds to wait for a scheduler that is only asked whether it answers, or told that a fit has ended."""


def time_limit(name: str, seconds: float) -> float:
    setting = dask.config.get(f"homodyne-dask.{name}", seconds)
    try:
        return float(parse_timedelta(setting, "s"))
    except (KeyError, TypeError, ValueError):
        raise OptionError(
            f"homodyne-dask.{name} = {shown(setting)} of Dask's configuration is not a time: write 5m"
        ) from None


class _Worker(ProcessInterface):
    """A worker under a nanny, started by command, so that a script needs no main guard.

    Both end soon after this process, however it ended. Closing ends both, but not the process that then
    removes their semaphores from the system's shared memory; it would warn of that, therefore -W ignore.
    """

    _cluster: Callable[[], Any]

    def __init__(self, scheduler: str, name: Any, worker_kwargs: dict[str, Any]) -> None:
        self.scheduler, self.name, self.worker_kwargs = scheduler, name, worker_kwargs
        self.process: asyncio.subprocess.Process | None = None
        self.log = Path(worker_kwargs["local_directory"], f"worker-{name}.log")
        super().__init__(scheduler, name)

    @property
    def ended(self) -> bool:
        return self.process is not None and self.process.returncode is not None

    async def start(self) -> None:
        preload = [__name__, *dask.config.get("distributed.nanny.preload", [])]
        options = self.worker_kwargs | {"name": self.name, "preload_nanny": preload}
        spec = json.dumps({"cls": "distributed.Nanny", "opts": options})
        watched = {SCRATCH: options["local_directory"], DRIVER: str(os.getpid())}
        if dask.config.get("logging-file-config", None) is None:  # Dask takes only one of both
            watched["DASK_LOGGING__DISTRIBUTED"] = "error"  # silence_logs comes after a preload
        command = python_command("-W", "ignore", "-m", "dask", "spec", self.scheduler)
        environment = os.environ | monitor_environment() | watched
        with self.log.open("wb") as log:
            self.process = await asyncio.create_subprocess_exec(
                *command, "--spec", spec, env=environment, stderr=log
            )
        self.watched = asyncio.create_task(self._watch(self.process))
        await super().start()

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        await process.wait()
        if (cluster := self._cluster()) and cluster.given_up:
            fail_waiting_tasks(cluster.scheduler)

    async def close(self) -> None:
        if self.process and not self.ended:
            children = psutil.Process(self.process.pid).children(recursive=True)
            self.process.kill()
            for child in children:
                with suppress(psutil.NoSuchProcess):
                    if "resource_tracker" not in " ".join(child.cmdline()):
                        child.kill()
            await self.process.communicate()
        await super().close()


class _Cluster(SpecCluster, JobCluster):
    task = math.inf

    @property
    def given_up(self) -> bool:
        return bool(self.workers) and all(worker.ended for worker in self.workers.values())

    def missing(self) -> str:
        """Return what those that have ended said at last, and what is wrong around them; '' for none."""
        ended = [worker for worker in self.workers.values() if worker.ended]
        if not ended:
            return ""
        variables = sorted(name for name in os.environ if name.startswith("DASK_DISTRIBUTED__"))
        settings = ", ".join(f"{name}={shown(os.environ[name])}" for name in variables)
        words = sorted({last_words(system_text(worker.log)) for worker in ended})
        around = in_words(examined()), settings and f"the environment sets {settings}"
        return "; ".join(filter(None, [*words, *around]))


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
    _require_startable()
    counts = {"processes": processes, "threads": threads, "memory": memory, "gpus": gpus or None}
    for name, value in counts.items():
        require_count(name, value)
    if dashboard is not None:
        require_type("dashboard", dashboard, str, "an address, such as '127.0.0.1:8787', or None")
    if security is not None:
        require_type("security", security, Security, "TLS settings as a distributed.Security")
    planned = local_workers(gpus, processes, threads, memory)
    # to Dask 0 bytes are no limit, and a nanny starts a worker that is over its limit again, without end
    if planned.memory_each < IDLE_WORKER_BYTES:
        raise too_little("a worker", IDLE_WORKER_BYTES, planned.memory_each)
    with ExitStack() as held:
        folder = held.enter_context(scratch_folder())
        held.enter_context(dask.config.set(SCHEDULER_SETTINGS | MONITOR_SETTINGS))
        if security is None and dask.config.get("distributed.comm.require-encryption"):
            security = held.enter_context(tls.new_key(folder / "key"))
        workers = _specifications(planned, gpus, folder, security)
        scheduler = _common(folder, security) | {
            "security": security,
            "dashboard": dashboard is not None,
            "dashboard_address": dashboard,
        }
        try:
            cluster = _Cluster(
                workers=dict(enumerate(workers)),
                scheduler={"cls": Scheduler, "options": scheduler},
                worker=workers[0],
                name="homodyne_dask",
                security=security,
                silence_logs=40,  # pyright: ignore[reportArgumentType] - a level, as in LocalCluster
            )
        except RuntimeError as e:
            raise ClusterError(
                f"no scheduler can be started on this machine ({first_cause(e)}): see `homodyne-dask doctor`"
            ) from e
        cluster.expected = planned
        held.callback(_release, cluster.scheduler)
        with closing_logged(cluster), closing_logged(Client(cluster)) as client:
            yield client


def _require_startable() -> None:
    """Raise ClusterError where no worker would start, or with other code than that of this process."""
    if wrong := in_words([loopback(), shared_memory()]):
        raise ClusterError(wrong)
    if (now := digest_of_sources()) != code_digest():
        raise ClusterError(
            f"the files of homodyne-dask have changed since they were loaded (digest {now}, previously "
            f"{code_digest()}), and new workers would use the new ones: restart this program"
        )


def _common(folder: Path, security: Security | None) -> dict[str, Any]:
    protocol = "tls://" if security else "tcp://"
    return {"host": "127.0.0.1", "protocol": protocol, "local_directory": str(folder)}


def _specifications(
    workers: Workers, gpus: int, folder: Path, security: Security | None
) -> list[dict[str, Any]]:
    """Return what Dask starts each worker from, as plain values: they are sent as JSON."""
    files = {name: getattr(security, name) for name in _OF_TLS} if security else {}
    options = _common(folder, security) | {
        "nthreads": workers.threads_each,
        "memory_limit": workers.memory_each,
        "silence_logs": 40,
        "dashboard_address": None,
        "dashboard": False,
        "security": files | {"require_encryption": True} if security else None,
    }
    environments = environments_of_gpus(gpus) or [{}] * workers.processes
    threads = worker_environment(workers.threads_each)
    return [
        {"cls": _Worker, "options": {"worker_kwargs": options | {"env": threads | environment}}}
        for environment in environments
    ]


def _release(scheduler: Any) -> None:
    with failures_logged("a closed scheduler stays in memory"):
        release_scheduler(scheduler)


@contextmanager
def cluster_errors(client: Client) -> Iterator[None]:
    """Turn errors of Dask when tasks cannot be finished into a ClusterError with the reason."""
    began = time.monotonic()
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
            measured = e.args and isinstance(e.args[0], float)
            silent = e.args[0] if measured else time.monotonic() - began
            raise ClusterError(_no_progress(client, silent)) from e
        raise


def _no_progress(client: Client, seconds: float) -> str:
    try:
        workers = with_timeout(ANSWER_TIMEOUT, known_workers, client)
    except (OSError, *CONNECTION_LOST):
        return (
            f"the scheduler has sent no message for {seconds:.0f} s and does not answer: it has stopped, or "
            f"its machine cannot be reached; start a scheduler, then fit again with --resume"
        )
    nothing = f"no task finished within {seconds:.0f} s{_missing_workers(client)}"
    if paused := _paused(workers):
        return f"{nothing}: {paused}"
    link = with_timeout(ANSWER_TIMEOUT, dashboard_of, client)
    return f"{nothing}: check the workers {f'on the dashboard at {link}' if link else 'and their logs'}"


def known_workers(client: Client) -> dict[str, Any]:
    """Return what the scheduler says of each worker; what the client holds is at times without workers."""
    if (scheduler := cast(Any, client.scheduler)) is None:
        raise asyncio.CancelledError("the client is closed")
    return cast(Any, client.sync)(scheduler.identity, n_workers=-1)["workers"]


def answered(client: Client, call: Any, *arguments: Any, **options: Any) -> Any:
    with cluster_errors(client):
        limit = time_limit("no-progress", NO_PROGRESS_TIMEOUT)
        return with_timeout(limit, call, *arguments, **options)


def gathered(client: Client, futures: Sequence[Future]) -> list[Any]:
    with cluster_errors(client):
        results = dict(finished(client, futures, math.inf))
    return [results[future] for future in futures]


class _Patience:
    """How long tasks are waited for: without one that ends, without a worker, and with paused ones."""

    def __init__(self, limit: float, without_workers: float) -> None:
        self.limit, self.without_workers = limit, without_workers
        self.pause, self.was_paused = FIRST_LOOK, False
        self.last_result = self.workers_seen = time.monotonic()

    def require(self, workers: Mapping[str, Any]) -> None:
        """Raise where waiting on is of no use; else set the seconds until workers are asked for again."""
        # a pause may end where data alone filled the memory: it is one for ever the second time
        if (paused := _paused(workers)) and self.was_paused:
            raise ClusterError(paused) from None
        now = time.monotonic()
        silent = now - self.last_result
        self.workers_seen = now if workers else self.workers_seen
        if silent > self.limit or now - self.workers_seen > self.without_workers:
            raise TimeoutError(silent) from None
        self.was_paused = bool(paused)
        longer = min(2 * self.pause, self.without_workers, self.limit - silent + 0.01)
        self.pause = FIRST_LOOK if paused else longer


def finished(
    client: Client, futures: Iterable[Future], limit: float | None = None
) -> Iterator[tuple[Future, Any]]:
    """Yield tasks with results as they finish; TimeoutError after `limit` seconds without."""
    most = time_limit("no-progress", NO_PROGRESS_TIMEOUT)
    waiting, patience = set(futures), _Patience(most if limit is None else limit, most)
    while waiting:
        try:
            for future, result in as_completed(
                waiting, client.loop, with_results=True, timeout=patience.pause
            ):
                if isinstance(result, BaseException):  # the connection to the scheduler is lost
                    raise result
                waiting, patience.last_result = waiting - {future}, time.monotonic()
                yield future, result
        except TimeoutError:
            if any(future.status == "error" for future in waiting):  # it is that of a task
                raise
            patience.require(with_timeout(most, known_workers, client))


def _missing_workers(client: Client) -> str:
    jobs = job_cluster(client)
    return f"; {missing}" if jobs is not None and (missing := jobs.missing()) else ""


def job_cluster(client: Client) -> JobCluster | None:
    return client.cluster if isinstance(client.cluster, JobCluster) else None


def require_client(client: Any) -> None:
    """Raise OptionError for what is neither None nor a Dask client, or one that cannot be waited for here."""
    if client is None:
        return
    form = "the client of a cluster (`with hd.local_cluster() as client:`, or hd.connect), or leave it out"
    require_type("client", client, Client, form)
    wrong = ""
    if client.status in ("closing", "closed"):
        wrong = f"the client is closed: give {form}"
    elif thread_is_elsewhere(client.loop):
        wrong = (
            "the client belongs to the process from which this one was forked: make one here with "
            "`hd.connect`, or start processes with multiprocessing.get_context('spawn')"
        )
    elif cast(Any, client.loop).asyncio_loop.is_closed():
        wrong = "the event loop of the client has ended: make a client in the one that runs"
    elif client.asynchronous:
        wrong = (
            "the client's event loop runs in this thread, and would stand still until the end: run the call "
            "in another one, as in `await asyncio.to_thread(hd.fit, data, model, client=client)`"
        )
    if wrong:
        raise OptionError(wrong)


def workers_of(client: Client) -> Workers:
    """Return the workers of a client's cluster; for a cluster of jobs, all that it may have."""
    require_client(client)
    workers = _running(client)
    present = Workers(
        processes=len(workers),
        threads=sum(worker["nthreads"] for worker in workers),
        memory=sum(worker["memory_limit"] or 0 for worker in workers) or available_memory(),
    )
    jobs = job_cluster(client)
    return jobs.expected if jobs and jobs.expected.threads > present.threads else present


def _running(client: Client) -> list[dict[str, Any]]:
    """Return what the scheduler says of the workers that take tasks, as soon as there is one.

    Dask pauses a worker whose memory is filled: by data, or for ever by what is left of earlier tasks.
    """
    began, jobs, request = time.monotonic(), job_cluster(client), None
    longest = time_limit("first-worker", FIRST_WORKER_TIMEOUT)
    while True:
        workers = answered(client, known_workers, client)
        if running := [worker for worker in workers.values() if worker["status"] == "running"]:
            return running
        passed, given_up = time.monotonic() - began, jobs is not None and jobs.given_up
        if passed > FIRST_LOOK and (paused := _paused(workers)):
            raise ClusterError(paused)
        if given_up or passed > longest:
            why, remedy = "no more are started", "correct that"
            if not given_up:
                why = f"none joined within {passed:.0f} s"
                remedy = f"start some, or wait longer ({_WAIT})"
            raise ClusterError(
                f"the cluster has no workers, and {why}{_missing_workers(client)}: {remedy}, then fit again"
            )
        with cluster_errors(client):
            request = request or client.submit(int, key=f"first-{os.urandom(3).hex()}", pure=False)
        time.sleep(0.05)


def _paused(workers: Mapping[str, Any]) -> str:
    """Return the phrase that all workers are paused, and what fills their memory; '' where one is not."""
    used = [
        f"{size(worker['metrics'].get('memory', 0))} of {size(worker['memory_limit'] or 0)}"
        for worker in workers.values()
        if worker["status"] == "paused"
    ]
    if not used or len(used) < len(workers):
        return ""
    return (
        f"all workers are paused, for their memory is filled ({used[0]}), and take no tasks: restart them "
        f"with `client.restart()`, or give them more memory"
    )
