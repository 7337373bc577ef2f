"""Detection of the format of a file by its content.

Damage can make HDF5 hang or crash, so its description of the matrices is read first in a child process.
"""

import contextlib
import json
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import h5py

from homodyne_dask.errors import HomodyneDaskError, OptionError, PackageError, SourceError
from homodyne_dask.machine.running_code import python_command
from homodyne_dask.plugins import (
    EntryPointError,
    applications_in,
    load_application,
    loaded,
    offered_in,
    package_errors,
    unusable,
    warn_of,
)
from homodyne_dask.request.ingest_options import IngestOptions
from homodyne_dask.store import files
from homodyne_dask.store.files import is_failure, is_file, read_with_tail
from homodyne_dask.store.linked_files import following
from ingest.readers import aps, chx, esrf, hdf5, nxxpcs
from ingest.readers.any_hdf5 import open_any, what_is_in
from ingest.readers.g2_curves import G2, g2_in, open_g2, open_text
from ingest.readers.numpy_arrays import open_npy, open_npz
from ingest.readers.source import Source, with_options
from ingest.repeats_and_copies import joined

Reader = Callable[[Path, IngestOptions], Source]
GROUP = "homodyne_dask.readers"
"""The group of entry points of readers, which are asked about files that are of no format known here.

Each is a function of the path and the IngestOptions that returns a Source, or None for a file of another
format.
"""
HDF5, NPY, ZIP = (b"\x89HDF\r\n\x1a\n", b"MATLAB 7.3"), b"\x93NUMPY", b"PK\x03\x04"
"""The first bytes of files; one of MATLAB v7.3 begins with text, and HDF5 follows."""
HDF5_READERS: tuple[tuple[Callable[[h5py.File], object], Reader], ...] = (
    (partial(hdf5.has_group, group=aps.MATRICES), aps.open_aps_u),
    (partial(hdf5.has_group, group=aps.LEGACY_MATRICES), aps.open_aps_legacy),
    (nxxpcs.entry_of, nxxpcs.open_nxxpcs),
    (partial(hdf5.dataset_at, name=chx.MATRICES), chx.open_chx),
    (esrf.analyses_in, esrf.open_esrf),
)
"""What tells whether a file has a format, and the reader of the format; the first that fits reads it."""
# after those of matrices: results with matrices often have g2, too
G2_READERS = [(partial(hdf5.dataset_at, name=g2), partial(open_g2, name=g2)) for g2 in G2]
DESCRIPTION_TIMEOUT = 60.0
"""Seconds that opening a file may take."""


def check_opens(paths: Sequence[Path], options: IngestOptions) -> None:
    """Raise SourceError for an HDF5 file whose description makes the library hang or crash."""
    of_hdf5 = [path for path in paths if first_bytes(path).startswith(HDF5)]
    if of_hdf5 and (why := _failure(of_hdf5, options)):
        if len(of_hdf5) == 1:
            why += "; the file is damaged: copy it again"
            raise SourceError(f"{of_hdf5[0]} cannot be read: {why}")
        for path in of_hdf5:
            check_opens([path], options)


def _failure(paths: Sequence[Path], options: IngestOptions) -> str:
    program = (  # INTERRUPTED: it does not wait for a file system that fails
        f"import sys; from {files.__name__} import INTERRUPTED; from {__name__} import _open_and_end; "
        "INTERRUPTED.set(); _open_and_end(*sys.argv[1:])"
    )
    command = python_command("-c", program, json.dumps(options.as_json()), *map(str, paths))
    limit = DESCRIPTION_TIMEOUT + len(paths)
    try:
        child = subprocess.run(command, timeout=limit, capture_output=True, text=True)
    except subprocess.TimeoutExpired:
        return f"HDF5 did not finish reading its metadata within {DESCRIPTION_TIMEOUT:g} s"
    if child.returncode < 0:
        return f"HDF5 crashed on its metadata (signal {-child.returncode})"
    if child.returncode > 0:
        raise RuntimeError(f"the process that opens {paths[0]} as a test failed:\n{child.stderr}")
    return ""


def _open_and_end(options: str, *paths: str) -> None:
    checked = IngestOptions(**json.loads(options))
    for path in paths:
        # an error is no hang and no crash: the parent meets it again
        with contextlib.suppress(Exception), following(checked.follow):
            open_source(Path(path), checked)


