"""The page of a watched folder as a browser shows it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from homodyne_dask.apps.watch.scans_page import ScanTable, read_rates, row_of_scan
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
        "fitted": row_of_scan(1, 1.8e9, replace(entry, name=HOSTILE)),
        "failed": row_of_scan(2, 1.8e9, FitRow(HOSTILE, message=HOSTILE)),
    }
    ScanTable((), rows).write(tmp_path, [HOSTILE, HOSTILE])
    check(tab, tmp_path / "scans.html")


MARKUP = '<b>"&<script>document.title="taken"</script>'
RATES = "t,J,J_low_68,J_high_68,gamma_dot,gamma_dot_low_68,gamma_dot_high_68\n"


def scans(folder: Path, number: int) -> list[FitRow]:
    """Rows of scans an hour apart, with their rates, and a bad one of a hostile name."""
    found = []
    for n in range(number):
        result = folder / f"A{n}_fit"
        result.mkdir(exist_ok=True)
        lines = [f"{t},{1e4 * t**-0.5},9e3,{2e4 * t**-0.5},{1e-3 + n / 1e4},," for t in (0.1, 1, 9)]
        (result / "rates.csv").write_text(RATES + "\n".join(lines) + "\n")
        entry = fit_row(f"A{n}.hdf", result, changed(flow_result(), redchi=1 + 0.01 * n))
        found.append(row_of_scan(n + 1, 1.8e9 + 3600 * n, entry))
    warned = replace(found[-1], warnings=("contrast 0.1 after 0.3",))
    bad = FitRow(MARKUP, message=f"{MARKUP} is no scan")
    bad = row_of_scan(number + 1, 1.8e9 + 3600 * number, bad)
    return [*found[:-1], warned, bad]


@pytest.mark.long
def test_the_page_of_scans_loads_itself_again_and_shows_what_came(tmp_path):
    def write(number: int, reload: float | None) -> None:
        rows = scans(tmp_path, number)
        said = ["in is watched every 1 s", "waiting for the results: full"]
        rates = {row.name: read_rates(row.folder / "rates.csv") for row in rows if row.folder}
        ScanTable((), {row.name: row for row in rows}, rates).write(tmp_path, said, reload)

    write(4, 3.0)
    with browser(tmp_path) as tab:
        tab.open((tmp_path / "scans.html").as_uri())
        said = tab.text()
        assert "A3.hdf: contrast 0.1 after 0.3" in said
        assert "waiting for the results: full" in said
        assert "A4.hdf" not in said
        write(5, None)
        tab.until("document.readyState == 'complete' && document.body.innerText.includes('A4.hdf')")
        tab.check_layout("scans")
        assert tab.value(NAMELESS) == 0
        assert tab.value("document.images.length") == 3
        assert tab.value("document.title").startswith("6 scans, the latest <b>")
        assert tab.value("document.querySelectorAll('b, script').length") == 0
        first = "document.querySelector('tbody tr:nth-child(2)').innerText"
        assert tab.value(first).startswith("A4.hdf\t✓ converged")
        assert not tab.complaints


def test_the_table_has_all_scans_and_the_page_the_newest(tmp_path, monkeypatch):
    monkeypatch.setattr("homodyne_dask.results.views.fits_report.MOST_ROWS", 2)
    monkeypatch.setattr("homodyne_dask.apps.watch.scans_page.live_pictures", lambda *_: [])
    rows = scans(tmp_path, 3)
    ScanTable((), {row.name: row for row in rows}).write(tmp_path, ["ended"])
    lines = (tmp_path / "scans.csv").read_text().splitlines()
    assert len(lines) == 5
    assert float(lines[1].split(",")[3]) == np.median(flow_result().scaling["contrast"])
    page = (tmp_path / "scans.html").read_text()
    assert "scans.csv lists all scans" in page
    assert "A0.hdf" not in page
