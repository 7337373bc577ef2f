"""The page of a watched folder as a browser shows it."""

from dataclasses import replace
from pathlib import Path

import pytest

from homodyne_dask.apps.watch.scans_page import ScanTable
from homodyne_dask.results.data.fit_rows import FitRow, fit_row
from tests.browser.chromium import NAMELESS, NEEDED, browser
from tests.browser.hostile_names import FILE, HOSTILE, check, named, scan, tab
from tests.results.made_results import changed, flow_result

__all__ = ["scan", "tab"]
pytestmark = NEEDED


@pytest.mark.long
def test_names_stay_text_and_nothing_in_them_runs(tab, tmp_path, scan):
    entry = fit_row("store", tmp_path / FILE, named(scan))
    (tmp_path / FILE).mkdir()
    rows = {
        "fitted": (1.8e9, replace(entry, name=HOSTILE)),
        "failed": (1.9e9, FitRow(HOSTILE, message=HOSTILE)),
    }
    ScanTable((), rows).write(tmp_path, [HOSTILE, HOSTILE])
    check(tab, tmp_path / "scans.html")


MARKUP = '<b>"&<script>document.title="taken"</script>'


def scans(folder: Path, number: int) -> ScanTable:
    """Scans an hour apart, and a bad one of a hostile name."""
    table = ScanTable(())
    for n in range(number):
        result = changed(flow_result(), redchi=1 + 0.01 * n)
        table.add(1.8e9 + 3600 * n, fit_row(f"A{n}.hdf", folder / f"A{n}_fit", result))
    table.add(1.9e9, FitRow(MARKUP, message=f"{MARKUP} is no scan"))
    return table


@pytest.mark.long
def test_the_page_of_scans_loads_itself_again_and_shows_what_came(tmp_path):
    def write(number: int, reload: float | None) -> None:
        said = ["in is watched every 1 s", "waiting for the results: full"]
        scans(tmp_path, number).write(tmp_path, said, reload)

    write(4, 3.0)
    with browser(tmp_path) as tab:
        tab.open((tmp_path / "scans.html").as_uri())
        assert "waiting for the results: full" in tab.text()
        assert "A4.hdf" not in tab.text()
        write(5, None)
        tab.until("document.readyState == 'complete' && document.body.innerText.includes('A4.hdf')")
        tab.check_layout("scans")
        assert tab.value(NAMELESS) == 0
        assert tab.value("document.images.length") == 1
        assert tab.value("document.title").startswith("6 scans, the latest <b>")
        assert tab.value("document.querySelectorAll('b, script').length") == 0
        first = "document.querySelector('tbody tr:nth-child(2)').innerText"
        assert tab.value(first).startswith("A4.hdf\t✓ converged")
        assert not tab.complaints


def test_the_table_has_all_scans_and_the_page_the_newest(tmp_path, monkeypatch):
    monkeypatch.setattr("homodyne_dask.results.views.fits_report.MOST_ROWS", 2)
    monkeypatch.setattr("homodyne_dask.apps.watch.scans_page.pictures_of", lambda _: [])
    scans(tmp_path, 3).write(tmp_path, ["ended"])
    assert len((tmp_path / "scans.csv").read_text().splitlines()) == 5
    page = (tmp_path / "scans.html").read_text()
    assert "scans.csv lists all scans" in page
    assert "A0.hdf" not in page
