"""Uses of undocumented parts of dask and distributed, seen in versions 2026.3.0 to 2026.8.0.

The page of fits has its own in `apps/dashboard/_scheduler_internals.py`.

Each function says what it is needed for and which public call comes closest. Where a version lacks
such a part, that is logged once and a slower or larger way is taken; no result depends on it.
"""

import importlib
import logging
import sys
from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, cast

from dask.typing import Key
from distributed import Client, Scheduler, Status, Worker, core
from distributed import scheduler as scheduler_module
from tornado.web import Application

from homodyne_dask.errors import PackageError, require_package

LOG = logging.getLogger(__name__)
_REPORTED: set[str] = set()


def report_missing(part: str, instead: str) -> None:
    """Log once per process that distributed lacks a part, and what happens instead."""
    if part not in _REPORTED:
        _REPORTED.add(part)
        LOG.warning("distributed %s has no %s: %s", version("distributed"), part, instead)


@contextmanager
def _reported_if_missing(part: str, instead: str) -> Iterator[None]:
    """Report a part that is missing inside the `with`, and continue after it."""
    try:
        yield
    except PackageError as e:
        LOG.warning("%s", e)
    except Exception as e:
        LOG.debug("%s: %s", part, e, exc_info=True)
        report_missing(part, instead)


# ------------------------------------------------------------------ what Dask raises


def error_classes(module: str, *names: str) -> tuple[type[BaseException], ...]:
    """Return the error classes of a module that exist; () where the module does not.

    They are raised by public calls but not exported. A missing one reaches the user as Dask's error.
    """
    try:
        loaded = importlib.import_module(module)
    except ImportError:
        return ()
    return tuple(vars(loaded)[name] for name in names if name in vars(loaded))


NO_WORKER = error_classes("distributed.scheduler", "NoWorkerError", "NoValidWorkerError")
_CONNECTION_LOST = (
    CancelledError,
    *error_classes("distributed.client", "FutureCancelledError", "ClosedClientError"),
    *error_classes("distributed.comm.core", "CommClosedError"),
)
_NOT_CONNECTED = "Timed out trying to connect to ", "Timed out during handshake"
"""First words of an OSError for an address that nobody answers at; no class of Dask tells it from others."""


def connection_lost(error: BaseException) -> bool:
    """Return whether an error of Dask says that the scheduler can be reached no longer.

    Public: none; the classes are not exported. Unknown ones reach the user as Dask's error.
    """
    told = isinstance(error, OSError) and str(error).startswith(_NOT_CONNECTED)
    return told or isinstance(error, _CONNECTION_LOST)


