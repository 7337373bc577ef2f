"""Source → Zarr store: a task for each matrix, or for some small ones; it can be resumed at any point."""

import concurrent.futures as futures
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from homodyne_dask.document.blocks import Document, Printed, table_document
from homodyne_dask.errors import (
    ClusterError,
    FileReadError,
    OptionError,
    SourceError,
    StoreError,
    require_function,
    require_type,
)
from homodyne_dask.request.ingest_options import IngestOptions
from homodyne_dask.store import files, schema
from homodyne_dask.store.arrays import (
    SMALL_ARRAYS,
    array_digest,
    manifest_json,
    read_array,
    sigma_words,
    spacing_text,
    what_is_wrong,
)
from homodyne_dask.store.files import INTERRUPTED, AnyPath, open_without_waiting, patiently
from homodyne_dask.store.linked_files import following
from homodyne_dask.store.object_stores import UrlPath
from homodyne_dask.store.same_noise import from_frame
from homodyne_dask.store.scan import open_dataset
from homodyne_dask.text import counted, known_number, some_of
from ingest import bad_scans, store_writer
from ingest import noise_and_beam_trips as noise
from ingest import repeats_and_copies as repeats
from ingest.bin_task import BinRecord, cuts_of, read_records, write_bins
from ingest.readers.detect import check_opens, open_source
from ingest.readers.source import Source
from ingest.store_writer import sums_by_chunk

_HEAD = ("scan", "label", "q [1/Å]", "φ [°]", "pixels", "frames", "σ")
_MOST_ROWS = 40
Progress = Callable[[int, int], None]
"""Called with the number of bins that are done, and of all."""
RECORD_VERSION = 16
"""Form of the records of finished bins: an ingest begun with another form is begun again."""
LOCAL_TASKS = 2
"""Matrices worked on at once without a cluster; each takes its float32 size, twice that when read. Of small
ones it is one: Python runs for most of their time, and one thread of it at once."""


class BinRow(NamedTuple):
    """One line of the table of bins."""

    label: int
    q: float
    """1/Å."""
    phi: float
    """degree."""
    pixels: int
    """0 where unknown."""
    frames: int
    """Frames to use."""
    sigma: float
    """Noise of a typical pair."""
    scan: int = 1


@dataclass(frozen=True, repr=False)
class IngestReport(Printed):
    """What is in a store after ingest."""

    store: AnyPath
    source_file: str
    source_format: str
    bins: tuple[BinRow, ...]
    n_frames: int
    frame_time: float
    """s, median spacing."""
    spacing: str
    n_pairs: int
    """Known pairs or points over all bins."""
    datum: str
    sigma_source: str
    notes: tuple[str, ...]
    skipped: bool = False
    """True when the store was already complete and nothing was done."""

    def _document(self) -> Document:
        bins = "1 bin" if len(self.bins) == 1 else f"{len(self.bins)} bins"
        title = (
            f"{self.source_file} ({self.source_format}) → {self.store}: {bins} × "
            f"{self.n_frames} frames {self.spacing}, {self.n_pairs:,} {self.datum}"
        )
        unlisted = len(self.bins) - _MOST_ROWS
        notes = [
            *[f"and {unlisted} more bins; `homodyne-dask info {self.store}` lists all"]
            * (unlisted > 0),
            *["already complete, nothing to do"] * self.skipped,
            f"σ {sigma_words(self.sigma_source)}",
            *(f"note: {note}" for note in self.notes),
        ]
        rows = [
            (str(scan), str(label), known_number(q, ".5g"), known_number(phi, ".2f"),
             str(pixels or "?"), str(frames), f"{sigma:.3g}")
            for label, q, phi, pixels, frames, sigma, scan in self.bins[:_MOST_ROWS]
        ]  # fmt: skip
        skipped = int(all(row.scan == 1 for row in self.bins))
        return table_document(title, [row[skipped:] for row in (_HEAD, *rows)], 0, notes)


def read_report(target: AnyPath, *, skipped: bool = False) -> IngestReport:
    scan = open_dataset(target)
    attributes, frames = scan.attributes, int(np.count_nonzero(scan.frame_mask))
    columns = (scan.label, scan.q, scan.phi, scan.n_pixels, scan.median_sigma, scan.scan_number)
    bins = zip(*(column.tolist() for column in columns), strict=True)
    return IngestReport(
        store=target,
        source_file=attributes.source_file,
        source_format=attributes.source_format,
        bins=tuple(BinRow(a, q, phi, n, frames, sigma, k) for a, q, phi, n, sigma, k in bins),
        n_frames=scan.n_frames,
        frame_time=attributes.frame_time,
        spacing=spacing_text(scan.time, attributes.frame_time),
        n_pairs=int(scan.manifest.pairs.sum()),
        datum=scan.datum,
        sigma_source=attributes.sigma_source,
        notes=tuple(attributes.notes),
        skipped=skipped,
    )


