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
from tests.apps.watch.instant_fits import GOOD, digest_of, table_rows, watch_of, watch_until_quiet

pytestmark = pytest.mark.usefixtures("no_page_pictures")
CONTENT = {"name": "A.h5", "store": f"{STORES}/A_c2.zarr", "folder": "A_fit", "fitted": True}


def write_state(results: Path, **values) -> None:
    """Write a state as a stranger may, with its checksum."""
    empty = {
        "fit": {"model": "m"},
        "files": {},
        "contents": {},
        "folders": {},
        "numbers": {},
        "moves": [],
    }
    results.mkdir(exist_ok=True)
    write_with_checksum(
        {"format": FORMAT, "format_version": VERSION} | empty | values, results / STATE
    )


@pytest.mark.parametrize(
    "name", ["../precious", "precious", "/precious", "..", "", "a/../../b", "a\0"]
)
@pytest.mark.parametrize("where", ["store", "folder", "name", "moves", "folders", "files"])
def test_a_name_that_leads_out_of_the_folder_is_refused(folders, where, name):
    _, results = folders
    state = {"contents": {"0": CONTENT}}
    if where == "store":
        state = {"contents": {"0": CONTENT | {"store": f"{STORES}/{name}", "fitted": False}}}
    elif where in CONTENT:
        state = {"contents": {"0": CONTENT | {where: name, "fitted": False}}}
    elif where == "moves":
        state |= {"moves": [["A_fit", name]]}
    elif where == "folders":
        state |= {"folders": {"A.h5": name}}
    else:
        record = {"size": 0, "mtime_ns": 0, "digest": "0"}
        state |= {"files": {name: record}, "numbers": {name: 1}}
    write_state(results, **state)
    if name == "precious" or (name, where) == ("", "folder"):  # a plain name; no folder yet
        read_state(results, {"model": "m"}, None)
        return
    with pytest.raises(SourceError, match="is not in the expected folder"):
        read_state(results, {"model": "m"}, None)


@pytest.mark.parametrize("store", ["precious", "/precious", "../precious", ""])
def test_a_store_that_is_not_below_the_folder_of_stores_is_refused(folders, store):
    _, results = folders
    write_state(results, contents={"0": CONTENT | {"store": store, "fitted": False}})
    with pytest.raises(SourceError, match="is not in the expected folder"):
        read_state(results, {"model": "m"}, None)


@pytest.mark.parametrize(
    "state",
    [
        {"contents": {"0": CONTENT | {"fitted": 1}}},
        {"contents": {"0": CONTENT | {"store": None}}},
        {"files": {"A.h5": {"size": 0, "mtime_ns": 0, "digest": "0"}}},
        {"files": {"A.h5": {"size": "0", "mtime_ns": 0, "digest": "0"}}},
        {"moves": [["A_fit"]]},
    ],
)
def test_a_state_with_values_of_another_kind_is_refused(folders, state):
    _, results = folders
    write_state(results, **state)
    with pytest.raises(SourceError, match="lacks values of a result, or has unexpected ones"):
        read_state(results, {"model": "m"}, None)


def test_a_state_without_its_checksum_is_refused(folders):
    source, results = folders
    (source / "A.h5").write_bytes(GOOD)
    watch_until_quiet(watch_of(source, results))
    state = json.loads((results / STATE).read_text())
    del state["sha256"]
    (results / STATE).write_text(json.dumps(state))
    with pytest.raises(SourceError, match=r"its checksum does not match\): give another output"):
        watch_of(source, results)


@pytest.mark.parametrize("fitted", [True, False])
def test_what_is_no_store_is_never_removed(folders, capsys, fitted):
    source, results = folders
    notes = results / STORES / "A_c2.zarr" / "notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("precious")
    write_state(results, contents={"0": CONTENT | {"fitted": fitted}})
    (source / "A.h5").write_bytes(GOOD)
    watch_until_quiet(watch_of(source, results, keep_stores=False))
    assert notes.read_text() == "precious"
    said = f"{notes.parent} was not removed: it is not a store of homodyne_dask"
    assert said in capsys.readouterr().err
    assert table_rows(results)[0]["outcome"] == "CONVERGED"


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


@pytest.mark.parametrize("at", ["begin", "later"])
def test_a_link_in_place_of_the_folder_of_stores_is_refused(folders, at):
    source, results = folders
    elsewhere = source.parent / "elsewhere"
    (elsewhere / "A_c2.zarr" / WORK_FOLDER).mkdir(parents=True)
    sentence = f"{re.escape(str(results))}/stores is a link to .*: remove the link, or give another"
    results.mkdir()
    if at == "begin":
        (results / STORES).symlink_to(elsewhere)
        with pytest.raises(OptionError, match=sentence):
            watch_of(source, results)
    else:
        watch = watch_of(source, results)
        watch.resume()
        (results / STORES).symlink_to(elsewhere)
        with pytest.raises(OptionError, match=sentence):
            watch.step()
    assert (elsewhere / "A_c2.zarr").exists()


def test_a_folder_without_a_result_is_not_renamed(folders):
    source, results = folders
    (results / "precious").mkdir(parents=True)
    (results / "precious" / "notes.txt").write_text("precious")
    write_state(results, moves=[["precious", "A_fit"]])
    with pytest.raises(OptionError, match="precious is recorded as a result but is not one"):
        watch_of(source, results).resume()
    assert (results / "precious" / "notes.txt").exists()


def test_names_as_long_as_a_file_system_takes_have_stores_and_results_of_their_own(folders):
    source, results = folders
    names = [f"{'n' * 250}{n}.h5" for n in range(2)] + [f"{'é' * 120}{n}.h5" for n in range(2)]
    for n, name in enumerate(names):
        (source / name).write_bytes(GOOD + bytes([n]))
    watch = watch_of(source, results)
    watch_until_quiet(watch)
    rows = {row["scan"]: row for row in table_rows(results)}
    assert rows.keys() == {*names}
    found = {(results / row["folder"] / "result").read_text() for row in rows.values()}
    assert found == {digest_of(GOOD + bytes([n])) for n in range(4)}
