"""watch.json of a stranger touches nothing but results of ours; the table is made of what can be read."""

import json
import re
from pathlib import Path

import pytest

from homodyne_dask.apps.watch import folder_state
from homodyne_dask.apps.watch.folder_state import STATE, STORES, read_state, remove_own_store
from homodyne_dask.apps.watch.scans_page import ScanTable, changes
from homodyne_dask.apps.watch.watched_files import Stamp
from homodyne_dask.errors import OptionError, SourceError
from homodyne_dask.results.data.fit_rows import FitRow, fit_row
from homodyne_dask.results.files.json_files import write_with_checksum
from homodyne_dask.store import schema
from homodyne_dask.store.schema import WORK_FOLDER
from tests.apps.watch.instant_fits import NAMES, table_rows, watch_of
from tests.html_pages import ParsedPage
from tests.results.made_results import flow_result

RECORD = {"number": 1, "numbered": False, "size": -1, "mtime_ns": 0, "done": True, "problem": ""}


def write_state(results: Path, files: dict) -> None:
    """Write a state as a stranger may, with its checksum."""
    results.mkdir(exist_ok=True)
    values = {"format": folder_state.FORMAT, "format_version": folder_state.VERSION}
    values |= {"fit": {"model": "m"}, "files": files}
    write_with_checksum(values, results / STATE)


@pytest.mark.parametrize("name", ["../../precious/A.h5", "/precious/A.h5", "a/../../A.h5"])
def test_a_name_leads_nowhere_but_into_the_folder_of_the_results(results, name):
    write_state(results, {name: RECORD})
    state = read_state(results, {"model": "m"})
    places = state.places(name, state.files[name])
    assert places == (results / STORES / "A_c2.zarr", results / "A_fit")


def test_a_state_without_its_values_or_its_checksum_is_refused(results):
    write_state(results, {"A.h5": {"size": 0}})
    with pytest.raises(SourceError, match="lacks values of a result, or has unexpected ones"):
        read_state(results, {"model": "m"})
    write_state(results, {})
    state = json.loads((results / STATE).read_text())
    del state["sha256"]
    (results / STATE).write_text(json.dumps(state))
    with pytest.raises(SourceError, match=r"its checksum does not match\): give another output"):
        read_state(results, {"model": "m"})


def test_what_is_no_store_is_never_removed(source, results, capsys, no_page_pictures):
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
    left, real = ["zarr.json", "c2"], folder_state.remove_tree

    def remove(path: Path) -> None:
        if path == store:
            raise KeyboardInterrupt
        left.remove(path.name)
        real(path)

    monkeypatch.setattr(folder_state, "remove_tree", remove)
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


HEAD = "t,J,J_low_68,J_high_68"
GOOD_RATES = f"{HEAD}\n0.1,1e4,9e3,2e4\n1,1e3,9e2,2e3\n10,1e2,,\n"
DAMAGED = {
    "empty": b"",
    "only its head": HEAD.encode(),
    "not UTF-8": b"\xff\xfe" + GOOD_RATES.encode(),
    "cut short": GOOD_RATES.encode()[:-20],
    "a short row": GOOD_RATES.replace(",9e2,2e3", "").encode(),
    "no times": GOOD_RATES.replace("t,", "x,").encode(),
    "no band": GOOD_RATES.replace("J_low_68", "x").encode(),
}


def written(folder: Path, names: tuple[str, ...]) -> ParsedPage:
    table = ScanTable(NAMES)
    for n, name in enumerate(names):
        entry = fit_row(f"{name}.h5", folder / f"{name}_fit", flow_result())
        table.add(n + 1, Stamp(1, 10**18), entry)
    table.write(folder, ["done"])
    return ParsedPage((folder / "scans.html").read_text())


@pytest.fixture
def folder(tmp_path) -> Path:
    for name in "AB":
        (tmp_path / f"{name}_fit").mkdir()
        (tmp_path / f"{name}_fit" / "rates.csv").write_text(GOOD_RATES)
    return tmp_path


@pytest.mark.long
@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_rates_are_a_sentence_in_the_row_of_their_scan(folder, damage):
    file = folder / "A_fit/rates.csv"
    file.write_bytes(DAMAGED[damage])
    page = written(folder, ("A", "B"))
    assert f"li: note: A.h5: {file} cannot be plotted (" in page.text
    assert len(page.all("img")) == 3
    rows = table_rows(folder)
    assert [row["outcome"] for row in rows] == ["CONVERGED"] * 2
    assert f"{file} cannot be plotted" in rows[0]["warnings"]
    assert not rows[1]["warnings"]


SIZES = ["1e308", "-1e308", "inf", "-inf", "nan", "0", "-1", "1e-320", ""]


@pytest.mark.long
@pytest.mark.parametrize("number", SIZES)
def test_rates_of_any_size_are_drawn(folder, number):
    damaged = GOOD_RATES.replace("1e3,", f"{number},").replace("9e2", number).replace("2e4", number)
    (folder / "A_fit/rates.csv").write_text(damaged)
    page = written(folder, ("B", "A"))
    assert len(page.all("img")) == 3
    assert "cannot be plotted" not in page.text


def row(contrast: float, redchi: float = 1.0, words: str = "converged", **more) -> FitRow:
    at = {"number": 1, "contrast": contrast}
    return FitRow("A.h5", at=at, outcome=words.upper(), outcome_words=words, redchi=redchi, **more)


STEADY = [row(c, x) for c, x in ((0.30, 1.0), (0.31, 1.02), (0.29, 0.99), (0.30, 1.01))]
SCATTERED = [row(c) for c in (0.1, 0.2, 0.3, 0.4)]


@pytest.mark.parametrize(
    ("now", "before", "said"),
    [
        (row(0.33, 1.1), STEADY, ()),
        (row(0.15, 1.0), STEADY, ("contrast 0.15 (median of the scans before: 0.3)",)),
        (row(0.30, 1.5), STEADY, ("reduced χ² 1.5 (median of the scans before: 1)",)),
        (row(0.15), STEADY[:2], ()),
        (row(0.5), SCATTERED, ()),
        (row(0.3, words="max passes"), [], ("max passes",)),
        (FitRow("B.h5", message="no"), STEADY, ()),
    ],
)
def test_what_changed_is_said(now, before, said):
    assert changes(now, before) == said