@contextmanager
def lost_connections_not_logged() -> Iterator[None]:
    """Keep from the log, for the length of a `with`, Dask's tracebacks of a connection that is lost.

    The error that is raised says it in a sentence. Public: none; the name of the logger is that of a module.
    Where it differs the tracebacks are logged.
    """

    def heard(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return error is None or not connection_lost(error)

    logger = logging.getLogger("distributed.client")
    logger.addFilter(heard)
    try:
        yield
    finally:
        logger.removeFilter(heard)


# ------------------------------------------------------------------ in the scheduler


def known_workers(client: Client) -> dict[str, Any]:
    """Return what the scheduler says of each of its workers, by address; raises what Dask raises.

    Public: Client.scheduler_info, which returns what the client holds: at times without the workers.
    """
    sync, scheduler = cast(Any, client.sync), cast(Any, client.scheduler)
    if scheduler is None:
        raise CancelledError("the client is closed")
    return sync(scheduler.identity, n_workers=-1)["workers"]


def release_scheduler(scheduler: Scheduler) -> None:
    """Remove a closed scheduler and the client of its cluster from the caches that hold them.

    Public: Scheduler.close, which leaves them there. Otherwise each closed scheduler of this process
    keeps about a megabyte.
    """
    instead = "closed schedulers stay in memory, about a megabyte each"
    with _reported_if_missing("core._expects_comm", instead):
        core._expects_comm.cache_clear()  # its keys are methods
    with _reported_if_missing("Client._register_plugin", instead):
        # of Python 3.13.0 and 3.13.1: the cache's values hold its weak keys
        cache = vars(vars(Client)["_register_plugin"]).get("_method_cache", {})
        cache.clear()
    dashboard = sys.modules.get("distributed.dashboard.scheduler")
    if dashboard is not None:
        with _reported_if_missing("dashboard.scheduler.template_variables", instead):
            for cell in dashboard.template_variables.__closure__:
                if isinstance(cell.cell_contents, dict):
                    cell.cell_contents.pop(scheduler, None)
    with _reported_if_missing("Scheduler.local_directory", instead):
        # its folder was on the path of imports, whose cache has an entry for it
        sys.path_importer_cache.pop(scheduler.local_directory, None)
    importlib.invalidate_caches()


async def add_for_new_workers(scheduler: Scheduler, name: str, plugin: bytes) -> None:
    """Send a pickled plugin to every worker that registers from now on.

    Public: Client.register_plugin, which also sends it to the present workers; that is what
    happens where the part is missing.
    """
    try:
        scheduler.worker_plugins[name] = plugin
    except (AttributeError, TypeError):
        report_missing("Scheduler.worker_plugins", "all workers are examined again")
        await scheduler.register_worker_plugin(None, plugin, name, idempotent=False)


def remove_for_new_workers(scheduler: Scheduler, name: str) -> None:
    """Stop sending a plugin to new workers.

    Public: Client.unregister_worker_plugin, which also asks every worker to remove it.
    """
    with _reported_if_missing("Scheduler.worker_plugins", "workers that join are still examined"):
        scheduler.worker_plugins.pop(name, None)


def preferences_can_be_dropped() -> bool:
    """Return whether `drop_preference` works here; else tasks are sent without preferred workers."""
    state = vars(scheduler_module).get("TaskState")
    if hasattr(state, "worker_restrictions") and hasattr(state, "loose_restrictions"):
        return True
    report_missing("TaskState.worker_restrictions", "workers read data that others have in memory")
    return False


def drop_preference(scheduler: Scheduler, key: Key) -> None:
    """Let any worker take a task whose preferred worker was given with allow_other_workers.

    Public: Client.submit(allow_other_workers=True), which has no effect on a task that became ready
    while there was no worker: it waits for its preferred one.
    """
    with _reported_if_missing("Scheduler.tasks", "tasks may wait for a worker that has left"):
        task = scheduler.tasks[key]
        if task.loose_restrictions:
            task.worker_restrictions = None


def forget_spans(scheduler: Scheduler, prefix: str, most: int) -> None:
    """Remove finished spans whose names begin with a prefix, but for the latest `most`.

    Public: distributed.span, which keeps every span as long as the scheduler lives.
    """
    with _reported_if_missing("spans extension", "a scheduler keeps 10 kB per pass"):
        spans: Any = scheduler.extensions["spans"]
        ours = [root for root in spans.root_spans if root.name[0].startswith(prefix)]
        for root in filter(lambda root: root.done, ours[: max(len(ours) - most, 0)]):
            spans.root_spans.remove(root)
            for span in list(root.traverse_spans()):
                del spans.spans[span.id]
                tags = [(spans.spans_search_by_tag, tag) for tag in span.name]
                for index, key in [(spans.spans_search_by_name, span.name), *tags]:
                    index[key].remove(span)
                    if not index[key]:
                        del index[key]


def fail_waiting_tasks(scheduler: Scheduler) -> None:
    """Let tasks that wait for workers fail within a second.

    Public: the configuration distributed.scheduler.no-workers-timeout, read at the scheduler's start;
    its time passes where the part is missing.
    """
    if not hasattr(scheduler, "no_workers_timeout"):
        report_missing("Scheduler.no_workers_timeout", "work waits the full timeout for workers")
        return
    scheduler.no_workers_timeout = 1.0


class LateDashboard(Application):
    """Loads the pages of Dask's dashboard, and Bokeh with them, when a browser first asks for one.

    Bokeh loads for most of a second. Public: the option `dashboard` of a scheduler, which loads them as
    it starts. Where a part is missing, the scheduler has its page of fits alone.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self.scheduler, self.pages = scheduler, ["status"]

    def find_handler(self, request: Any, **kwargs: Any) -> Any:
        """Return the handler of a request that no other page of the scheduler takes."""
        application = self.scheduler.http_application
        application.applications.remove(self)
        with _reported_if_missing("dashboard.scheduler", "only the dashboard of fits is available"):
            require_package("Dask's dashboard", "bokeh", "view")
            from distributed.dashboard.scheduler import connect, template_variables

            connect(application, self.scheduler.http_server, self.scheduler)
            known = template_variables(self.scheduler)["pages"]
            known += [page for page in self.pages if page not in known]
            self.pages[:] = known
        return application.find_handler(request, **kwargs)


# ------------------------------------------------------------------ in a worker that registers


async def registered_workers(worker: Worker) -> dict[str, dict[str, Any]]:
    """Return what the scheduler of a worker that registers knows of all workers, by address.

    Public: Client.scheduler_info; a worker cannot have a client before it is registered. Where the
    part is missing the worker is examined as if it were alone on its machine.
    """
    with _reported_if_missing("Scheduler.identity", "workers that join are examined one by one"):
        known: Any = await worker.scheduler.identity(n_workers=-1)
        return known["workers"]
    return {}


def memory_limit(worker: Worker) -> int:
    """Return the bytes a worker may use, 0 for no limit or an unknown one.

    Public: Client.scheduler_info (see `registered_workers`).
    """
    with _reported_if_missing(
        "Worker.memory_manager", "the memory of workers that join is not examined"
    ):
        return worker.memory_manager.memory_limit or 0
    return 0


async def refuse_worker(worker: Worker, topic: str, message: str) -> None:
    """Keep a worker that registers from all tasks, tell its scheduler why, and remove it.

    Public: Worker.log_event, which needs a registered worker, and Client.retire_workers. Where the
    calls are missing the worker stays, paused.
    """
    worker.status = Status.paused
    try:
        await worker.scheduler.log_event(topic=topic, msg=message)
        await worker.scheduler.retire_workers(
            workers=[worker.address], close_workers=False, remove=True
        )
    except (AttributeError, TypeError, KeyError):
        report_missing("Worker.scheduler", "workers that are refused stay connected, but paused")
        LOG.warning("%s", message)
