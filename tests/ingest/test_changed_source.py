"""A source that is replaced or written to while it is read: a sentence, and nothing is kept of either."""

import errno
import hashlib
import os
import shutil
import signal
import threading
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest

import ingest
from homodyne_dask.errors import FileReadError, SourceError, StoreError
from homodyne_dask.store import files
from homodyne_dask.store.scan import open_dataset
from homodyne_dask.store.schema import WORK_FOLDER
from ingest import write
from ingest.readers.source import Source
from ingest.store_writer import JOB_FILE
from tests.ingest_files import attributes, manifest, noisy, simulated


def replaced(file: Path, newer: Path) -> None:
    """Another file takes its name, as `mv` does it."""
    Path(shutil.copy(newer, file.with_name("aside"))).replace(file)


def written(file: Path, newer: Path) -> None:
    """The content of another of the same size is written into it, and its time set back."""
    before = file.stat()
    content, new = bytearray(file.read_bytes()), newer.read_bytes()
    content[: min(len(content), len(new))] = new[: len(content)]
    with file.open("r+b") as there:
        there.write(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def grown(file: Path, newer: Path) -> None:
    with file.open("ab") as there:
        there.write(bytes(100))


def exchanged_and_touched(file: Path, newer: Path) -> None:
    """The file that takes its name has its times as well."""
    before = file.stat()
    replaced(file, newer)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def linked_elsewhere(file: Path, newer: Path) -> None:
    link = file.with_name("link")
    link.symlink_to(shutil.copy(newer, file.with_name("elsewhere")))
    link.replace(file)


def copied_again(file: Path, newer: Path) -> None:
    """The same content, of which nobody knows that it is the same."""
    replaced(file, Path(shutil.copy(file, file.with_name("copy"))))


def replaced_by_another_form(file: Path, newer: Path) -> None:
    """By one of fewer bins, which is not called damaged."""
    replaced(file, measurement(file.with_name("fewer.npz"), bins=2))


def gone(file: Path, newer: Path) -> None:
    file.unlink()


def a_pipe(file: Path, newer: Path) -> None:
    file.unlink()
    os.mkfifo(file)


CHANGES = [
    replaced, written, grown, exchanged_and_touched, linked_elsewhere, copied_again,
    replaced_by_another_form, gone, a_pipe,
]  # fmt: skip


def measurement(file: Path, seed: int = 0, bins: int = 4) -> Path:
    """A small file, which no process of its own opens first."""
    c2 = np.stack([noisy(30, 10 * seed + k) for k in range(bins)])
    np.savez(file, c2=c2, q=[0.01] * bins, phi=range(bins), dt=0.1)
    return file


@pytest.fixture
def two(tmp_path) -> tuple[Path, Path]:
    """Two measurements with 4 bins."""
    return measurement(tmp_path / "s.npz"), measurement(tmp_path / "b.npz", seed=1)


def when(bins: int, do, *args):
    """A function that does something when so many bins are done."""

    def progress(done: int, total: int) -> None:
        if done == bins:
            do(*args)

    return progress


def check_nothing_kept(store: Path, sources: list[Path], **options) -> None:
    """The store cannot be opened; the same ingest starts over, and has what it would have had at once."""
    with pytest.raises(StoreError):
        open_dataset(store)
    again = ingest.ingest(sources, store, **options)
    fresh = ingest.ingest(sources, store.with_name("fresh.zarr"), **options)
    assert not again.skipped
    assert manifest(store) == manifest(fresh.store)
    if len(sources) == 1:
        content = sources[0].read_bytes()
        assert attributes(store)["source_sha256"] == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("bins", [1, 4])
def test_a_source_that_changes_is_named_and_nothing_is_kept(two, tmp_path, change, bins):
    source, newer = two
    if change is linked_elsewhere:
        source.rename(tmp_path / "real")
        source.symlink_to("real")
    with pytest.raises(
        FileReadError, match=r"s\.npz changed while it was read: it was replaced or"
    ):
        ingest.ingest(source, tmp_path / "s.zarr", progress=when(bins, change, source, newer))
    if change not in (grown, written, gone, a_pipe):
        check_nothing_kept(tmp_path / "s.zarr", [source])


def test_an_hdf5_file_that_is_replaced_is_seen(tmp_path):
    source, newer = (simulated(tmp_path / f"{name}.hdf", seed=ord(name)) for name in "sb")
    with pytest.raises(FileReadError, match=r"s\.hdf changed while it was read"):
        ingest.ingest(source, tmp_path / "s.zarr", progress=when(1, replaced, source, newer))
    check_nothing_kept(tmp_path / "s.zarr", [source])


def test_a_source_that_is_replaced_while_it_is_opened_is_seen(two, tmp_path, monkeypatch):
    source, newer = two
    real = write.open_source

    def opened(path, options):
        opened_source = real(path, options)
        replaced(path, newer)
        return opened_source

    with monkeypatch.context() as slow:
        slow.setattr(write, "open_source", opened)
        with pytest.raises(FileReadError, match="changed while it was read"):
            ingest.ingest(source, tmp_path / "s.zarr")
    check_nothing_kept(tmp_path / "s.zarr", [source])


@pytest.mark.parametrize("options", [{}, {"average": "scans"}])
@pytest.mark.parametrize("which", [0, 1])
def test_each_of_several_files_is_looked_at(two, tmp_path, which, options):
    newer = measurement(tmp_path / "c.npz", seed=2)
    change = when(3, replaced, two[which], newer)
    with pytest.raises(FileReadError, match=rf"{two[which].name} changed while it was read"):
        ingest.ingest(list(two), tmp_path / "s.zarr", progress=change, **options)
    check_nothing_kept(tmp_path / "s.zarr", list(two), **options)


def after_the_hash(bins: int, store: Path, do):
    """A function that does something when so many bins are done and job.json is written."""

    def progress(done: int, total: int) -> None:
        if done == bins:
            job, deadline = store / WORK_FOLDER / JOB_FILE, monotonic() + 10
            while not job.exists() and monotonic() < deadline:
                sleep(0.01)
            do()

    return progress


def interrupt() -> None:
    raise KeyboardInterrupt


def written_now(file: Path, newer: Path) -> None:
    file.write_bytes(newer.read_bytes())


@pytest.mark.parametrize("change", [replaced, written_now, copied_again])
def test_an_ingest_interrupted_after_a_change_is_started_over(two, tmp_path, change, monkeypatch):
    """The hash is that of the new content, as of a large file."""
    source, newer = two
    content, real = threading.Event(), write.sha256

    def digest(path):
        assert content.wait(10)
        return real(path)

    def changed(done: int, total: int) -> None:
        if done == 2:
            change(source, newer)
            content.set()
            after_the_hash(2, tmp_path / "s.zarr", interrupt)(done, total)

    with monkeypatch.context() as slow:
        slow.setattr(write, "sha256", digest)
        with pytest.raises(KeyboardInterrupt):
            ingest.ingest(source, tmp_path / "s.zarr", progress=changed)
    check_nothing_kept(tmp_path / "s.zarr", [source])


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_a_source_that_cannot_be_looked_at_in_the_end_has_not_changed(
    two, tmp_path, monkeypatch, number
):
    """As when a ticket expires: what is done stays."""
    store, real = tmp_path / "s.zarr", write.open_without_waiting

    def expire() -> None:
        def refused(path, flags):
            raise OSError(number, os.strerror(number), path)

        monkeypatch.setattr(files.INTERRUPTED, "wait", lambda _: None)
        monkeypatch.setattr(write, "open_without_waiting", refused)

    error = SourceError if number == errno.EACCES else FileReadError
    with pytest.raises(error, match=r"s\.npz cannot be read.*(Permission denied|Input/output)"):
        ingest.ingest(two[0], store, progress=after_the_hash(4, store, expire))
    monkeypatch.setattr(write, "open_without_waiting", real)
    done = []
    ingest.ingest(two[0], store, progress=lambda k, _: done.append(k))
    assert not done


def test_an_interrupt_ends_an_ingest_whose_file_system_fails_at_once(two, tmp_path, monkeypatch):
    fails, real = threading.Event(), Source.read

    def read(source, index):
        def failing():
            fails.set()
            raise OSError(errno.ESTALE, "Stale file handle")

        return files.patiently(source.path, failing) if fails.is_set() else real(source, index)

    def stale(path, flags):
        raise OSError(errno.ESTALE, "Stale file handle", path)

    def fail(done: int, total: int) -> None:
        fails.set()
        monkeypatch.setattr(write, "open_without_waiting", stale)
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()

    monkeypatch.setattr(Source, "read", read)
    began, handler = monotonic(), signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            ingest.ingest(two[0], tmp_path / "s.zarr", progress=when(1, fail, 1, 4))
    finally:
        signal.signal(signal.SIGINT, handler)
    assert monotonic() - began < 10
    assert not files.INTERRUPTED.is_set()
