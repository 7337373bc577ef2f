"""Source → Zarr store: one task per matrix; an interrupted ingest can be resumed at any point."""

import concurrent.futures as futures
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from homodyne_dask.errors import (
    ClusterError,
    FileReadError,
    OptionError,
    SourceError,
    StoreError,
    require_function,
    require_type,
)
from homodyne_dask.store import schema
from homodyne_dask.store.arrays import (
    OPTIONAL_ARRAYS,
    SMALL_ARRAYS,
    array_digest,
    read_array,
)
from homodyne_dask.store.files import (
    INTERRUPTED,
    AnyPath,
    any_path,
    children,
    errors_of,
    exists,
    no_more_waiting,
    open_without_waiting,
    path_of,
    patiently,
    state,
)
from homodyne_dask.store.manifest import manifest_json
from homodyne_dask.store.url_path import UrlPath
from ingest import noise, store_writer
from ingest.averages_and_sums import sums_by_chunk
from ingest.bin_task import Record, read_record, write_bin
from ingest.readers.detect import check_opens, open_source
from ingest.readers.source import IngestOptions, Source, checked_options, sha256
from ingest.repeats import averaged, check_different, joined, scan_names_of
from ingest.report import IngestReport, read_report

Progress = Callable[[int, int], None]
RECORD_VERSION = 7
"""Form of the records of finished bins: an ingest begun with another form is begun again."""
LOCAL_TASKS = 2
"""Matrices worked on at once without a cluster; each takes its float32 size, twice that when read."""


def ingest(
    source_path: str | Path | Sequence[str | Path],
    store_path: str | AnyPath | None = None,
    *,
    q=None,
    phi=None,
    frame_time: float | None = None,
    sigma=None,
    time_offset: float = 0.0,
    gap: float | None = None,
    sharded: bool | None = None,
    strict: bool = False,
    overwrite: bool = False,
    client=None,
    progress: Progress | None = None,
    **layout,
) -> IngestReport:
    """Write the matrices of a result file, or of several that repeat a measurement, into a store.

    Returns a report.

    q [1/Å], phi [degree] and frame_time [s] are for plain arrays, which do not hold them; sigma is
    the noise of one pair, one number or one per bin, instead of the one from counts or scatter.
    time_offset [s] is added to all times; gap [Å] is kept with the data. layout: options that say where in a
    file something is (`ingest/readers/source.py:LAYOUT`). sharded: whether a file or object holds many
    chunks; by default that is so in a store by URL. strict: refuse a file with a bin without data; by
    default the bin is left out, and a note says so. The same call continues an interrupted ingest.
    `client` is a Dask client; without it two threads work.
    `progress` is called with (bins done, bins) after each.
    """
    options = checked_options(q, phi, frame_time, sigma, time_offset, gap, **layout)
    for name, value in (("overwrite", overwrite), ("strict", strict)):
        require_type(name, value, bool, "True or False")
    if sharded is not None:
        require_type("sharded", sharded, bool, "True or False")
    require_function("progress", progress)
    paths = _paths(source_path)
    if store_path is None and len(paths) > 1:
        raise OptionError(f"{len(paths)} files make one store: give its name, such as all_c2.zarr")
    target = default_store(paths[0]) if store_path is None else any_path("store", store_path)
    states = {path: _state(path) for path in paths}
    source = _open_all(paths, options)
    target = target.absolute()
    sharded = isinstance(target, UrlPath) if sharded is None else sharded
    try:
        with futures.ThreadPoolExecutor(1) as background:
            job = _Job(states, background.submit(_digest, paths), options, sharded)
            with errors_of(target), no_more_waiting():
                return _ingest(source, target, job, overwrite, strict, client, progress)
    except OSError as error:
        raise StoreError(
            f"{target} cannot be written ({error.strerror or error}): free some space or give another "
            "name, then run ingest again; it continues where it stopped"
        ) from error
    finally:
        INTERRUPTED.clear()


def _paths(given: str | Path | Sequence[str | Path]) -> list[Path]:
    each = [given] if isinstance(given, str | Path) else given
    require_type("source", each, list | tuple, "the path of a file, or a list of them")
    paths = [path_of("source", one) for one in each]
    if not paths:
        raise OptionError("source is an empty list: give the files to ingest")
    return paths


