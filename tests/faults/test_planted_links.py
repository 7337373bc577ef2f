"""A folder from a stranger, with links planted in it: nothing outside it is written or deleted."""

import os
import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import ingest
from homodyne_dask.cli.fit_config import read_config
from homodyne_dask.errors import OptionError, StoreError
from homodyne_dask.results.files import result_folder as folders
from homodyne_dask.results.files.result_folder import check_index, claimed_folder, write_result
from homodyne_dask.results.result_classes import FitResult
from tests.applications import made_for
from tests.results.made_results import result_for, scan_of
from tests.run_command import run
from tests.synthetic import CREEP

RESULT = (
    "summary.json", "checkpoint.json.partial", "parameters.csv", "report.html", "result.nc",
    "maps.png",
)  # fmt: skip


@pytest.fixture
def mine(tmp_path) -> Path:
    """A folder of the user's, which keeps what it holds."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in (*RESULT, "lock", "bin-000000.json", "zarr.json"):
        (folder / name).write_text(f"my {name}")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    yield folder
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def unfinished(store: Path) -> Path:
    """A store whose ingest was killed, with a folder that the next one clears."""
    for folder in (".ingest", "q"):
        (store / folder).mkdir(parents=True)
    return store


@pytest.mark.parametrize("name", [".ingest", ".ingest/lock", "q", "q/zarr.json", "zarr.json"])
def test_ingest_changes_nothing_behind_a_link(tmp_path, mine, name):
    store, source = unfinished(tmp_path / "A_c2.zarr"), tmp_path / "A.npz"
    np.savez(source, c2=np.full((1, 8, 8), 1.1), q=0.1, phi=0.0, dt=1.0)
    there = store / name
    if there.is_dir():
        shutil.rmtree(there)
    there.symlink_to(mine if name in (".ingest", "q") else mine / there.name)
    refused = name.startswith(".ingest")  # others are replaced, or removed
    with pytest.raises((StoreError, OSError)) if refused else nullcontext():
        ingest.ingest(source, store, sigma=0.1, overwrite=True)


def test_a_result_replaces_links_in_its_folder_and_follows_none(
    tmp_path, mine, monkeypatch, no_pictures
):
    monkeypatch.setattr(FitResult, "report", lambda *_, **__: "a report")
    monkeypatch.setattr(folders, "as_page", lambda *_: "a report")
    monkeypatch.setattr(folders, "as_text", lambda *_, **__: "a report")
    monkeypatch.setattr(folders, "result_netcdf", lambda *_: b"a table")
    monkeypatch.setattr(FitResult, "to_json", lambda _, path: path.write_text("a summary"))
    scan = scan_of(tmp_path, CREEP, n=20, phi=[0.0])
    folder = tmp_path / "A_fit"
    folder.mkdir()
    for name in RESULT:
        (folder / name).symlink_to(mine / name)
    (folder / ".partial-of-another").symlink_to(mine)
    (folder / "mine.png").write_text("a picture of mine")
    write_result(result_for(scan, CREEP), scan, folder)
    assert (folder / "mine.png").read_text() == "a picture of mine"
    left = sorted(path.name for path in folder.iterdir() if path.is_symlink())
    assert left == [".partial-of-another", RESULT[1]]


@pytest.mark.parametrize("here", ["a folder of other files", "a link to a result", "a link inside"])
def test_a_folder_that_is_no_result_of_ours_is_not_replaced(tmp_path, mine, here):
    folder = tmp_path / "A_fit"
    if here == "a folder of other files":
        folder = mine
    elif here == "a link to a result":
        folder.symlink_to(mine)
    else:
        folder.mkdir()
        (folder / "summary.json").symlink_to(mine / "summary.json")
    claimed = claimed_folder(folder, folder / "checkpoint.json", overwrite=True, resume=False)
    with (
        pytest.raises(OptionError, match=r"contains files that are not a result|is a link to"),
        claimed,
    ):
        pass


@pytest.mark.parametrize("name", ["series.csv", "series.html", "series.png", "series.nc"])
def test_files_that_are_no_index_of_ours_are_not_replaced(tmp_path, name):
    (tmp_path / name).write_text("frame,series\n")
    with pytest.raises(OptionError, match=f"{name} is not part of an index of fits"):
        check_index(tmp_path, replace=True, prefix="series")


@pytest.mark.parametrize(
    ("keys", "output"),
    [("data: ../A_c2.zarr", "mine/A_fit"),
     ("data: [../A_c2.zarr, B_c2.zarr]", "mine"),
     ("data: there/A_c2.zarr", "mine/A_fit"),
     ("data: ../A_c2.zarr\nover: q", "mine/A_fit_q"),
     ("data: A_c2.zarr", None)],
)  # fmt: skip
def test_results_of_data_outside_the_folder_of_a_file_lie_beside_the_file(
    tmp_path, mine, keys, output
):
    with_link = tmp_path / "handed"
    with_link.mkdir()
    (with_link / "there").symlink_to(tmp_path)
    (with_link / "fit.yaml").write_text(f"{keys}\nmodel: static\noverwrite: true\n")
    expected = output and tmp_path / output.replace("mine", "handed")
    assert read_config(with_link / "fit.yaml").output == expected
    there = read_config(with_link / "fit.yaml", {"output": "elsewhere"})
    assert there.output == Path("elsewhere")


@pytest.mark.parametrize("words", [("config",), ("from-homodyne", "h.yaml", "-o")])
def test_a_configuration_is_not_written_through_a_link(tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    Path("h.yaml").write_text(made_for("migration.configurations").SHORT_YAML)
    Path("fit.yaml").symlink_to(tmp_path / "nowhere.yaml")
    said = run(*words, "fit.yaml")
    assert said.exit_code == 2
    assert "fit.yaml exists: give --overwrite" in said.output
    run(*words, "fit.yaml", "--overwrite")
    assert not os.path.lexists("nowhere.yaml")