def ingest(
    source_path: str | Path | Sequence[str | Path],
    store_path: str | AnyPath | None = None,
    *,
    sharded: bool | None = None,
    strict: bool = False,
    overwrite: bool = False,
    client=None,
    progress: Progress | None = None,
    **values: Any,
) -> IngestReport:
    """Write the matrices of a result file, or of several that repeat a measurement, into a store.

    Returns a report; `homodyne_dask.ingest` explains the arguments. values: of the fields of `IngestOptions`.
    The same call continues an interrupted ingest.
    """
    options = IngestOptions(**values)
    flags = {"overwrite": overwrite, "strict": strict}
    for name, value in (flags if sharded is None else flags | {"sharded": sharded}).items():
        require_type(name, value, bool, "True or False")
    require_function("progress", progress)
    paths = _paths_of(source_path)
    if store_path is None and len(paths) > 1:
        raise OptionError(f"{len(paths)} files make one store: give its name, such as all_c2.zarr")
    target = None if store_path is None else files.any_path("store", store_path)
    # before anything is read, so that any change while it is read is seen
    states = {path: _state(path) for path in paths}
    with following(options.follow) as others:
        source = _open_all(paths, options)
    states |= (linked := dict(sorted(others.items())))
    if target is None:
        target = schema.store_beside(paths[0], "c2" if source.g2 is None else "g2")
    target = files.absolute(target)
    few_files = sharded
    if few_files is None:
        many = len(source.label) >= schema.MANY_BINS and schema.is_one_chunk(source.n_frames)
        few_files = many or isinstance(target, UrlPath)
    try:
        with futures.ThreadPoolExecutor(1) as background, files.no_more_waiting():
            digest = background.submit(_digest, paths, [*linked])
            names = [path.name for path in linked]
            how = few_files, sharded is not None, strict, overwrite
            job = _IngestJob(source, target, names, states, digest, options, *how)
            return _ingest(job, client, progress)
    except OSError as error:
        raise StoreError(
            f"{target} cannot be written: {files.no_room(error, target)} or give another name, then run "
            "ingest again; it continues where it stopped"
        ) from error
    finally:
        INTERRUPTED.clear()


def _paths_of(source_path: str | Path | Sequence[str | Path]) -> list[Path]:
    paths = [source_path] if isinstance(source_path, str | Path) else source_path
    require_type("source", paths, list | tuple, "the path of a file, or a list of them")
    if not paths:
        raise OptionError("source is an empty list: give the files to ingest")
    return [files.path_of("source", path) for path in paths]


def _open_all(paths: list[Path], options: IngestOptions) -> Source:
    check_opens(paths, options)
    sources = repeats.at_all_delays(_opened(paths, options))
    if repeats.are_bins_of_one_scan(sources):
        if options.average is not None:
            raise OptionError(
                f"average applies to scans of one measurement, but each of the {len(paths)} files has a q "
                f"or φ of its own: leave it out"
            )
        source = repeats.side_by_side(sources, repeats.scan_names_of(paths))
        return repeats.with_errors_of_repeats(repeats.without_frames(source, options))
    scans, names = list[Source](), list[str]()
    for source, file in zip(sources, repeats.scan_names_of(paths), strict=True):
        scans += source.scans or (source,)
        names += [f"{file}, {name}" for name in source.scan_names] or [file]
    source = repeats.joined(scans, names) if len(sources) > 1 else sources[0]
    source = repeats.without_frames(source, options)
    if options.reject_scans:
        source = bad_scans.without_bad(source)
    source = repeats.with_errors_of_repeats(source)
    return source if options.average is None else repeats.averaged(source)