def _open_all(paths: list[Path], options: IngestOptions) -> Source:
    """Return the source in a file, or in several that are scans of one measurement."""
    check_opens(paths, options)
    sources = [patiently(path, lambda path=path: open_source(path, options)) for path in paths]
    source = sources[0] if len(sources) == 1 else _joined_files(sources, scan_names_of(paths))
    return source if options.average is None else averaged(source)


def _joined_files(sources: list[Source], files: list[str]) -> Source:
    """Return the scans of all files as one source; a file may hold several."""
    scans, names = [], []
    for source, file in zip(sources, files, strict=True):
        scans += source.scans or (source,)
        names += [f"{file}, {name}" for name in source.scan_names] or [file]
    return joined(scans, names)


def _digest(paths: list[Path]) -> str:
    """Return the SHA-256 of a file, or of those of several, none of which may be another's copy."""
    digests = [sha256(path) for path in paths]
    if len(paths) == 1:
        return digests[0]
    check_different(paths, digests)
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def default_store(source: Path) -> Path:
    """Return the name of the store beside its source: A0123_results.hdf → A0123_c2.zarr."""
    return schema.store_beside(source)


def _state(path: Path) -> tuple[int, ...] | None:
    """Return the state of a file, None where there is none: opened, it is that on the server.

    Raises SourceError for a file that may not be read, FileReadError where its file system fails.
    """

    def read() -> tuple[int, ...]:
        with open(path, "rb", opener=open_without_waiting) as file:
            return state(os.fstat(file.fileno()))

    try:
        return patiently(path, read)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error


@dataclass(frozen=True)
class _Job:
    """Source and options of an ingest; the same job continues where an interrupted one stopped."""

    states: Mapping[Path, tuple[int, ...] | None]
    """Each file as it was before anything of it was read."""
    digest: futures.Future[str]
    """SHA-256 of the source, computed while the first bins are written."""
    options: IngestOptions
    sharded: bool

    def options_json(self) -> Record:
        """Return the options as plain values."""
        return self.options.as_json() | ({"sharded": True} if self.sharded else {})

    def as_json(self) -> Record:
        return {
            "source_sha256": self.digest.result(),
            "sizes_and_times": [of and [*of[2:4]] for of in self.states.values()],
            "options": self.options_json(),
            "schema": schema.VERSION,
            "records": RECORD_VERSION,
        }


def _ingest(
    source: Source, target: AnyPath, job: _Job, overwrite: bool, strict: bool, client, progress
) -> IngestReport:
    store_writer.check_no_foreign_files(target, overwrite)
    working = exists(target / store_writer.WORK_FOLDER)
    if not working and _already_done(target, job, overwrite):
        return read_report(target, skipped=True)
    with store_writer.lock_store(target):
        if _already_done(target, job, overwrite):
            store_writer.remove_work(target)
            return read_report(target, skipped=True)
        _prepare(target, source, job, overwrite)
        with _unchanged(job.states, target):
            use = noise.frame_mask(source)
            with futures.ThreadPoolExecutor(1) as background:
                job_written = background.submit(_write_job, target, job)
                records = _write_bins(source, target, use, job.sharded, client, progress)
            job_written.result()
            _check_left_out(target, records, strict)
            attrs = _finish(source, target, job, use, records)
        store_writer.complete(target, attrs)
    return read_report(target)


@contextmanager
def _unchanged(states: Mapping[Path, tuple[int, ...] | None], target: AnyPath) -> Iterator[None]:
    """Raise FileReadError and keep nothing where a source has changed after the block, or an error in it.

    After an interrupt, or where a file system fails, it is left to the next ingest to start over.
    """
    failed = None
    try:
        yield
    except FileReadError:
        raise
    except Exception as error:
        failed = error
    if changed := [path for path, state in states.items() if _state(path) != state]:
        store_writer.clear(target)
        raise FileReadError(
            f"{changed[0]} changed while it was read: it was replaced or is still being written; "
            "ingest it again when it is complete"
        ) from failed
    if failed:
        raise failed


def _check_left_out(target: AnyPath, records: list[Record], strict: bool) -> None:
    """Raise SourceError where no bin has data, or with `strict` where one has none."""
    reasons = [record["left_out"] for record in records if record["left_out"]]
    if reasons and (strict or len(reasons) == len(records)):
        how = "without --strict, the other bins are ingested" if len(reasons) < len(records) else ""
        raise SourceError("; ".join(filter(None, [reasons[0], how or "no bin is left to fit"])))


