"""A file system that fails is asked again, as a server is; what it says then is never taken for damage."""

import errno
import fcntl
import io
import shlex
import shutil
import subprocess
from importlib.metadata import EntryPoint
from pathlib import Path

import h5py
import pytest

import homodyne_dask as hd
import ingest
from homodyne_dask.errors import FileReadError, SourceError, StoreError
from homodyne_dask.machine.running_code import python_command
from homodyne_dask.store import chunks as chunk_reader
from homodyne_dask.store import files, hdf5_files
from homodyne_dask.store.scan import open_selection
from homodyne_dask.sweep import blocks as block_cache
from ingest.readers import detect
from tests.ingest_files import manifest, simulated
from tests.result_bits import result_bits
from tests.synthetic import CREEP, measured, store

GIVEN = {"initial": {"D0": 9000.0, "alpha": 0.0}, "fixed": {"D_offset": 1000.0}, "max_passes": 3}
PAUSES = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 15.0, 15.0, 15.0, 15.0]
"""s between the reads of a file that fails all the time."""
CHUNK = "c2/c/1/0/0"
FILES = [CHUNK, "zarr.json", "c2/zarr.json", "c2/manifest.json", "time/c/0", "cuts/c2/c/0/0/0"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    scan = measured(CREEP, 80, (0.0, 45.0), dt=0.1)
    return Path(store(scan, tmp_path_factory.mktemp("whole")).path)


def forget() -> None:
    block_cache.forget()
    open_selection.cache_clear()


@pytest.fixture(autouse=True)
def pauses(monkeypatch) -> list[float]:
    """The pauses that were made, of which none takes time; all is read from disk."""
    made: list[float] = []
    forget()
    monkeypatch.setattr(files.INTERRUPTED, "wait", made.append)
    return made


@pytest.fixture
def failing(monkeypatch):
    real, left = files.open_without_waiting, dict[str, list[int]]()

    def opened(path, flags):
        if left.get(str(path)):
            raise OSError(left[str(path)].pop(), "words of the system", str(path))
        return real(path, flags)

    monkeypatch.setattr(files, "open_without_waiting", opened)

    def fails(path: Path, number: int = errno.ESTALE, times: int = 100) -> list[int]:
        left[str(path)] = [number] * times
        return left[str(path)]

    return fails


def fit(path: Path, **options):
    return hd.fit(str(path), hd.STATIC, **GIVEN, **options)


FOR_A_MOMENT = {
    "raise": dict(zip(FILES, (errno.ESTALE, errno.EIO) * 3, strict=True)),
    "skip": dict(zip(FILES, (errno.ESTALE, errno.EIO) * 3, strict=True)),
    "skip, missing": {CHUNK: errno.ENOENT},
}


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("case", FOR_A_MOMENT)
def test_reads_that_fail_for_a_moment_change_no_bit(whole, failing, pauses, case):
    expected, times = result_bits(fit(whole)), 1 if "missing" in case else 2
    forget()
    left = [failing(whole / file, number, times) for file, number in FOR_A_MOMENT[case].items()]
    result = fit(whole, on_bad_tile=case.split(",")[0])
    assert result_bits(result) == expected
    assert not any(left)
    assert pauses == PAUSES[:times] * len(left)
    assert not result.findings.of("damaged-chunks")


FAILURES = {
    "it fails": (errno.EIO, FileReadError, r" .Input/output error, after 12 retries.: its", PAUSES),
    "too many are open": (errno.EMFILE, FileReadError, r".*files, after 12 .*: close some", PAUSES),
    "a server lost it": (errno.ENODATA, FileReadError, r".*after 12 retries", PAUSES),
    "it forbids": (errno.EACCES, PermissionError, "", []),
}


@pytest.mark.parametrize("what", FAILURES)
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("on_bad_tile", ["raise", "skip"])
def test_a_file_system_that_goes_on_failing_is_named_and_not_taken_for_damage(
    whole, failing, pauses, file, on_bad_tile, what
):
    number, error, said, made = FAILURES[what]
    failing(whole / file, number)
    with pytest.raises(error, match=f"{file}.*{said}"):
        fit(whole, on_bad_tile=on_bad_tile)
    assert pauses == pytest.approx(made)


def test_a_file_system_that_fails_slowly_is_not_asked_for_longer_than_objects(
    whole, failing, pauses, monkeypatch
):
    clock = iter(range(0, 1000, 40))
    monkeypatch.setattr(files, "monotonic", lambda: next(clock))
    failing(whole / "zarr.json", errno.ETIMEDOUT)
    with pytest.raises(FileReadError, match=r"\(Connection timed out, after 2 retries\)"):
        hd.open_dataset(whole)
    assert len(pauses) == 2


@pytest.mark.parametrize("asks", [detect.first_bytes, hdf5_files.check_contents, files.exists])
def test_whether_there_is_a_source_is_asked_again(source, monkeypatch, pauses, asks):
    real, left = Path.stat, [errno.ESTALE]

    def stat(path, **options):
        if left:
            raise OSError(left.pop(), "Stale file handle")
        return real(path, **options)

    monkeypatch.setattr(Path, "stat", stat)
    asks(source)
    assert pauses == PAUSES[:1]


def test_a_read_without_an_answer_yet_is_repeated_and_a_failing_one_named(
    whole, monkeypatch, pauses
):
    says = [None, None, OSError(errno.ENOSYS, "words of the system")]

    class Slow(io.FileIO):
        """Python returns None for EAGAIN."""

        def read(self, size=-1):
            if isinstance(says[0], OSError):
                raise says[0]
            return says.pop(0)

    monkeypatch.setattr(files, "open", lambda path, *_, **__: Slow(path), raising=False)
    with pytest.raises(OSError, match=r"words of the system: '.*zarr.json'"):
        files.read_regular_file(whole / "zarr.json", 10_000)
    assert pauses == PAUSES[:1]


def wrong_at_first(monkeypatch, times: int) -> list[Path]:
    real, seen = files.read_with_tail, list[Path]()

    def read(path, *given):
        seen.append(path)
        body, tail = real(path, *given)
        if seen.count(path) <= times:
            body = bytes([body[0] ^ 128]) + body[1:]
        return body, tail

    for module in (files, chunk_reader):
        monkeypatch.setattr(module, "read_with_tail", read)
    return seen


def test_what_is_wrong_once_is_read_again_and_changes_no_bit(whole, monkeypatch, pauses):
    expected = result_bits(fit(whole))
    forget()
    seen = wrong_at_first(monkeypatch, 1)
    assert result_bits(fit(whole, on_bad_tile="skip")) == expected
    assert all(seen.count(whole / file) > 1 for file in FILES)
    assert not pauses


def test_a_range_of_a_shard_is_read_again(whole, tmp_path, failing, pauses):
    source = whole.with_suffix(".npz")
    ingest.ingest(source, tmp_path / "sharded.zarr", sharded=True)
    expected = result_bits(fit(whole))
    assert not (tmp_path / "sharded.zarr" / CHUNK).exists()
    failing(tmp_path / "sharded.zarr/c2/c/0/0/0", times=3)
    assert result_bits(fit(tmp_path / "sharded.zarr")) == expected
    assert pauses == PAUSES[:3]


@pytest.fixture
def source(tmp_path) -> Path:
    return simulated(tmp_path / "A.hdf")


def matrices_fail(monkeypatch, times: int) -> None:
    real, left = h5py.Dataset.__getitem__, [errno.EIO] * times

    def read(dataset, *at, **options):
        if left and dataset.shape == (40, 40):
            raise OSError(left.pop(), "Can't synchronously read data (file read failed: errno = 5)")
        return real(dataset, *at, **options)

    monkeypatch.setattr(h5py.Dataset, "__getitem__", read)


@pytest.mark.long
def test_a_source_on_a_file_system_that_fails_for_a_moment_is_read_again(
    source, tmp_path, monkeypatch, pauses
):
    expected = manifest(ingest.ingest(source, tmp_path / "whole.zarr").store)
    real, left = h5py.File, [errno.ESTALE] * 2

    def opened(*given, **options):
        if left:
            raise OSError(left.pop(), "Unable to synchronously open file (errno = 116)")
        return real(*given, **options)

    matrices_fail(monkeypatch, 2)
    monkeypatch.setattr(hdf5_files.h5py, "File", opened)
    assert manifest(ingest.ingest(source, tmp_path / "again.zarr").store) == expected
    assert len(pauses) == 4


@pytest.mark.long
def test_a_source_on_a_file_system_that_goes_on_failing_is_not_damaged(
    source, tmp_path, monkeypatch
):
    with monkeypatch.context() as failing:
        matrices_fail(failing, 1000)
        with pytest.raises(FileReadError, match=r"A\.hdf cannot be read \(Input/output error,"):
            ingest.ingest(source, tmp_path / "s.zarr")
    assert len(ingest.ingest(source, tmp_path / "s.zarr").bins) == 3


KILLED = "import h5py, os, sys; f = h5py.File(sys.argv[1], 'w'); f['c2'] = [1.0]; os._exit(9)"
DAMAGED = {
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:3000]),
    "was killed before it wrote them": lambda file: subprocess.run(
        python_command("-c", KILLED, file), check=False
    ),
}


