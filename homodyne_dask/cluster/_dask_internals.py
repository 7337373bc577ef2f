"""Uses of undocumented parts of dask and distributed, seen in versions 2026.3.0 to 2026.8.0.

Each function says what it is needed for and which public call comes closest; no result depends on it.
"""

import logging
import sys
import threading
from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import distributed.client
import distributed.comm
import distributed.core
import distributed.scheduler
from dask.typing import Key
from distributed import Scheduler, Status, Worker


def error_classes(module: Any, *names: str) -> tuple[type[BaseException], ...]:
    """Return the classes, not exported, that a module has; a missing one reaches the user as Dask's error."""
    return tuple(vars(module)[name] for name in names if name in vars(module))


NO_WORKER = error_classes(distributed.scheduler, "NoWorkerError", "NoValidWorkerError")
CONNECTION_LOST = (
    CancelledError,
    *error_classes(distributed.client, "FutureCancelledError", "ClosedClientError"),
    *error_classes(distributed.comm, "CommClosedError"),
)
_NOT_CONNECTED = "Timed out trying to connect to ", "Timed out during handshake"
"""First words of an OSError for an address that nobody answers at; no class of Dask tells it from others."""


def connection_lost(error: BaseException) -> bool:
    no_answer = isinstance(error, OSError) and str(error).startswith(_NOT_CONNECTED)
    return no_answer or isinstance(error, CONNECTION_LOST)


@contextmanager
def lost_connections_not_logged() -> Iterator[None]:
    """Keep from the log, for the length of a `with`, Dask's tracebacks of a connection that is lost.

    The error that is raised says it in a sentence. Public: none; the name of the logger is that of a module.
    Where it differs the tracebacks are logged.
    """

    def to_log(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return error is None or not connection_lost(error)

    logger = logging.getLogger("distributed.client")
    logger.addFilter(to_log)
    try:
        yield
    finally:
        logger.removeFilter(to_log)


def thread_is_elsewhere(loop: Any) -> bool:
    """Return whether a loop, which calls itself running, runs in a thread that stayed before a fork."""
    number = getattr(loop.asyncio_loop, "_thread_id", None)
    return number not in {None, *(thread.ident for thread in threading.enumerate())}


def drop_preference(scheduler: Scheduler, key: Key) -> None:
    """Let any worker take a task that waits for its preferred one, whatever allow_other_workers says."""
    task = scheduler.tasks[key]
    if task.loose_restrictions:
        task.worker_restrictions = None


def fail_waiting_tasks(scheduler: Scheduler) -> None:
    """Let tasks that wait for workers fail soon; public: a setting read at the start alone."""
    scheduler.no_workers_timeout = 1.0


async def refuse_worker(worker: Worker, topic: str, message: str) -> None:
    """Keep a worker that registers from all tasks, tell its scheduler why, and remove it. Public:
    Worker.log_event, which needs a registered worker, and Client.retire_workers."""
    worker.status = Status.paused
    await worker.scheduler.log_event(topic=topic, msg=message)
    await worker.scheduler.retire_workers(
        workers=[worker.address], close_workers=False, remove=True
    )


def release_scheduler(scheduler: Scheduler) -> None:
    """Remove a closed scheduler and the clients of closed ones from caches that keep them for good.

    Each scheduler with its dashboard is more than 1 MB. Public: Scheduler.close, which leaves it there.
    """
    distributed.core._expects_comm.cache_clear()  # pyright: ignore[reportFunctionMemberAccess]
    # of Python 3.13.0 and 3.13.1: the values of the cache hold the clients that are its weak keys
    vars(vars(distributed.Client)["_register_plugin"]).get("_method_cache", {}).clear()
    dashboard = sys.modules.get("distributed.dashboard.scheduler")
    for cell in dashboard.template_variables.__closure__ if dashboard else ():
        if isinstance(cell.cell_contents, dict):
            cell.cell_contents.pop(scheduler, None)