def _already_done(target: AnyPath, job: _Job, overwrite: bool) -> bool:
    """Return whether the same ingest completed the store; refuse to replace another.

    A store of the same ingest by another version of this program is replaced.
    """
    if overwrite:
        return False
    attrs = store_writer.root_attributes(target)
    if attrs.get("complete") is not True:
        return False
    same = attrs.get("source_sha256") == job.digest.result()
    if same and attrs.get("ingest_options") == job.options_json():
        return attrs.get("schema_version") == schema.VERSION
    what = (
        "the same file with other options" if same else f"another file ({attrs.get('source_file')})"
    )
    raise StoreError(f"{target} contains {what}: give --overwrite to replace it, or another name")


def _prepare(target: AnyPath, source: Source, job: _Job, overwrite: bool) -> None:
    """Continue an interrupted ingest or start a new one; only the former waits for the hash."""
    begun = not overwrite and bool(_records(target))
    job_file = target / store_writer.WORK_FOLDER / store_writer.JOB_FILE
    held = store_writer.read_json(job_file) if begun else None
    if begun and held and held == job.as_json():
        store_writer.remove_partial_files(target)
        return
    if begun and held and held.get("source_sha256") != job.digest.result():
        raise StoreError(
            f"{target} contains the unfinished ingest of another file: give --overwrite to start over, "
            "or another name"
        )
    store_writer.clear(target)
    store_writer.create_arrays(target, source, job.sharded)


def _write_job(target: AnyPath, job: _Job) -> None:
    """Write which job this is, once the source is hashed; interrupted before, it starts over."""
    store_writer.write_json(
        target / store_writer.WORK_FOLDER / store_writer.JOB_FILE, job.as_json()
    )


def _records(target: AnyPath) -> dict[int, AnyPath]:
    """Return the files of the records of bins, by position, without partial files of a killed ingest."""
    inside = children(target / store_writer.WORK_FOLDER)
    return {int(path.stem[4:]): path for path in inside if fnmatchcase(path.name, "bin-*.json")}


def _write_bins(source, target: AnyPath, use, sharded, client, progress) -> list[Record]:
    """Write the bins that are missing, a bounded number at a time."""
    done = {index: read_record(path) for index, path in _records(target).items()}
    total = len(source.label)
    todo = [index for index in range(total) if index not in done]
    pool, at_once = _executor(client)
    with pool, _lost_workers(client):
        running: dict[futures.Future, int] = {}
        try:
            with no_more_waiting():
                while todo or running:
                    while todo and len(running) < at_once:
                        index = todo.pop(0)
                        task = (source.only(index), target, index, use, sharded)
                        running[pool.submit(write_bin, *task)] = index
                    for future in futures.wait(running, return_when=futures.FIRST_COMPLETED).done:
                        done[running.pop(future)] = future.result()
                        if progress:
                            progress(len(done), total)
        finally:
            futures.wait(running)
    return [done[index] for index in range(total)]


@contextmanager
def _lost_workers(client) -> Iterator[None]:
    """Turn what Dask raises when workers are lost for good into a ClusterError."""
    if client is None:
        yield
        return
    from distributed.client import FutureCancelledError
    from distributed.comm.core import CommClosedError
    from distributed.scheduler import KilledWorker, NoWorkerError

    try:
        yield
    except NoWorkerError as e:
        raise ClusterError(
            f"there have been no workers for too long ({e}): start some, then run ingest again; it "
            "continues where it stopped"
        ) from e
    except KilledWorker as e:
        raise ClusterError(
            f"the workers cannot finish the ingest ({e}): see their logs for the cause, "
            "then run ingest again; it continues where it stopped"
        ) from e
    except (FutureCancelledError, futures.CancelledError, CommClosedError) as e:
        raise ClusterError(
            "the connection to the scheduler was lost: restart the scheduler, then run ingest again; it "
            "continues where it stopped"
        ) from e


def _executor(client) -> tuple[futures.Executor, int]:
    """Return where tasks run, and how many at once: one matrix per thread."""
    if client is None:
        return futures.ThreadPoolExecutor(LOCAL_TASKS), LOCAL_TASKS
    return client.get_executor(pure=False), max(1, sum(client.nthreads().values()))


