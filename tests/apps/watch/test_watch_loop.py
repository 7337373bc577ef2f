"""A watched folder: each content is fitted once, nothing is lost, what may pass by itself is waited for."""

import itertools
import json
import os
import random
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from homodyne_dask.apps.watch import folder_state, watch_loop
from homodyne_dask.apps.watch.folder_state import STATE, WatchState
from homodyne_dask.apps.watch.scans_page import ScanTable
from homodyne_dask.apps.watch.watch_loop import ALL
from homodyne_dask.apps.watch.watched_files import listed
from homodyne_dask.errors import ClusterError, FileReadError, SourceError, StoreInUse
from homodyne_dask.results.data.fit_rows import fit_row
from homodyne_dask.results.files import json_files
from tests.apps.watch.instant_fits import (
    BAD,
    GOOD,
    NAMES,
    InstantFit,
    InstantFits,
    check_ends,
    digest_of,
    table_rows,
    watch_of,
    watch_until,
    watch_until_quiet,
)
from tests.html_pages import ParsedPage
from tests.results.made_results import flow_result

pytestmark = pytest.mark.usefixtures("no_page_pictures")


def drop_files(folder: Path, number: int, chance: random.Random, pause: float) -> None:
    """Write files as correlators, copies and accidents do: in parts, by rename, again, and bad ones."""

    def content(kind: bytes) -> bytes:
        return kind + chance.randbytes(200)

    def wait() -> None:
        time.sleep(chance.expovariate(1 / pause) if pause else 0.0)

    for n in range(number):
        file = folder / f"A{n:04d}.h5"
        kinds = {"whole": [GOOD], "again": 3 * [GOOD], "bad": [BAD], "repaired": [BAD, GOOD]}
        way = chance.choice([*kinds, "parts", "renamed", "copy"])
        for kind in kinds.get(way, ()):
            file.write_bytes(content(kind))
            wait()
        if way == "parts":
            whole = content(GOOD)
            with file.open("wb", buffering=0) as open_file:
                for part in itertools.batched(whole, 50):
                    open_file.write(bytes(part))
                    wait()
        elif way == "renamed":
            aside = folder / f".A{n:04d}.h5.Xy12"
            aside.write_bytes(content(GOOD))
            wait()
            aside.rename(file)
        elif way == "copy":
            others = sorted(folder.glob("A*.h5"))
            file.write_bytes(chance.choice(others).read_bytes() if others else content(GOOD))
        wait()


@pytest.mark.parametrize(
    ("number", "pause"), [(12, 0.02), pytest.param(200, 0.05, marks=pytest.mark.slow)]
)
def test_files_dropped_at_random_times_end_with_the_result_of_their_last_content(
    source, results, number, pause
):
    watch = watch_of(source, results)
    drops = threading.Thread(target=drop_files, args=(source, number, random.Random(7), pause))
    drops.start()
    watch.resume()
    while drops.is_alive():
        watch.step()
    drops.join()
    watch_until_quiet(watch)
    check_ends(watch)


class KilledError(BaseException): ...


STEPS = [
    (WatchState, "write"),
    (watch_loop, "remove_store"),
    (folder_state, "remove_tree"),
    (InstantFits, "begin"),
    (InstantFit, "output"),
    (Path, "rename"),
    (Path, "replace"),
]


def kill_at(monkeypatch, step: int) -> None:
    """Let the watcher be killed before (even) or after (odd) one of its steps."""
    counted = itertools.count()

    def killed(real):
        def run(*arguments, **more):
            if next(counted) == step:
                raise KilledError
            value = real(*arguments, **more)
            if next(counted) == step:
                raise KilledError
            return value

        return run

    for owner, name in STEPS:
        monkeypatch.setattr(owner, name, killed(getattr(owner, name)))