def _opened(paths: list[Path], options: IngestOptions) -> list[Source]:
    """Return the source in each file; as many q or φ as files of one bin are one for each file."""
    by_bin = {"q": options.q, "phi": options.phi}
    by_file = {name: v for name, v in by_bin.items() if len(v or ()) == len(paths) > 1}

    def opened(n: int, values_by_file: dict[str, Any]) -> Source:
        values = {name: (values[n],) for name, values in values_by_file.items()}
        options_of_file = options.model_copy(update=values)
        return patiently(paths[n], partial(open_source, paths[n], options_of_file))

    if by_file:
        with suppress(OptionError):  # of files with several bins they are those of the bins
            sources = [opened(n, by_file) for n in range(len(paths))]
            if all(len(source.label) == 1 for source in sources):
                return sources
    return [opened(n, {}) for n in range(len(paths))]


def _digest(paths: list[Path], linked: list[Path]) -> str:
    digests = [patiently(path, partial(sha256, path)) for path in paths]
    repeats.check_different(paths, digests)
    digests += [patiently(path, partial(sha256, path)) for path in linked]
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def sha256(path: Path) -> str:
    with open(path, "rb", opener=open_without_waiting) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _state(path: Path) -> tuple[int, ...] | None:
    """Return the state of a file, None where there is none."""

    def read() -> tuple[int, ...]:
        # opened: until then a network file system may answer from its memory
        with open(path, "rb", opener=open_without_waiting) as file:
            return files.state(os.fstat(file.fileno()))

    try:
        return patiently(path, read)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error


@dataclass(frozen=True)
class _IngestJob:
    """An ingest; the same job continues where an interrupted one stopped."""

    source: Source
    target: AnyPath
    linked: Sequence[str]
    """The names of other files that the source leads to."""
    states: Mapping[Path, tuple[int, ...] | None]
    """Each file as it was before anything of it was read."""
    digest: futures.Future[str]
    """SHA-256 of the source, computed while the first bins are written."""
    options: IngestOptions
    sharded: bool
    asked: bool
    """Whether shards, or files of single chunks, were asked for: a store with the others is another."""
    strict: bool
    overwrite: bool

    @property
    def file(self) -> AnyPath:
        """The file that says to which job the records of bins belong."""
        return self.target / store_writer.WORK_FOLDER / store_writer.JOB_FILE

    def options_json(self) -> BinRecord:
        return self.options.as_json() | ({"sharded": True} if self.sharded else {})

    def as_json(self) -> BinRecord:
        return {
            "source_sha256": self.digest.result(),
            "sizes_and_times": [state and [*state[2:4]] for state in self.states.values()],
            "options": self.options_json(),
            "schema": schema.VERSION,
            "records": RECORD_VERSION,
        }

    def batches(self) -> list[range]:
        """Return the bins of each task: those of a shard, or one."""
        total, n_frames = len(self.source.label), self.source.n_frames
        number = schema.shard_shape(n_frames, 1)[0] if self.sharded else 1
        return [range(n, min(n + number, total)) for n in range(0, total, number)]

    def task(self, bins: range, use: np.ndarray, left_out: dict[int, str]) -> tuple[Any, ...]:
        """Return the arguments of `write_bins`."""
        sources = [self.source.only(index) for index in bins]
        return sources, self.target, bins.start, use, self.sharded, left_out

    def write(self) -> None:
        store_writer.write_json(self.file, self.as_json())

    def progress_in_target(self) -> Literal["whole", "begun", "nothing"]:
        """Return how much of this job is in its target; the hash of the source is waited for if there is any.

        Raises StoreError for an ingest of anything else. One of the same source by another version of this
        program counts as nothing, and is replaced.
        """
        if self.overwrite:
            return "nothing"
        attrs, begun = store_writer.root_attributes(self.target), None
        whole = attrs.get("complete") is True
        if not whole and _records(self.target):
            begun = store_writer.read_json(self.file)
        if not (ingested := attrs if whole else begun):
            return "nothing"
        content = f"another file ({attrs.get('source_file')})"
        if ingested.get("source_sha256") == self.digest.result():
            if begun:
                return "begun" if begun == self.as_json() else "nothing"
            options = [attrs.get("ingest_options"), self.options_json()]
            if not self.asked:
                options = [{**(each or {}), "sharded": None} for each in options]
            if options[0] == options[1]:
                readable = attrs.get("schema_version") in schema.READ_VERSIONS
                return "whole" if readable else "nothing"
            content = "the same file with other options"
        elif begun:
            content = "the unfinished ingest of another file"
        raise StoreError(
            f"{self.target} contains {content}: give --overwrite to replace it, or another name"
        )