def _finish(source: Source, target: AnyPath, job: _Job, use, records) -> Record:
    """Write what describes the bins, then the manifest; return the attributes that complete the store."""
    found = noise.sigma_rows(source, records)
    notes = [
        *noise.implausible(source),
        *source.notes,
        *noise.notes_on(source, records, use),
        *found.notes,
    ]
    use = use & ~noise.frames_without_data(records, source.n_frames)
    _write_vectors(source, target, use, found.rows, records)
    pictures = _write_pictures(source, target)
    _write_sums(target, source.n_frames, records)
    store_writer.remove_partial_files(target)
    attrs = _attributes(source, job, found.source, notes)
    manifest = manifest_json(
        source.n_frames,
        [record["chunks"] for record in records],
        [record["pairs"] for record in records],
        {name: array_digest(read_array(target, name)) for name in (*SMALL_ARRAYS, *pictures)},
        attrs,
        [record["sizes"] for record in records] if job.sharded else None,
    )
    digest = store_writer.write_json(target / schema.MANIFEST, manifest)
    return attrs | {"store_sha256": digest, "complete": True}


def _write_vectors(source: Source, target: AnyPath, use, rows, records) -> None:
    root = store_writer.open_root(target)
    unknown = np.full((len(records), source.n_frames), np.nan)
    contrast = [np.nan if record["contrast"] is None else record["contrast"] for record in records]
    bins, frames, both = ("bin",), ("t",), ("bin", "t")
    store_writer.write_array(root, "q", source.q, bins, units="1/angstrom")
    store_writer.write_array(root, "phi", source.phi, bins, units="degree")
    store_writer.write_array(root, "label", np.asarray(source.label, dtype=np.int64), bins)
    store_writer.write_array(root, "n_pixels", np.asarray(source.n_pixels, dtype=np.int64), bins)
    store_writer.write_array(root, "time", source.time, frames, units="s")
    store_writer.write_array(root, "sigma_row", rows, both)
    store_writer.write_array(
        root, "intensity", unknown if source.intensity is None else source.intensity, both
    )
    store_writer.write_array(root, "frame_mask", use, frames)
    store_writer.write_array(root, "beta_ingest", np.array(contrast), bins)


def _write_pictures(source: Source, target: AnyPath) -> list[str]:
    """Write what the source has of `OPTIONAL_ARRAYS`; return their names."""
    root = store_writer.open_root(target)
    held = source.pictures._asdict()
    names = [name for name in OPTIONAL_ARRAYS if held[name] is not None]
    for name in names:
        store_writer.write_array(root, name, held[name], OPTIONAL_ARRAYS[name].dims)
    return names


def _write_sums(target: AnyPath, n_frames: int, records) -> None:
    root = store_writer.open_root(target)
    group = root.create_group("sums", overwrite=True)
    found = sums_by_chunk([record["sums"] for record in records], n_frames)
    for name, values in found.items():
        store_writer.write_array(group, name, values, ("bin", "i", "j"))


def _attributes(source: Source, job: _Job, sigma_source: str, notes) -> Record:
    return (
        {
            "format": schema.FORMAT,
            "schema_version": schema.VERSION,
            "frame_time": source.frame_time,
            "stride": source.stride,
            "avg": source.avg,
            "begin_frame": source.begin_frame,
            "end_frame": source.end_frame,
            "source_file": _file_names(source),
            "source_sha256": job.digest.result(),
            "source_format": source.format,
            "ingest_options": job.options_json(),
            "sigma_source": sigma_source,
            "baseline_reference": 1,
            "populated_elements": "upper_half",
            "gap_angstrom": source.gap,
            "truth": source.truth,
            "cells": source.cells and source.cells.model_dump(),
            "notes": notes,
        }
        | ({"experiment": source.experiment} if source.experiment else {})
        | ({"scans": list(source.scan_names)} if source.scans else {})
    )


def _file_names(source: Source) -> str:
    """Return the name of the file, or of the first of several."""
    files = dict.fromkeys(one.path.name for one in source.scans or (source,))
    return source.path.name + f" and {len(files) - 1} more" * (len(files) > 1)