@pytest.mark.parametrize("stores", ["keep", "delete"])
@pytest.mark.parametrize("every", [47, pytest.param(1, marks=pytest.mark.slow)])
def test_a_watcher_killed_at_any_step_goes_on_with_nothing_twice_and_nothing_lost(
    source, monkeypatch, every, stores
):
    """A file that is overwritten and then as it was at first, another one, a bad one, a copy."""
    options = {"interval": 0.0, "stores": stores}
    first, second = GOOD + b"1", GOOD + b"2"
    (source / "C.h5").write_bytes(BAD)
    for step in itertools.count(0, every):
        results = source.parent / f"out{step}"
        killed = 0
        for version in (first, second, first):
            (source / "A.h5").write_bytes(version)
            (source / "B.h5").write_bytes(GOOD + b"3" + version)
            (source / "D.h5").write_bytes(first)
            with monkeypatch.context() as patch:
                kill_at(patch, step)
                try:
                    watch_until_quiet(watch_of(source, results, **options))
                except KilledError:
                    killed += 1
            watch = watch_of(source, results, **options)
            watch_until_quiet(watch)
            check_ends(watch, most=2)  # A.h5 as it was at first
            assert (results / "A.h5_fit" / "result").read_text() == digest_of(version)
            kept = [*results.glob("stores/*.zarr")]
            assert len(kept) == (3 if stores == "keep" else 0)
        assert watch.fits.fitted().total() == 7
        if not killed:
            break
    assert step > 30


def test_a_bad_file_is_a_row_with_its_sentence_and_is_tried_again_when_it_changes(source, results):
    (source / "A.h5").write_bytes(BAD)
    watch = watch_of(source, results)
    tried = []
    real = watch.fits.begin
    watch.fits.begin = lambda *of: tried.append(of) or real(*of)
    watch_until_quiet(watch)
    watch_until_quiet(watch)
    assert len(tried) == 1
    (row,) = table_rows(results)
    assert row["message"] == f"{source}/A.h5 is no scan: copy it again"
    page = ParsedPage((results / "scans.html").read_text())
    assert f"li: failed: A.h5: {source}/A.h5 is no scan: copy it again" in page.text
    (source / "A.h5").write_bytes(GOOD)
    watch_until_quiet(watch)
    assert table_rows(results)[0]["outcome"] == "CONVERGED"


def test_the_row_of_a_bad_file_goes_with_it_and_it_is_tried_again_when_it_comes_back(
    source, results
):
    (source / "A.h5").write_bytes(BAD)
    (source / "B.h5").write_bytes(GOOD)
    watch = watch_of(source, results)
    watch_until_quiet(watch)
    (source / "A.h5").rename(source.parent / "away")
    watch_until_quiet(watch)
    assert [row["outcome"] for row in table_rows(results)] == ["CONVERGED"]
    watch_until_quiet(watch_of(source, results))
    assert [row["scan"] for row in table_rows(results)] == ["B.h5"]
    (source.parent / "away").rename(source / "A.h5")
    watch_until_quiet(watch_of(source, results))
    assert {row["scan"]: row["outcome"] for row in table_rows(results)} == {
        "A.h5": "FAILED", "B.h5": "CONVERGED",
    }  # fmt: skip


def test_files_of_one_stem_and_copies_have_results_of_their_own(source, results):
    for name in ("A.h5", "A_results.h5", "B.h5"):
        (source / name).write_bytes(GOOD)
        watch_until_quiet(watch_of(source, results))
    folders = {row["scan"]: row["folder"] for row in table_rows(results)}
    assert folders == {name: f"{name}_fit" for name in ("A.h5", "A_results.h5", "B.h5")}


def test_temporary_names_are_known(source):
    names = {"A0123_results.hdf", "sample_temp_300K_results.hdf", "part2.hdf"}
    for name in (*names, ".A.hdf.Xy12", "A.tmp.hdf", "A.part", "~A.hdf", "A.hdf~"):
        (source / name).touch()
    assert listed(source, "*").keys() == names


def test_a_file_that_grows_is_not_ready(source, results):
    watch = watch_of(source, results, interval=0.0)
    for n in range(1, 6):
        (source / "A.h5").write_bytes(GOOD * n)
        watch.look()
        assert not watch.ready
    watch.look()
    assert watch.ready.keys() == {"A.h5"}