@pytest.mark.parametrize("said", DAMAGED)
def test_a_damaged_source_is_not_read_again(source, pauses, said):
    DAMAGED[said](source)
    with pytest.raises(SourceError, match=said):
        hdf5_files.check_contents(source)
    assert not pauses


def test_a_file_that_a_writer_has_locked_is_not_waited_for(source, pauses):
    with source.open("r+b") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        with pytest.raises(SourceError, match="its writer runs, or died"):
            ingest.ingest(source)
    assert not pauses


def test_a_source_that_the_system_does_not_open_is_not_called_truncated(source, monkeypatch):
    def opened(*_, **__):
        raise OSError(errno.ENOMEM, "Unable to synchronously open file (errno = 12)")

    monkeypatch.setattr(hdf5_files.h5py, "File", opened)
    with pytest.raises(SourceError, match=r"errno = 12.*check its permissions and its file system"):
        hdf5_files.check_contents(source)


WRITER = """
import h5py, os, sys
with h5py.File(sys.argv[1]) as a:
    f = h5py.File(sys.argv[2], "w", libver="latest")
    for name in a: a.copy(name, f)
f.flush(); f.swmr_mode = True; os._exit(9)
"""


@pytest.mark.skipif(not shutil.which("h5clear"), reason="h5clear is not installed")
def test_the_command_for_a_file_whose_writer_was_killed_makes_it_readable(source, tmp_path):
    left = tmp_path / "left by its writer.hdf"
    subprocess.run(python_command("-c", WRITER, source, left), check=False)
    with pytest.raises(SourceError, match="its writer runs, or died") as said:
        hdf5_files.check_contents(left)
    subprocess.run(shlex.split(str(said.value).split("`")[1]), check=True)
    hdf5_files.check_contents(left)


