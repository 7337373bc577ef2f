"""Where the time of a fit goes: Dask's report of the cluster, and a JAX trace of one process."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from distributed import Client, performance_report

from homodyne_dask.cluster.connect import closing_logged, failures_logged
from homodyne_dask.cluster.local import known_workers
from homodyne_dask.errors import OptionError, require_package
from homodyne_dask.store.files import links_below, write_atomic

REPORT = "dask-report.html"
TRACE = "jax"
"""Folder of the trace, as xprof and TensorBoard expect it; Perfetto opens its trace.json.gz."""
TRACE_SECONDS = 1.0
"""Length of the trace: it grows by 20 MB per second and thread, and makes that second a fifth slower."""

Files = dict[str, bytes]


@contextmanager
def profiled(client: Client | None, folder: str | Path) -> Iterator[Callable[..., None]]:
    """Profile the `with` block into a folder; yields a function to call after each pass.

    dask-report.html shows the whole time on the client's cluster. The first call of the function
    begins the trace in jax/, after the first pass, when everything is compiled: TRACE_SECONDS of one
    worker, or of this process where there is no client.
    """
    if client is not None:
        require_package("Dask's report", "bokeh", "view")
    target, recording = Path(folder), list[Future[Files]]()
    if link := next(links_below(target), None):
        raise OptionError(
            f"{link} is a link to {link.resolve()}: give another folder for the profile"
        )
    target.mkdir(parents=True, exist_ok=True)

    def trace(*_: object) -> None:
        if not recording:
            recording.append(pool.submit(_recorded, client))

    with ThreadPoolExecutor(1) as pool, ExitStack() as held:
        if client is not None:
            held.enter_context(client.as_current())
            report = performance_report(str(target / REPORT), stacklevel=5, mode="inline")
            held.enter_context(closing_logged(report))
        yield trace
        files: Files = {}
        with failures_logged("no trace was recorded"):
            files = recording[0].result() if recording else {}
        for name, content in files.items():
            path = target / TRACE / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, content)


def _recorded(client: Client | None) -> Files:
    """Return the files of a trace, by path; none where the worker went away meanwhile."""
    if client is None:
        return _record(TRACE_SECONDS)
    worker = next(iter(known_workers(client)))
    files: Any = client.run(_on_worker, TRACE_SECONDS, workers=[worker], on_error="ignore")
    return files.get(worker, {})


async def _on_worker(seconds: float) -> Files:
    """Record beside the worker's event loop, which must go on."""
    return await asyncio.to_thread(_record, seconds)


def _record(seconds: float) -> Files:
    import jax

    from homodyne_dask.kernels.devices import started

    started()  # as the profiler would, but without memory of GPUs
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # Dask's report has the Python functions
    with TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            time.sleep(seconds)
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