def test_a_file_that_changes_while_it_is_ingested_is_looked_at_again(source, results):
    (source / "A.h5").write_bytes(GOOD + b"1")
    watch = watch_of(source, results)
    real = watch.fits.begin

    def begin(path: Path, store: Path, folder: Path) -> tuple[ExitStack, InstantFit]:
        begun = real(path, store, folder)
        if path.read_bytes() == GOOD + b"1":
            path.write_bytes(GOOD + b"22")
        return begun

    watch.fits.begin = begin
    watch_until_quiet(watch)
    check_ends(watch)


def test_files_are_fitted_and_listed_in_the_order_of_their_times(source, results):
    for name in "CAB":
        file = source / f"{name}.h5"
        file.write_bytes(GOOD + name.encode())
        os.utime(file, (ord(name), ord(name)))
    watch = watch_of(source, results)
    watch_until_quiet(watch)
    assert [*watch.state.ended] == ["A.h5", "B.h5", "C.h5"]
    os.utime(source / "A.h5", (ord("D"), ord("D")))
    watch_until_quiet(watch)
    rows = table_rows(results)
    assert [(row["scan"], row["number"]) for row in rows] == [
        ("B.h5", "1"),
        ("C.h5", "2"),
        ("A.h5", "3"),
    ]


def fail_times(number: int, error: Exception, real):
    """A function that raises so many times, and then does what it should."""
    left = [error] * number

    def run(*arguments):
        if left:
            raise left.pop()
        return real(*arguments)

    return run


FULL = OSError(28, "No space left on device", "out/x")
UNREADABLE = SourceError("A.h5 cannot be read: Permission denied")
UNREADABLE.__cause__ = PermissionError(13, "Permission denied")
PASSING = {
    "a full disk": ("begin", FULL, ALL),
    "a disk that is full at the end": ("output", FULL, ALL),
    "workers that are lost": ("begin", ClusterError("no scheduler answers: is it running?"), ALL),
    "a file that may not be read": ("begin", UNREADABLE, "A.h5"),
    "a folder in place of a report": ("output", IsADirectoryError(21, "no", "{source}/report"), "A.h5"),
    "a store that is being written": ("begin", StoreInUse("stores/A.h5.zarr is in use"), "A.h5"),
    "a file that is copied there again": ("begin", FileReadError("A.h5 changed: it was replaced"), "A.h5"),
}  # fmt: skip
"""The step that fails twice, with what, and what is waited for."""


@pytest.mark.parametrize("what", PASSING)
def test_what_passes_is_said_once_waited_for_and_gone_on_from(
    source, results, monkeypatch, capsys, what
):
    (source / "A.h5").write_bytes(GOOD)
    watch = watch_of(source, results)
    step, error, waiting = PASSING[what]
    if isinstance(error, OSError):
        error = type(error)(*error.args, str(error.filename).format(source=source))
    owner = {"begin": InstantFits, "output": InstantFit}[step]
    monkeypatch.setattr(owner, step, fail_times(2, error, getattr(owner, step)))
    watch_until_quiet(watch)
    said = capsys.readouterr().err
    assert said.count(f"waiting for {waiting}, retrying every 0.05 s: ") == 1
    assert "--resume" not in said  # it goes on by itself
    assert f"no longer waiting for {waiting}" in said
    check_ends(watch)


def test_a_state_or_page_that_cannot_be_written_is_written_later(
    source, results, monkeypatch, capsys
):
    (source / "A.h5").write_bytes(GOOD)
    watch = watch_of(source, results)
    error = OSError(28, "No space left on device", "x")
    watch.table.write = fail_times(1, error, watch.table.write)
    write, writes = json_files.write_with_checksum, itertools.count()

    def written(*given):
        fail_times(next(writes) == 0, error, write)(*given)

    monkeypatch.setattr(json_files, "write_with_checksum", written)
    watch_until_quiet(watch)
    said = capsys.readouterr().err
    assert f"waiting for {ALL}" in said
    assert "waiting for the page" in said
    check_ends(watch)
    assert json.loads((results / STATE).read_text())["files"].keys() == {"A.h5"}


