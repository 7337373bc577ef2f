"""What may pass by itself is said once, waited for, and gone on from."""

import itertools
import json

import pytest

from homodyne_dask.apps.watch import watch_loop as watcher
from homodyne_dask.apps.watch.folder_state import STATE
from tests.apps.watch.instant_fits import GOOD, check_ends, watch_of, watch_until_quiet

pytestmark = pytest.mark.usefixtures("no_page_pictures")


def fail_times(number: int, error: Exception, real):
    """A function that raises so many times, and then does what it should."""
    left = [error] * number

    def run(*arguments):
        if left:
            raise left.pop()
        return real(*arguments)

    return run


@pytest.mark.parametrize("step", ["ingest", "begin", "load"])
def test_a_full_disk_is_said_waited_for_and_gone_on_from(folders, capsys, step):
    source, results = folders
    (source / "A.h5").write_bytes(GOOD)
    watch = watch_of(source, results)
    error = OSError(28, "No space left on device", f"{results}/x")
    setattr(watch.fits, step, fail_times(2, error, getattr(watch.fits, step)))
    watch_until_quiet(watch)
    said = capsys.readouterr().err
    assert said.count("waiting for the results") == 1
    assert f"{results}/x cannot be written: the disk is full" in said
    assert "--resume" not in said  # it goes on by itself
    assert "the results: no longer waited for" in said
    check_ends(watch)


def test_a_state_or_page_that_cannot_be_written_is_written_later(folders, monkeypatch, capsys):
    source, results = folders
    (source / "A.h5").write_bytes(GOOD)
    watch = watch_of(source, results)
    error = OSError(28, "No space left on device", "x")
    watch.table.write = fail_times(1, error, watch.table.write)
    save = watch.state.save
    saves = itertools.count()
    monkeypatch.setattr(watch.state, "save", lambda: fail_times(next(saves) == 3, error, save)())
    watch_until_quiet(watch)
    assert "waiting for the state" in capsys.readouterr().err
    check_ends(watch)
    assert json.loads((results / STATE).read_text())["files"].keys() == {"A.h5"}


@pytest.mark.parametrize("which", [0, 1])
def test_a_folder_that_is_gone_for_a_while_is_waited_for(folders, capsys, which):
    source, results = folders
    watch = watch_of(source, results)
    watch_until_quiet(watch)
    aside = folders[which].rename(source.parent / "aside")
    (source if which else aside).joinpath("A.h5").write_bytes(GOOD)
    for _ in range(4):
        watch.step()
    said = ("the watched folder", "the folder of results")[which]
    assert watch.retries.reasons.keys() == {said}
    assert not folders[which].exists()
    aside.rename(folders[which])
    watch_until_quiet(watch)
    assert f"{said}: no longer waited for" in capsys.readouterr().err
    check_ends(watch)


def test_a_file_that_may_not_be_read_is_waited_for(folders, monkeypatch, capsys):
    source, results = folders
    (source / "A.h5").write_bytes(GOOD)
    watch = watch_of(source, results)
    denied = PermissionError(13, "Permission denied", str(source / "A.h5"))
    reading = fail_times(2, denied, watcher.content_digest)
    monkeypatch.setattr(watcher, "content_digest", reading)
    watch_until_quiet(watch)
    said = capsys.readouterr().err
    assert f"waiting for A.h5, tried again every 0.05 s: {source}/A.h5: Permission denied" in said
    check_ends(watch)
