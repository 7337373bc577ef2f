"""One fit of many: its data and options, the folder of its result, and what becomes of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from homodyne_dask.fitting.events import Callback, Event
from homodyne_dask.fitting.fit import fit
from homodyne_dask.models import Model
from homodyne_dask.results.result_classes import FitResult
from homodyne_dask.store.scan import Scan
from homodyne_dask.sweep.layout import IN_PROCESS_PAIRS

if TYPE_CHECKING:
    from distributed import Client


class Job(NamedTuple):
    """One of many fits."""

    name: str
    scan: Callable[[], Scan]
    """Returns the data; raises for a damaged store."""
    options: Mapping[str, Any]
    """Those of `fit`."""
    folder: Path
    """Of its result."""
    at: Mapping[str, float] = {}
    """Place of a part of a scan: q [1/Å] and age [s], or age, from and to [s]; empty for a whole store."""
    written: bool = True
    """Whether the result is written into its folder."""
    checkpoint: Path | None = None
    """By default in its folder."""
    overwrite: bool = False
    pictures: str = "png"
    """Format of the figures, beside PNG; '' for none."""
    nexus: bool = False
    """Whether `result.nx.h5` is written."""
    compared: tuple[dict[str, Any], ...] = ()
    """Rows of the comparison that chose the model, for the result."""
    made: FitResult | None = None
    """Its result where it was made together with others: it is only written."""


class FitOutput(NamedTuple):
    """What became of a job: a result, or an error."""

    result: FitResult | None = None
    error: Exception | None = None
    files: tuple[Path, ...] = ()
    """Those written."""
    events: tuple[Event, ...] = ()
    """Those of a fit that a worker made."""


def is_small(scan: Scan) -> bool:
    """Return whether a fit of the scan is small enough for one process."""
    frames = int(scan.use.sum())
    return frames * (frames - 1) // 2 * len(scan.bins) < IN_PROCESS_PAIRS


def fit_job(
    job: Job,
    model: Model,
    client: "Client | None" = None,
    callbacks: Sequence[Callback] = (),
    *,
    resume: bool = False,
    saved: bool = True,
) -> tuple[FitResult, tuple[Path, ...]]:
    """Make the fit of a job, if it has no result yet; return the result and the files written.

    saved: whether it has a checkpoint.
    """
    scan, result = job.scan(), job.made
    given = {"client": client, "callbacks": callbacks, **job.options}
    if not job.written:
        return result or fit(scan, model, **given), ()
    from homodyne_dask.results.files import folder as folders  # with figures and pages

    checkpoint = job.checkpoint or folders.checkpoint_in(job.folder)
    with folders.claimed_folder(job.folder, checkpoint, job.overwrite, resume):
        if result is None:
            file = checkpoint if saved else None
            result = fit(scan, model, checkpoint=file, resume=resume, **given)
        if job.compared:
            result = replace(result, diagnosis=replace(result.diagnosis, comparison=job.compared))
        files = folders.write_result(result, scan, job.folder, job.pictures, job.nexus)
        folders.remove_checkpoint(result, checkpoint)
    return result, tuple(files)