def _ingest(job: _IngestJob, client, progress: Progress | None) -> IngestReport:
    source, target = job.source, job.target
    store_writer.check_no_foreign_files(target, job.overwrite)
    # before the lock, which writes to the store: a second ingest of a complete one changes nothing in it
    if not files.exists(target / store_writer.WORK_FOLDER) and job.progress_in_target() == "whole":
        return read_report(target, skipped=True)
    with store_writer.lock_store(target):
        match job.progress_in_target():
            case "whole":
                store_writer.remove_working_folder(target)
                return read_report(target, skipped=True)
            case "begun":
                store_writer.remove_partial_files(target)
            case "nothing":
                store_writer.clear(target)
                store_writer.create_arrays(target, source, job.sharded)
        with _unchanged(job):
            use = noise.frame_mask(source)
            with futures.ThreadPoolExecutor(1) as background:
                # waits until the source is hashed; an ingest interrupted before starts over
                written = background.submit(job.write)
                records = _write_bins(job, use, client, progress)
            written.result()
            left_out = _left_out(source, records, job.options.keep_copies)
            for bins in job.batches():
                if reasons := {index: left_out[index] for index in bins if index in left_out}:
                    again = write_bins(*job.task(bins, use, reasons))
                    records[bins.start : bins.stop] = again
            reasons = [record["left_out"] for record in records if record["left_out"]]
            if len(reasons) == len(records):
                raise SourceError(f"{reasons[0]}; no bin is left to fit")
            if reasons and job.strict:
                raise SourceError(f"{reasons[0]}; without --strict, the other bins are ingested")
            attrs = _finish(job, use, records)
        store_writer.complete(target, attrs)
    return read_report(target)


@contextmanager
def _unchanged(job: _IngestJob) -> Iterator[None]:
    """Raise FileReadError, and keep nothing, where a source changes in a `with`, instead of an error in it.

    After an interrupt, or where a file system fails, the next ingest sees the change, and starts over.
    """
    error = None
    try:
        yield
    except FileReadError:
        raise
    except Exception as e:  # whatever it is may follow from the change; else it is raised below
        error = e
    if changed := [path for path, before in job.states.items() if _state(path) != before]:
        store_writer.clear(job.target)
        raise FileReadError(
            f"{changed[0]} changed while it was read: it was replaced or is still being written; "
            "ingest it again when it is complete"
        ) from error
    if error is not None:
        raise error


def _left_out(source: Source, records: list[BinRecord], keep_copies: bool) -> dict[int, str]:
    """Return the bins to be written again without data, and why: only all bins together show it."""
    bins_by_baseline: tuple[list[int], list[int]] = ([], [])
    for n, record in enumerate(records):
        if not record["left_out"]:
            bins_by_baseline[record["baseline"]].append(n)
    few, most = sorted(bins_by_baseline, key=len)
    why = {
        n: f"{source.name(n)} decays to {records[n]['baseline']}, but most bins decay to "
        f"{records[most[0]]['baseline']}"
        for n in few
        if len(few) < len(most)
    }
    if keep_copies:
        return why
    return why | {
        index: f"{source.name(index)} holds the data of {source.name(first)}{from_frame(shift)}, which "
        f"count once (to keep both: --keep-copies)"
        for index, (first, shift) in repeats.copies(source, records).items()
    }


def _records(target: AnyPath) -> dict[int, AnyPath]:
    inside = {path.name: path for path in files.children(target / store_writer.WORK_FOLDER)}
    return {int(name[4:-5]): inside[name] for name in inside if fnmatchcase(name, "bin-*.json")}


def _write_bins(job: _IngestJob, use, client, progress: Progress | None) -> list[BinRecord]:
    done = dict[int, BinRecord]()
    for path in _records(job.target).values():
        done |= read_records(path)
    total = len(job.source.label)
    todo = [bins for bins in job.batches() if bins.start not in done]
    if client is None:
        at_once = 1 if len(job.batches()[0]) > 1 else LOCAL_TASKS
        pool = futures.ThreadPoolExecutor(at_once)
    else:  # one task per thread
        pool, at_once = client.get_executor(pure=False), max(1, sum(client.nthreads().values()))
    with pool, _lost_workers(client):
        running: dict[futures.Future, range] = {}
        try:
            with files.no_more_waiting():
                while todo or running:
                    while todo and len(running) < at_once:
                        bins = todo.pop(0)
                        running[pool.submit(write_bins, *job.task(bins, use, {}))] = bins
                    for future in futures.wait(running, return_when=futures.FIRST_COMPLETED).done:
                        done |= zip(running.pop(future), future.result(), strict=True)
                        if progress:
                            progress(len(done), total)
        finally:
            futures.wait(running)
    return [done[index] for index in range(total)]


