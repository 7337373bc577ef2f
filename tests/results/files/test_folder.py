"""The folder of a result: written by one fit at a time, and never with files of two results."""

import shutil
from pathlib import Path

import pytest

from homodyne_dask.errors import OptionError, SourceError
from homodyne_dask.results.files import folder as folders
from homodyne_dask.results.files.saved_results import load_result
from homodyne_dask.store.lock import locked
from tests.results.made_results import flow_result

OLD = ("parameters.csv", "report.txt", "result.nc", "result.nx.h5", "maps.png")
NEW = ("parameters.csv", "scaling.csv", "report.txt", "rates.png")
MINE = "notes.txt"


class Killed(BaseException):
    """Stands for the end of the process."""


def filled(folder: Path, names: tuple[str, ...], content: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    flow_result().to_json(folder / folders.SUMMARY)
    return folder


def visible(folder: Path) -> dict[str, str]:
    """The files of a folder but its temporary ones."""
    found = (path for path in folder.rglob("*") if path.is_file())
    names = {str(path.relative_to(folder)): path for path in found}
    return {name: p.read_text() for name, p in names.items() if ".partial" not in name}


def killed_after(steps: int, folder: Path, aside: Path, monkeypatch) -> bool:
    """Exchange two results and end after so many files were removed or moved; return whether it ended."""
    left = steps

    def counted(real):
        def step(*args, **options):
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return real(*args, **options)

        return step

    with monkeypatch.context() as patch:
        for name in ("unlink", "replace"):
            patch.setattr(Path, name, counted(getattr(Path, name)))
        try:
            folders._exchange(aside, folder)
        except Killed:
            return True
    return False


def test_a_fit_killed_at_any_step_of_replacing_a_result_leaves_files_of_one(tmp_path, monkeypatch):
    steps = 0
    while True:
        folder = filled(tmp_path / f"{steps}" / "A_fit", OLD, "old")
        (folder / MINE).write_text("mine")
        aside = filled(folder / ".partial-x", NEW, "new")
        if not killed_after(steps, folder, aside, monkeypatch):
            break
        found = visible(folder)
        assert found.pop(MINE) == "mine"
        whole = found.pop(folders.SUMMARY, None)
        assert len(set(found.values())) <= 1
        if whole is None:
            with pytest.raises(SourceError, match=r"summary\.json cannot be read"):
                load_result(folder)
            with pytest.raises(
                OptionError, match=r"contains an incomplete result.*give overwrite=True"
            ):
                folders.check_folder(folder, folder / "c.json", overwrite=False, resume=False)
        else:
            assert steps == 0
            assert set(found) == set(OLD)
        folders.check_folder(folder, folder / "c.json", overwrite=True, resume=False)
        again = filled(folder / ".partial-y", NEW, "newer")
        folders._exchange(again, folder)
        assert visible(folder).keys() == {MINE, folders.SUMMARY, *NEW}
        assert not aside.exists()
        steps += 1
    assert steps == len(OLD) + len(NEW) + 2
    shutil.rmtree(aside)
    assert set(visible(folder)) == {MINE, folders.SUMMARY, *NEW}


def test_one_fit_at_a_time_writes_a_folder(tmp_path):
    folder, checkpoint = tmp_path / "A_fit", tmp_path / "A_fit/checkpoint.json"
    with folders.claimed_folder(folder, checkpoint, overwrite=False, resume=False):
        for _ in range(2):  # the one that is refused takes no lock away
            with (
                pytest.raises(
                    OptionError, match=r"another fit is writing .*A_fit: wait until it has ended"
                ),
                folders.claimed_folder(folder, checkpoint, overwrite=True, resume=False),
            ):
                raise AssertionError
        (folder / "kept").touch()
    assert [path.name for path in folder.iterdir()] == ["kept"]


def test_a_lock_that_a_killed_fit_left_is_taken(tmp_path):
    (tmp_path / folders.LOCK).touch()
    folders.check_folder(tmp_path, tmp_path / "c.json", overwrite=False, resume=False)
    with locked(tmp_path / folders.LOCK) as held:
        assert held
    assert not list(tmp_path.iterdir())