def open_source(path: Path, options: IngestOptions) -> Source:
    magic = first_bytes(path)
    if options.dataset is None and options.dataset_names and not magic.startswith(ZIP):
        what, name = next(iter(options.dataset_names.items()))
        raise OptionError(
            f"{what}_dataset = {name} applies only together with dataset: also give dataset, "
            f"or leave out {what}_dataset for files of a known layout ({path.name})"
        )
    if options.keep and not magic.startswith(HDF5):
        raise OptionError(f"keep is for HDF5 files, which {path.name} is not: leave it out")
    if options.trains is not None:
        source = _open_trains(path, options)
    else:
        source = _open_here(path, options, magic)
    if isinstance(source, str):
        source = _open_elsewhere(path, options, source)
    whole = with_options(source, options)
    if source.scans:
        whole = joined([with_options(scan, options) for scan in source.scans], source.scan_names)
    experiment = whole.measurement.experiment | hdf5.kept(path, options.keep)
    return whole.saying(experiment=experiment)


def _open_here(path: Path, options: IngestOptions, magic: bytes) -> Source | str:
    """Return the source in a file of a format known here, or else the reason why it is not read."""
    if not magic:
        raise SourceError(f"{path} is empty: copy it again")
    if magic.startswith(HDF5):
        return _open_hdf5(path, options)
    if magic.startswith(NPY):
        return open_npy(path, options)
    if magic.startswith(ZIP):
        return open_npz(path, options)
    try:
        return open_text(path, options)
    except SourceError as why:  # any file that is none of the others: another reader may know it
        return str(why)


def _open_hdf5(path: Path, options: IngestOptions) -> Source | str:
    if options.dataset in G2:
        return open_g2(path, options.model_copy(update={"dataset": None}), options.dataset)
    if options.dataset is not None:
        return open_any(path, options)
    with hdf5.open_hdf5(path) as file:
        readers = (reader for is_in, reader in (*HDF5_READERS, *G2_READERS) if is_in(file))
        reader = next(readers, None)
        if reader is None:
            return f"{path} has no two-time matrices of a known layout; {what_is_in(file)}"
    return reader(path, options)


def _open_trains(path: Path, options: IngestOptions) -> Source:
    points = {point.name: point for point in applications_in(GROUP)}
    if "trains" not in points:
        raise PackageError("trains needs the application 'trains', which is not installed")
    source = load_application(points["trains"], "trains")(path, options)
    if source is None or options.dataset is not None:
        raise OptionError(f"{path.name} contains no trains: leave out trains")
    return source


def _open_elsewhere(path: Path, options: IngestOptions, why: str) -> Source:
    """Return the source that an application reads, else an installed package; why: it is not read here."""
    for point in applications_in(GROUP):
        with contextlib.suppress(
            PackageError
        ):  # what one application lacks must not hide the others
            source = load_application(point, point.name)(path, options)
            if source is not None:
                return source
    return _open_installed(path, options, why)


def _open_installed(path: Path, options: IngestOptions, why: str) -> Source:
    failures: list[str] = []
    for point in offered_in(GROUP):
        if point in applications_in(GROUP):
            continue
        try:
            with package_errors(point, HomodyneDaskError):
                source = loaded(point, callable, "a function")(path, options)
            if not isinstance(source, Source | None):
                raise unusable(point, f"it returned {type(source).__name__}, not a Source")
        except EntryPointError as e:
            if e.__cause__ is not None and is_failure(e.__cause__):
                raise e.__cause__ from None  # of the file, not of the package
            failures.append(str(e))
            continue
        if source is not None:
            for failure in failures:
                warn_of(failure)
            return source
    raise SourceError("; ".join([why, *failures]))


@following(None)
def is_table(path: Path) -> bool:
    """Return whether a file is a text, or a result of HDF5 with g2 and no two-time matrices."""
    magic = first_bytes(path)
    if not magic.startswith(HDF5):
        return not magic.startswith((NPY, ZIP)) and b"\0\0" not in magic
    with hdf5.open_hdf5(path) as file:
        return g2_in(file) is not None and not any(is_in(file) for is_in, _ in HDF5_READERS)


@following(None)
def g2_dataset(path: Path) -> str | None:
    """Return the dataset of g2 in a result of HDF5, None for a text; raises SourceError for other files."""
    dataset = None
    if is_hdf5 := first_bytes(path).startswith(HDF5):
        with hdf5.open_hdf5(path) as file:
            dataset = g2_in(file)
    if dataset is None and (is_hdf5 or not is_table(path)):
        raise SourceError(
            f"{path} has no g2 of a known layout: give a table as text, or fit its c2"
        )
    return dataset


def first_bytes(path: Path) -> bytes:
    if not is_file(path):
        raise SourceError(f"{path} is not a file: check the name")
    try:
        return read_with_tail(path, 64, 0, (0, 64))[0]
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