@contextmanager
def _lost_workers(client) -> Iterator[None]:
    if client is None:
        yield
        return
    from distributed.client import FutureCancelledError
    from distributed.comm.core import CommClosedError
    from distributed.scheduler import KilledWorker, NoWorkerError

    why = "the connection to the scheduler was lost: restart the scheduler"
    try:
        yield
        return
    except NoWorkerError as e:
        error, why = e, f"there have been no workers for too long ({e}): start some"
    except KilledWorker as e:
        error, why = e, f"the workers cannot finish the ingest ({e}): see their logs for the cause"
    except (FutureCancelledError, futures.CancelledError, CommClosedError) as e:
        error = e
    raise ClusterError(f"{why}, then run ingest again; it continues where it stopped") from error


def _finish(job: _IngestJob, use, records: list[BinRecord]) -> BinRecord:
    source, target = job.source, job.target
    sigma = noise.sigma_rows(source, records)
    if wrong := what_is_wrong(source.time, source.q, source.phi, sigma.rows**2):
        raise SourceError(
            f"{source.path.name} cannot be ingested: {wrong}; correct the values of c2"
        )
    own_notes = noise.notes_on(source, records, use)
    if job.linked:
        others = counted(len(job.linked), "other file")
        own_notes += [f"{others} that the source leads to: {some_of(job.linked, 3)}"]
    notes = [*noise.implausible(source), *source.notes, *own_notes, *sigma.notes]
    arrays = _arrays_of_all_bins(source, use, records, sigma)
    for name, values in arrays.items():
        store_writer.write_array(target, name, values)
    store_writer.remove_partial_files(target)
    # what a fit will read, not what was meant to be written, is what the manifest vouches for
    written = {name: read_array(target, name) for name in dict.fromkeys([*SMALL_ARRAYS, *arrays])}
    attrs = _attributes(job, sigma, notes, records)
    digests = {name: array_digest(values) for name, values in written.items()}
    manifest = manifest_json(source.n_frames, records, digests, attrs, job.sharded)
    digest = store_writer.write_json(target / schema.MANIFEST, manifest)
    return attrs | {"store_sha256": digest, "complete": True}


def _arrays_of_all_bins(
    source: Source, use: np.ndarray, records: list[BinRecord], sigma: noise.Noise
) -> dict[str, np.ndarray]:
    dead = set.intersection(*(set(record["dead"]) for record in records if not record["left_out"]))
    intensity = source.intensity
    if intensity is None:
        intensity = np.full((len(records), source.n_frames), np.nan)
    intensity = np.where(sigma.counted[:, None], intensity, np.nan)
    sums = sums_by_chunk([record["sums"] for record in records], source.n_frames)
    arrays = {
        **{name: getattr(source, name) for name in ("q", "phi", "label", "n_pixels", "time")},
        "sigma_row": sigma.rows,
        "intensity": intensity,
        "frame_mask": use & ~np.isin(np.arange(source.n_frames), [*dead]),
        "beta_ingest": np.array([record["contrast"] for record in records], float),
        **{f"sums/{name}": values for name, values in sums.items()},
        **source.pictures._asdict(),
        **cuts_of(records, source.n_frames),
        "cuts/g2": source.g2,
    }
    return {name: values for name, values in arrays.items() if values is not None}


def _attributes(
    job: _IngestJob, sigma: noise.Noise, notes: list[str], records: list[BinRecord]
) -> BinRecord:
    source = job.source
    paths = source.files or [scan.path for scan in source.scans or (source,)]
    further = len({path.name for path in paths}) - 1
    measurement = source.measurement
    unset = {name for name in ("experiment", "exposures") if not getattr(measurement, name)}
    attrs = measurement.model_dump(exclude=unset) | {
        "format": schema.FORMAT,
        "schema_version": schema.VERSION,
        "source_file": source.path.name + f" and {further} more" * (further > 0),
        "source_sha256": job.digest.result(),
        "source_format": source.format,
        "ingest_options": job.options_json(),
        "sigma_source": sigma.source,
        "doubts": sigma.doubts | noise.doubts_of_c2(records),
        "baseline_reference": 1,
        "populated_elements": "upper_half",
        "notes": notes,
    }
    if source.scans:
        attrs["scans"] = list(source.scan_names)
    return attrs
