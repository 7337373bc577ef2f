"""What may pass by itself is said once, waited for, and gone on from."""

import itertools
import json
import os
import re
import time
from pathlib import Path

import pytest

from homodyne_dask.apps.watch import folder_state
from homodyne_dask.apps.watch.folder_state import STATE
from homodyne_dask.apps.watch.scans_page import ScanTable, live_pictures
from homodyne_dask.apps.watch.watch_loop import ALL
from homodyne_dask.errors import ClusterError, FileReadError
from homodyne_dask.results.data.fit_rows import fit_row, row_of_scan
from tests.apps.watch.instant_fits import (
    GOOD,
    NAMES,
    InstantFit,
    InstantFits,
    check_ends,
    table_rows,
    watch_of,
    watch_until,
    watch_until_quiet,
)
from tests.results.made_results import flow_result

pytestmark = pytest.mark.usefixtures("no_page_pictures")


def fail_times(number: int, error: Exception, real):
    """A function that raises so many times, and then does what it should."""
    left = [error] * number

    def run(*arguments):
        if left:
            raise left.pop()
        return real(*arguments)

    return run


FULL = OSError(28, "No space left on device", "out/x")
PASSING = {
    "a full disk": ("begin", FULL, ALL),
    "a disk that is full at the end": ("result", FULL, ALL),
    "workers that are lost": ("begin", ClusterError("no scheduler answers: is it running?"), ALL),
    "a file that may not be read": ("begin", PermissionError(13, "no", "{source}/A.h5"), "A.h5"),
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
    owner = {"begin": InstantFits, "result": InstantFit}[step]
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
    write, writes = folder_state.write_with_checksum, itertools.count()

    def written(*given):
        fail_times(next(writes) == 2, error, write)(*given)

    monkeypatch.setattr(folder_state, "write_with_checksum", written)
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
}


@pytest.mark.parametrize("to", LINKS)
def test_an_entry_that_cannot_be_looked_at_is_a_row_and_the_others_go_on(source, results, to):
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
    (source / "A.h5").write_bytes(GOOD + b"1")
    watch_until_quiet(watch)
    check_ends(watch)


def test_a_row_of_an_entry_that_could_not_be_looked_at_goes_with_it(source, results):
    (source / "A.h5").symlink_to("A.h5")
    watch = watch_of(source, results)
    watch_until(watch, lambda: watch.waiting)
    assert table_rows(results)
    (source / "A.h5").unlink()
    watch_until_quiet(watch)
    assert not table_rows(results)


@pytest.mark.parametrize("step", ["begin", "result"])
def test_what_cannot_be_written_for_one_file_is_its_row_and_the_others_go_on(
    source, results, monkeypatch, step
):
    for name in "AB":
        (source / f"{name}.h5").write_bytes(GOOD + name.encode())
    watch = watch_of(source, results)
    owner = InstantFit if step == "result" else InstantFits
    real, broken = getattr(owner, step), [True]

    def run(self, *given):
        of = str(self.folder if step == "result" else given[0])
        if broken and Path(of).name.startswith("A"):
            raise IsADirectoryError(21, "Is a directory", f"{results}/A_fit/report.html")
        return real(self, *given)

    monkeypatch.setattr(owner, step, run)
    watch_until(watch, lambda: "B.h5" in watch.table.rows and "A.h5" in watch.table.rows)
    rows = {row["scan"]: row for row in table_rows(results)}
    assert rows["B.h5"]["outcome"] == "CONVERGED"
    assert f"{results}/A_fit/report.html: Is a directory" in rows["A.h5"]["message"]
    broken.clear()
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
    (results / "A_fit" / "result").write_bytes(b"\xff")
    watch = watch_of(source, results)
    watch.resume()
    watch.publish(last=True)
    rows = {row["scan"]: row["outcome"] for row in table_rows(results)}
    assert rows == {"A.h5": "FAILED", "B.h5": "CONVERGED"}


@pytest.mark.parametrize("hours", [-5, 5])
def test_a_clock_that_is_set_loses_and_repeats_nothing(source, results, monkeypatch, capsys, hours):
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
    lines = re.findall(r"\((-?[0-9.]+) s\)$", capsys.readouterr().err, re.MULTILINE)
    assert len(lines) == 3
    assert all(0 <= float(seconds) < 20 for seconds in lines)


@pytest.mark.long
@pytest.mark.parametrize("seconds", [-1e30, 1e20, float("nan"), float("inf")])
def test_a_file_of_an_impossible_time_is_a_row_like_others(tmp_path, seconds):
    row = fit_row("A.h5", tmp_path, flow_result())
    rows = {str(at): row_of_scan(1, at, row) for at in (seconds, 1.8e9)}
    assert live_pictures([*rows.values()], {})
    ScanTable(NAMES, rows).write(tmp_path, ["done"])
    assert [bool(row["time"]) for row in table_rows(tmp_path)] == [False, True]
