"""A disk becomes full at any file: one sentence names it, nothing else is said, what was there is kept."""

from pathlib import Path

import pytest

from homodyne_dask.errors import StoreError
from homodyne_dask.results.data.fit_rows import SeriesEntry
from homodyne_dask.results.files import folder as folders
from homodyne_dask.results.files import scans_index as index
from homodyne_dask.results.files.folder import write_result
from homodyne_dask.store.files import write_file
from ingest.simulate import simulate
from tests.faults.conftest import PICTURE
from tests.faults.full_disk import file_contents, full_at_each_file, leave_free, unchanged
from tests.ingest_files import decay
from tests.run_command import run

pytestmark = pytest.mark.timeout(600)


def homodyne(result, scan, folder: Path) -> None:
    write_file(folder / "fitted_data.npz", PICTURE)


def test_a_result_is_written_whole_or_not_at_all(disk, fitted, one_picture, capfd, monkeypatch):
    folder = disk / "A_fit"
    folder.mkdir()
    leave_free(disk, None)
    result, scan = fitted
    write_result(result, scan, folder, homodyne)
    before = file_contents(folder)
    monkeypatch.setattr(
        folders, "result_netcdf", lambda *_: before["result.nc"]
    )  # the same, quickly
    refused = full_at_each_file(
        disk, lambda: unchanged(folder, before, lambda: write_result(result, scan, folder, homodyne)),
        200_000, 4096,
    )  # fmt: skip
    assert refused == {Path(name).name for name in before}
    assert file_contents(folder).keys() == before.keys()
    assert capfd.readouterr() == ("", "")


def test_a_series_of_which_not_all_is_written_is_none(disk, fitted, capfd, monkeypatch):
    folder = disk / "A_fit_q"
    entries = [
        SeriesEntry(f"part {n}", None, fitted[0], "", {"q": q}) for n, q in enumerate((1, 2))
    ]
    monkeypatch.setattr(index, "_picture", lambda *_: None)

    def write():
        try:
            index.write_index(
                folder, list(fitted[0].parameters["param"].values), entries, 2, index.PARTS
            )
        except OSError:
            assert not (folder / "series.json").exists()
            assert not list(folder.glob("*.partial"))
            raise

    refused = full_at_each_file(disk, write, 200_000, 4096)
    assert refused == {f"series.{end}" for end in ("csv", "html", "txt", "nc", "json")}
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("layout", ["aps-u", "aps-legacy"])
def test_a_simulated_file_is_whole_or_absent(disk, layout, capfd):
    target, refused = disk / "A.hdf", []
    for free in range(0, 200_000, 8192):
        leave_free(disk, free)
        try:
            simulate(
                target, lambda _: decay(64), layout=layout, q=0.005, phi=[0.0, 45.0],
                contrast=0.3, n_frames=64, frame_time=0.1,
            )  # fmt: skip
        except StoreError as e:
            refused.append(str(e))
            assert [file.name for file in disk.iterdir()] == ["filler"]
        else:
            break
    sentence = (
        f"{target} cannot be written (No space left on device): make room or give another name"
    )
    assert len(refused) > 4
    assert set(refused) == {sentence}
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "free",
    [8192, 40_960, *(pytest.param(n, marks=pytest.mark.slow) for n in range(0, 90_000, 4096))],
)
def test_a_fit_on_a_full_disk_is_one_sentence_and_goes_on_when_there_is_room(
    disk, fitted, one_picture, free
):
    output = disk / "A_fit"
    words = ("fit", str(fitted[1].path), "--model", "static", "--output", str(output))
    leave_free(disk, None)
    assert run(*words).exit_code == 0
    before = file_contents(output)
    leave_free(disk, free)
    result = run(*words, "--overwrite")
    said = [
        line for line in result.stderr.splitlines() if not line.startswith(("pass ", "2,340 pairs"))
    ]
    if result.exit_code == 0:
        assert said == []
    else:
        assert result.exit_code == 2
        (sentence,) = said
        assert sentence.startswith(f"error: {output}/") or "error: the checkpoint " in sentence
        assert "cannot be written" in sentence
        kept = file_contents(output)
        assert {name: kept[name] for name in before} == before
        assert set(kept) - set(before) <= {"checkpoint.json", "checkpoint.json.previous"}
        leave_free(disk, None)
        resume = ["--resume"] * ("checkpoint.json" in kept) or ["--overwrite"]
        assert run(*words, *resume).exit_code == 0
