"""Control characters from files reach neither the terminal nor a report."""

import re
from pathlib import Path

import numpy as np
import pytest

import ingest
from homodyne_dask.errors import StoreError, printable
from homodyne_dask.results.data.fit_rows import SeriesEntry
from homodyne_dask.results.files.csv_tables import entries_csv
from homodyne_dask.results.views.jinja_templates import RESULTS_PACKAGE, render
from homodyne_dask.store.scan import Scan
from tests.run_command import run
from tests.synthetic import FLOW, angles, measured, store

ROOT = Path(__file__).parents[2]
HOSTILE = "a\x1b]0;title\x07\x1b[2J\x9b1m\x00\r\u202eb\ud800"
SAFE = r"a\x1b]0;title\x07\x1b[2J\x9b1m\x00\r\u202eb\ud800"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]")


def test_control_characters_are_written_out_and_other_text_stays():
    assert printable(HOSTILE) == SAFE
    assert printable("σ = 0.1 Å⁻¹\n\tφ ✓") == "σ = 0.1 Å⁻¹\n\tφ ✓"
    assert str(StoreError(HOSTILE)) == SAFE


def test_commands_print_in_one_place():
    files = (ROOT / "homodyne_dask/cli").rglob("*.py")
    assert [f.name for f in files if "click.echo" in f.read_text()] == ["printing.py"]


def test_a_page_and_a_table_hold_none():
    words = {
        "title": HOSTILE,
        "headings": {"verdict": HOSTILE, "scans": HOSTILE},
        "picture": None,
        "rows": [[HOSTILE]],
    }
    more = {"sentence": HOSTILE, "reservations": [HOSTILE], "converged": False, "caption": HOSTILE}
    page = render(RESULTS_PACKAGE, "index.html", **words, **more, table_notes=[HOSTILE])
    assert SAFE in page
    assert not CONTROL.search(page)
    entry = SeriesEntry(HOSTILE, None, None, HOSTILE, {})
    assert not CONTROL.search(entries_csv([], [entry], Path(), "scan"))


@pytest.mark.parametrize("text", [str, Scan._repr_html_])
def test_the_notes_of_a_store_hold_none(tmp_path, text):
    scan = store(measured(FLOW, 24, angles(2)), tmp_path)
    scan.attrs["notes"] = [HOSTILE]
    assert SAFE in text(scan)
    assert not CONTROL.search(text(scan))


def test_names_in_a_file_reach_no_terminal(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "A\x1b[31m.npz"
    np.savez(name, c2=np.full((1, 8, 8), 1.1), q=0.1, phi=0.0, dt=1.0, sigma=1.0, **{"\x1b[2J": 1})
    assert not CONTROL.search(str(ingest.ingest(name, "A.zarr")))
    for words in (("ingest", name, "A.zarr"), ("ingest", name + "\x1b"), ("info", "A.zarr")):
        assert not CONTROL.search(run(*words).output)
