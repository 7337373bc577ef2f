"""A disk becomes full at any file: one sentence names it, nothing else is said, what was there is kept."""

from functools import partial
from pathlib import Path

import pytest

from homodyne_dask.cluster import profiling
from homodyne_dask.errors import StoreError
from homodyne_dask.results.data.fit_rows import SeriesEntry
from homodyne_dask.results.files import folder as folders
from homodyne_dask.results.files import scans_index as index
from homodyne_dask.results.files.folder import write_result
from homodyne_dask.solver import checkpoint
from ingest.simulate import simulate
from tests.apps.migration.configurations import SHORT_YAML
from tests.faults.conftest import PICTURE, file_contents, full_at_each_file, leave_free, unchanged
from tests.ingest_files import decay, simulated
from tests.result_bits import folder_bits
from tests.run_command import run

pytestmark = pytest.mark.timeout(600)


def test_a_result_is_written_whole_or_not_at_all(disk, fitted, one_picture, capfd, monkeypatch):
    folder = disk / "A_fit"
    folder.mkdir()
    leave_free(disk, None)
    result, scan = fitted
    write_result(result, scan, folder)
    before = file_contents(folder)
    monkeypatch.setattr(
        folders, "result_netcdf", lambda *_: before["result.nc"]
    )  # the same, quickly
    refused = full_at_each_file(
        disk, lambda: unchanged(folder, before, lambda: write_result(result, scan, folder)),
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
    sentence = f"{target} cannot be written (No space left on device): free some space or give another name"
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


@pytest.fixture(scope="module")
def ingested(tmp_path_factory) -> tuple[Path, dict[str, bytes]]:
    """A source, and what its store holds."""
    folder = tmp_path_factory.mktemp("source")
    source = simulated(folder / "A.hdf", n=40)
    assert run("ingest", str(source)).exit_code == 0
    return source, file_contents(folder / "A_c2.zarr")


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
    sentence = result.stderr.splitlines()[-1]
    assert sentence.startswith(f"error: the checkpoint {disk / 'broken'}/checkpoint.json cannot be")
    assert "fit again with --resume: the checkpoint of an earlier pass is kept" in sentence
    assert "Traceback" not in result.stderr
    leave_free(disk, None)
    assert run(*words, str(disk / "broken"), "--resume").exit_code == 0
    assert folder_bits(disk / "broken") == folder_bits(disk / "whole")


@pytest.mark.parametrize(
    "free", [114_688, *(pytest.param(n, marks=pytest.mark.slow) for n in range(0, 400_000, 16_384))]
)
def test_an_ingest_on_a_full_disk_is_one_sentence_and_goes_on_to_the_same_store(
    disk, ingested, free
):
    """Groups, chunks, records, sums and the manifest, wherever there is no more room."""
    source, whole = ingested
    target = disk / "A_c2.zarr"
    words = ("ingest", str(source), str(target))
    leave_free(disk, free)
    result = run(*words)
    if result.exit_code != 0:
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == (
            f"error: {target} cannot be written (No space left on device): free some space or give another "
            f"name, then run ingest again; it continues where it stopped\n"
        )
        leave_free(disk, None)
        assert run(*words).exit_code == 0
    assert file_contents(target) == whole


CONFIG_WORDS = {
    "config": ("config", "{}", "--overwrite"),
    "from-homodyne": ("from-homodyne", "{}.homodyne", "--output", "{}", "--overwrite"),
}


@pytest.mark.parametrize("words", CONFIG_WORDS.values(), ids=CONFIG_WORDS)
def test_a_configuration_is_whole_or_as_it_was(disk, words):
    target = disk / "fit.yaml"
    target.write_text("data: before\n")
    Path(f"{target}.homodyne").write_text(SHORT_YAML)
    leave_free(disk, 0)
    result = run(*(word.format(target) for word in words))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(
        f"error: {target} cannot be written: the disk is full (0 B free"
    )
    assert result.stderr.count("\n") == 1
    assert target.read_text() == "data: before\n"


def test_a_profile_or_result_without_room_is_one_error_that_names_it(
    disk, fitted, monkeypatch, capfd
):
    result, _ = fitted
    monkeypatch.setattr(profiling, "_record", lambda _: {"plugins/a.xplane.pb": PICTURE})

    def profile() -> None:
        with profiling.profiled(None, disk / "prof") as trace:
            trace()

    leave_free(disk, 4096)
    for write, name in (
        (profile, "a.xplane.pb"),
        (lambda: result.to_json(disk / "result.json"), "result.json"),
    ):
        with pytest.raises(OSError, match="No space left on device") as raised:
            write()
        assert Path(raised.value.filename).name == name
    assert not [path for path in disk.rglob("*") if path.is_file() and path.name != "filler"]
    assert capfd.readouterr() == ("", "")


def test_an_index_of_several_stores_is_as_it_was_where_there_is_no_room(disk, fitted, monkeypatch):
    entries = [SeriesEntry(f"{n}.zarr", None, fitted[0], "", {}) for n in range(60)]
    monkeypatch.setattr(index, "_picture", lambda *_: None)
    names = list(fitted[0].parameters["param"].values)
    leave_free(disk, None)
    index.write_index(disk / "many", names, entries[:1], 61)
    before = file_contents(disk / "many")
    write = partial(index.write_index, disk / "many", names, entries, 61)
    refused = full_at_each_file(
        disk, lambda: unchanged(disk / "many", before, write), 200_000, 4096
    )
    assert refused == {"scans.csv", "scans.html"}
