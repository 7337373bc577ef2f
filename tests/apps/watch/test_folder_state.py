"""watch.json of a stranger touches nothing but results of ours."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from homodyne_dask.apps.watch import folder_state
from homodyne_dask.apps.watch.folder_state import STATE, STORES, open_state, remove_store
from homodyne_dask.cli.commands.ingest import FileOptions
from homodyne_dask.cli.fit_config import FitConfig
from homodyne_dask.errors import OptionError, SourceError
from homodyne_dask.results.files.json_files import write_with_checksum
from tests.apps.watch.instant_fits import watch_of


def write_state(results: Path, files: dict) -> None:
    """Write a state as a stranger may, with its checksum."""
    results.mkdir(exist_ok=True)
    values = folder_state.FORMAT.to_dict({"fit": {"model": "m"}, "files": files})
    write_with_checksum(values, results / STATE)


@pytest.mark.parametrize("name", ["../../precious/A.h5", "/precious/A.h5", "a/../../A.h5"])
def test_a_name_leads_nowhere_but_into_the_folder_of_the_results(results, name):
    write_state(results, {name: [[-1, 0], ""]})
    (ended,) = open_state(results, {"model": "m"}).ended
    places = open_state(results, {"model": "m"}).places(ended)
    assert places == (results / STORES / "A.h5.zarr", results / "A.h5_fit")


def test_a_state_without_its_values_or_its_checksum_is_refused(results):
    write_state(results, {"A.h5": [[0, 0]]})
    with pytest.raises(SourceError, match="lacks values of a result, or has unexpected ones"):
        open_state(results, {"model": "m"})
    write_state(results, {})
    state = json.loads((results / STATE).read_text())
    del state["sha256"]
    (results / STATE).write_text(json.dumps(state))
    with pytest.raises(SourceError, match=r"its checksum does not match\): give another output"):
        open_state(results, {"model": "m"})


def test_bounds_without_an_end_are_those_of_the_same_fits(results):
    results.mkdir()
    config = FitConfig(model="static", data=["A.zarr"], bounds={"D0": (0.0, np.inf)})
    identity = folder_state.fit_identity(config, FileOptions())
    for _ in range(2):
        assert open_state(results, identity).ended == {}
    with pytest.raises(OptionError, match="contains fits with another bounds"):
        open_state(results, {**identity, "bounds": {"D0": [1.0, 2.0]}})


def test_a_link_in_place_of_a_store_is_not_followed_when_it_is_removed(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "store")
    remove_store(tmp_path / "link")
    assert [*tmp_path.iterdir()] == [tmp_path / "store"]


def test_a_store_whose_removal_is_interrupted_is_gone_as_a_whole(tmp_path, monkeypatch):
    store = tmp_path / "A.h5.zarr"

    def remove(path: Path) -> None:
        if path.exists():
            raise KeyboardInterrupt

    monkeypatch.setattr(folder_state, "remove_tree", remove)
    store.mkdir()
    with pytest.raises(KeyboardInterrupt):
        remove_store(store)
    assert not store.exists()
    monkeypatch.undo()
    store.mkdir()
    remove_store(store)
    assert not [*tmp_path.iterdir()]


def test_a_link_in_place_of_the_folder_of_stores_is_refused(source, results):
    results.mkdir()
    (results / STORES).symlink_to(source)
    sentence = f"{re.escape(str(results))}/stores is a link: remove it, or give another"
    with pytest.raises(OptionError, match=sentence):
        watch_of(source, results)