def clumsy(path, options):
    raise OSError(errno.EREMOTEIO, "Remote I/O error", str(path))


def test_a_reader_of_a_package_is_not_blamed_for_a_file_system(tmp_path, monkeypatch):
    (tmp_path / "A.raw").write_bytes(b"of another format")
    point = EntryPoint("clumsy", f"{__name__}:clumsy", detect.GROUP)
    monkeypatch.setattr(detect, "offered_in", lambda group: [point])
    with pytest.raises(FileReadError, match=r"A\.raw cannot be read \(Remote I/O error, after 12"):
        ingest.ingest(tmp_path / "A.raw", tmp_path / "s.zarr")


def fail_at_first(path: str, times: int) -> None:
    real, left = files.open_without_waiting, [errno.ESTALE] * times
    files.left_to_fail = left  # type: ignore[attr-defined]

    def opened(name, flags):
        if str(name) == path and left:
            raise OSError(left.pop(), "Stale file handle", name)
        return real(name, flags)

    files.open_without_waiting = opened


@pytest.mark.long
@pytest.mark.cluster
def test_reads_of_workers_are_repeated(whole):
    expected = result_bits(fit(whole))
    with hd.local_cluster(processes=1, threads=1) as client:
        client.wait_for_workers(1, timeout=120)
        client.run(fail_at_first, str(whole / CHUNK), 2)
        result = fit(whole, client=client)
        left = client.run(lambda: files.left_to_fail)  # type: ignore[attr-defined]
    assert [*left.values()] == [[]]
    assert result_bits(result) == expected


def test_a_missing_chunk_is_damage_after_a_second_read(whole, tmp_path, pauses):
    copy = Path(shutil.copytree(whole, tmp_path / "copy.zarr"))
    (copy / CHUNK).unlink()
    with pytest.raises(StoreError, match=r"cannot be read \(it is missing\): ingest the source"):
        fit(copy)
    assert pauses == PAUSES[:1]