@pytest.mark.parametrize("which", [0, 1])
def test_a_folder_that_is_gone_for_a_while_is_waited_for(source, results, capsys, which):
    watch = watch_of(source, results)
    watch_until_quiet(watch)
    aside = (source, results)[which].rename(source.parent / "aside")
    (source if which else aside).joinpath("A.h5").write_bytes(GOOD)
    for _ in range(4):
        watch.step()
    assert ALL in watch.waiting
    assert not (source, results)[which].exists()
    aside.rename((source, results)[which])
    watch_until_quiet(watch)
    assert f"no longer waiting for {ALL}" in capsys.readouterr().err
    check_ends(watch)


LINKS = {
    "A.h5": "Too many levels of symbolic links",
    "n" * 300: "File name too long",
    "no_folder/A.h5": "Not a directory",
    "nowhere": "No such file or directory",
}


@pytest.mark.parametrize("to", LINKS)
def test_an_entry_that_cannot_be_looked_at_is_a_row_while_it_is_there_and_others_go_on(
    source, results, to
):
    (source / "no_folder").touch()
    (source / "A.h5").symlink_to(to)
    (source / "B.h5").write_bytes(GOOD)
    watch = watch_of(source, results)
    watch_until(watch, lambda: "B.h5" in watch.table.rows and "A.h5" in watch.waiting)
    rows = {row["scan"]: row for row in table_rows(results)}
    assert rows["B.h5"]["outcome"] == "CONVERGED"
    assert rows["A.h5"]["outcome"] == "FAILED"
    assert f"{source}/A.h5: {LINKS[to]}" in rows["A.h5"]["message"]
    (source / "A.h5").unlink()
    watch_until_quiet(watch)
    assert [row["scan"] for row in table_rows(results)] == ["B.h5"]
    (source / "A.h5").write_bytes(GOOD + b"1")
    watch_until_quiet(watch)
    check_ends(watch)


def test_once_ends_with_an_entry_that_cannot_be_looked_at_after_the_others(source, results):
    (source / "A.h5").symlink_to("A.h5")
    (source / "B.h5").write_bytes(GOOD)
    watch = watch_of(source, results, once=True)
    assert watch.run() == 2
    assert [row["outcome"] for row in table_rows(results)] == ["FAILED", "CONVERGED"]


def test_a_result_that_cannot_be_read_back_is_a_row_and_the_others_are_shown(source, results):
    for name in "AB":
        (source / f"{name}.h5").write_bytes(GOOD + name.encode())
    watch_until_quiet(watch_of(source, results))
    (results / "A.h5_fit" / "result").write_bytes(b"\xff")
    watch = watch_of(source, results)
    watch.resume()
    watch.publish(last=True)
    rows = {row["scan"]: row["outcome"] for row in table_rows(results)}
    assert rows == {"A.h5": "FAILED", "B.h5": "CONVERGED"}


@pytest.mark.parametrize("hours", [-5, 5])
def test_a_clock_that_is_set_loses_and_repeats_nothing(source, results, monkeypatch, hours):
    calls, real = itertools.count(), time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600.0 * hours * next(calls))
    watch = watch_of(source, results)
    error = OSError(28, "No space left on device", f"{results}/x")
    watch.fits.begin = fail_times(1, error, watch.fits.begin)
    for n in range(3):
        (source / f"A{n}.h5").write_bytes(GOOD + bytes([n]))
        os.utime(source / f"A{n}.h5", (time.time(), time.time()))
        watch_until_quiet(watch)
    check_ends(watch)
    assert len(watch.fits.fitted()) == 3


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("seconds", [-1e30, 1e20, float("nan"), float("inf")])
def test_a_file_of_an_impossible_time_is_a_row_like_others(tmp_path, seconds):
    row = fit_row("A.h5", tmp_path, flow_result())
    rows = {str(written): (written, row) for written in (seconds, 1.8e9)}
    ScanTable(NAMES, rows).write(tmp_path, ["done"])
    assert sorted(bool(row["time"]) for row in table_rows(tmp_path)) == [False, True]
