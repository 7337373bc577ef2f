"""A disk becomes full during a command, a fit, or at a file that is written by itself."""

from functools import partial
from pathlib import Path

import pytest

from homodyne_dask.apps.migration.fitted_data import write_fitted_data
from homodyne_dask.cluster import profiling
from homodyne_dask.results.data.fit_rows import SeriesEntry
from homodyne_dask.results.files import scans_index as index
from homodyne_dask.solver import checkpoint
from tests.apps.migration.configurations import SHORT_YAML
from tests.faults.conftest import PICTURE
from tests.faults.full_disk import file_contents, full_at_each_file, leave_free, unchanged
from tests.ingest_files import simulated
from tests.result_bits import folder_bits
from tests.run_command import run

pytestmark = pytest.mark.timeout(120)


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
    assert "fit again with --resume: that of an earlier pass is kept" in sentence
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
            f"error: {target} cannot be written (No space left on device): make room or give another "
            f"name, then run ingest again; it goes on where it stopped\n"
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
    assert result.stderr.startswith(f"error: {target} cannot be written: the disk is full (0 B are")
    assert result.stderr.count("\n") == 1
    assert target.read_text() == "data: before\n"


def test_a_profile_result_or_data_file_without_room_is_one_error_that_names_it(
    disk, fitted, monkeypatch, capfd
):
    result, scan = fitted
    monkeypatch.setattr(profiling, "_record", lambda _: {"plugins/a.xplane.pb": PICTURE})

    def profile() -> None:
        with profiling.profiled(None, disk / "prof") as trace:
            trace()

    def data() -> None:
        write_fitted_data(result, scan, disk / "fitted_data.npz")

    leave_free(disk, 4096)
    for write, name in (
        (profile, "a.xplane.pb"),
        (lambda: result.to_json(disk / "result.json"), "result.json"),
        (data, "fitted_data.npz"),
    ):
        with pytest.raises(OSError, match="No space left on device") as raised:
            write()
        assert Path(raised.value.filename).name == name
        (disk / "fitted_data.npz").unlink(missing_ok=True)
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
