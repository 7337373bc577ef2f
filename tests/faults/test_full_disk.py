"""A disk becomes full at any file: one sentence names it, nothing else is said, what was there is kept."""

import io
import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imsave

import homodyne_dask as hd
from homodyne_dask.document.blocks import Picture
from homodyne_dask.results.data.fit_rows import fit_row
from homodyne_dask.results.files import result_folder as folders
from homodyne_dask.results.views import fit_figures as plots
from homodyne_dask.results.views.style import TITLES
from homodyne_dask.solver import checkpoint
from homodyne_dask.store.files import write_file
from tests.applications import made_for
from tests.ingest_files import simulated
from tests.result_bits import folder_bits
from tests.results.made_results import scan_of
from tests.run_command import run
from tests.synthetic import CREEP

pytestmark = pytest.mark.timeout(600)

imsave(png := io.BytesIO(), np.frombuffer(os.urandom(4 * 50 * 45), np.uint8).reshape(50, 45, 4))
PICTURE = png.getvalue()


@pytest.fixture(scope="module")
def mounted(tmp_path_factory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("disk")
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", place], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.fixture
def disk(mounted) -> Path:
    for path in mounted.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return mounted


@pytest.fixture
def one_picture(monkeypatch):
    def save_all(view, folder, suffix):
        path = folder / f"{next(iter(TITLES))}.png"
        write_file(path, PICTURE)
        return [path]

    monkeypatch.setattr(plots, "save_all", save_all)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    scan = scan_of(tmp_path_factory.mktemp("scan"), CREEP, n=40)
    return hd.fit(scan, hd.STATIC), scan


def leave_free(disk: Path, free: int | None) -> None:
    """Leave so many bytes of the disk free; None: all that is not needed by its files."""
    filler = disk / "filler"
    filler.unlink(missing_ok=True)
    if free is not None:
        filler.write_bytes(b"x" * (shutil.disk_usage(disk).free - free))


def file_contents(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def full_at_each_file(disk: Path, write, most: int, step: int) -> set[str]:
    """Run `write` with more and more room until it succeeds; return the names of the files that had none."""
    refused = set()
    for free in range(0, most, step):
        leave_free(disk, free)
        try:
            write()
        except OSError as e:
            refused.add(Path(e.filename).name)
            continue
        return refused
    raise AssertionError("never enough room")


def unchanged(folder: Path, before: dict[str, bytes], write) -> None:
    try:
        write()
    except OSError:
        assert file_contents(folder) == before
        raise


def index_of(at: Path, result, _, number: int = 60) -> None:
    entries = [fit_row(f"{n}.zarr", None, result, "", {}) for n in range(number)]
    folders.write_index(at, list(result.parameters["param"].values), entries, 61)


WRITERS = {
    "a result": lambda at, result, scan: folders.write_result(result, scan, at),
    "an index": index_of,
    "JSON": lambda at, result, scan: result.to_json(at / "result.json"),
}


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("what", WRITERS)
def test_a_file_without_room_is_named_and_what_was_there_is_kept(
    disk, fitted, one_picture, capfd, monkeypatch, what
):
    monkeypatch.setattr(folders, "_picture", lambda *_: Picture("title", "text", PICTURE))
    folder, write = disk / "here", partial(WRITERS[what], disk / "here", *fitted)
    folder.mkdir()
    leave_free(disk, None)
    write()
    before = file_contents(folder)
    if what == "a result":
        monkeypatch.setattr(folders, "result_netcdf", lambda *_: before["result.nc"])  # quickly
    if what == "an index":  # of one scan; that of sixty has no room
        index_of(folder, *fitted, number=1)
        before = file_contents(folder)
    refused = full_at_each_file(disk, partial(unchanged, folder, before, write), 200_000, 4096)
    assert {Path(name).name for name in before} >= refused > set()
    assert file_contents(folder).keys() == before.keys()
    assert capfd.readouterr() == ("", "")


@pytest.mark.long
def test_a_series_of_which_not_all_is_written_is_none(disk, fitted, capfd):
    folder, result = disk / "A_fit_q", fitted[0]
    entries = [fit_row("part 1", None, result, "", {"q": 1})]  # a second one would be drawn

    def write():
        try:
            names = list(result.parameters["param"].values)
            folders.write_index(folder, names, entries, 1, folders.PARTS)
        except OSError:
            assert not (folder / "series.json").exists()
            assert not list(folder.glob("*.partial"))
            raise

    refused = full_at_each_file(disk, write, 200_000, 4096)
    assert refused == {f"series.{end}" for end in ("csv", "html", "txt", "nc", "json")}
    assert capfd.readouterr() == ("", "")


SIMULATE = ("--scenario", "static", "--angles", "2", "--frames", "64", "--overwrite")
INTO = ("{disk}/fit.yaml", "--overwrite")
COMMANDS = {
    "fit": ("fit", "{scan}", "--model", "static", "--output", "{disk}/A_fit", "--overwrite"),
    "ingest": ("ingest", "{source}", "{disk}/A_c2.zarr"),
    "simulate aps-u": ("simulate", "{disk}/A.hdf", *SIMULATE),
    "simulate aps-legacy": ("simulate", "{disk}/A.hdf", *SIMULATE, "--layout", "aps-legacy"),
    "config": ("config", *INTO),
    "from-homodyne": ("from-homodyne", "{source}.yaml", "--output", *INTO),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    path = simulated(tmp_path_factory.mktemp("source") / "A.hdf", n=40)
    Path(f"{path}.yaml").write_text(made_for("migration.configurations").SHORT_YAML)
    return path


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "free",
    [0, 40_960, *(pytest.param(n, marks=pytest.mark.slow) for n in range(8192, 400_000, 16_384))],
)
def test_a_command_on_a_full_disk_is_one_sentence_and_goes_on_when_there_is_room(
    disk, fitted, source, one_picture, command, free
):
    names = {"disk": disk, "scan": fitted[1].path, "source": source}
    words = [word.format(**names) for word in COMMANDS[command]]
    leave_free(disk, None)
    if command != "ingest":  # it would find its store complete
        assert run(*words).exit_code == 0
    before = file_contents(disk)
    leave_free(disk, free)
    result = run(*words)
    if result.exit_code == 0:
        return
    assert result.exit_code == 2
    said = [line for line in result.stderr.splitlines() if not line.startswith(("pass ", "2,340 "))]
    (sentence,) = said
    assert sentence.startswith("error: ")
    assert str(disk) in sentence
    assert "cannot be written" in sentence
    leave_free(disk, None)
    kept = file_contents(disk)
    assert {name: kept[name] for name in before} == before
    if "A_fit/checkpoint.json" in kept:
        words[-1] = "--resume"
    assert run(*words).exit_code == 0


@pytest.mark.long
def test_a_disk_that_becomes_full_during_a_fit_costs_no_bit(disk, fitted, one_picture, monkeypatch):
    """The third checkpoint finds no room; the one before is kept, and its fit goes on from there."""
    words = ("fit", str(fitted[1].path), "--model", "static", "--output")
    leave_free(disk, None)
    assert run(*words, str(disk / "whole")).exit_code == 0
    saves, save = [], checkpoint.save

    def saving(*arguments) -> None:
        saves.append(leave_free(disk, 0) if len(saves) == 2 else None)
        save(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", saving)
        result = run(*words, str(disk / "broken"))
    assert result.exit_code == 2
    assert "checkpoint.json cannot be" in result.stderr.splitlines()[-1]
    leave_free(disk, None)
    assert run(*words, str(disk / "broken"), "--resume").exit_code == 0
    assert folder_bits(disk / "broken") == folder_bits(disk / "whole")
