"""watch.json of a stranger touches nothing but stores and results of ours in the folder of the results."""

import json
import re
from pathlib import Path

import pytest

from homodyne_dask.apps.watch.folder_state import FORMAT, STATE, STORES, VERSION, read_state
from homodyne_dask.errors import OptionError, SourceError
from homodyne_dask.results.files.json_files import write_with_checksum
from homodyne_dask.store import own_stores, schema
from homodyne_dask.store.own_stores import WORK_FOLDER, remove_own_store
from tests.apps.watch.instant_fits import GOOD, watch_of, watch_until_quiet

pytestmark = pytest.mark.usefixtures("no_page_pictures")
RECORD = {"number": 1, "numbered": False, "size": -1, "mtime_ns": 0, "done": True, "problem": ""}


def write_state(results: Path, files: dict) -> None:
    """Write a state as a stranger may, with its checksum."""
    results.mkdir(exist_ok=True)
    values = {"format": FORMAT, "format_version": VERSION, "fit": {"model": "m"}, "files": files}
    write_with_checksum(values, results / STATE)


@pytest.mark.parametrize("name", ["../../precious/A.h5", "/precious/A.h5", "a/../../A.h5"])
def test_a_name_leads_nowhere_but_into_the_folder_of_the_results(results, name):
    write_state(results, {name: RECORD})
    state = read_state(results, {"model": "m"})
    places = state.places(name, state.files[name])
    assert places == (results / STORES / "A_c2.zarr", results / "A_fit")


def test_a_state_without_its_values_is_refused(results):
    write_state(results, {"A.h5": {"size": 0}})
    with pytest.raises(SourceError, match="lacks values of a result, or has unexpected ones"):
        read_state(results, {"model": "m"})


def test_a_state_without_its_checksum_is_refused(source, results):
    (source / "A.h5").write_bytes(GOOD)
    watch_until_quiet(watch_of(source, results))
    state = json.loads((results / STATE).read_text())
    del state["sha256"]
    (results / STATE).write_text(json.dumps(state))
    with pytest.raises(SourceError, match=r"its checksum does not match\): give another output"):
        watch_of(source, results)


def test_what_is_no_store_is_never_removed(source, results, capsys):
    notes = results / STORES / "A_c2.zarr" / "notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("precious")
    write_state(results, {"A.h5": RECORD})
    (results / "A_fit").mkdir()
    (results / "A_fit" / "result").write_text("0000")
    watch = watch_of(source, results, stores="delete")
    watch.resume()
    assert notes.read_text() == "precious"
    said = f"{notes.parent} was not removed: it is not a store of homodyne_dask"
    assert said in capsys.readouterr().err


def test_a_link_in_place_of_a_store_is_not_followed_when_it_is_to_be_removed(tmp_path):
    store = tmp_path / "store"
    (store / WORK_FOLDER).mkdir(parents=True)
    (tmp_path / "link").symlink_to(store)
    assert not remove_own_store(tmp_path / "link")
    assert store.exists()


def test_a_store_whose_removal_was_interrupted_is_removed_by_the_next_one(tmp_path, monkeypatch):
    store = tmp_path / "store"
    (store / "c2").mkdir(parents=True)
    (store / "zarr.json").write_text(json.dumps({"attributes": {"format": schema.FORMAT}}))
    left, real = ["zarr.json", "c2"], own_stores.remove_tree

    def remove(path: Path) -> None:
        if path == store:
            raise KeyboardInterrupt
        left.remove(path.name)
        real(path)

    monkeypatch.setattr(own_stores, "remove_tree", remove)
    with pytest.raises(KeyboardInterrupt):
        remove_own_store(store)
    assert not left
    monkeypatch.undo()
    assert remove_own_store(store)
    assert not store.exists()


def test_a_link_in_place_of_the_folder_of_stores_is_refused(source, results):
    results.mkdir()
    (results / STORES).symlink_to(source)
    sentence = f"{re.escape(str(results))}/stores is a link to .*: remove the link, or give another"
    with pytest.raises(OptionError, match=sentence):
        watch_of(source, results)
