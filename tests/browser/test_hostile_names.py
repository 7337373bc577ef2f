"""Names of samples, files and stores that are HTML, scripts or templates stay text on every page."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from homodyne_dask.apps.live.fit_page import render_cell, render_page
from homodyne_dask.apps.watch.scans_page import (
    ScanTable,
    read_rates,
    row_of_scan,
)
from homodyne_dask.fitting.events import Progress
from homodyne_dask.models import LAMINAR_FLOW
from homodyne_dask.results.data.findings import Findings, finding
from homodyne_dask.results.data.fit_rows import FitRow, fit_row
from homodyne_dask.results.files.result_folder import write_index, write_result
from homodyne_dask.results.result_classes import FitResult, FitSeries
from tests.browser.chromium import NAMELESS, PROGRAM, browser
from tests.example_progress import RUNNING
from tests.results.made_results import changed, flow_result, flow_result_of
from tests.synthetic import FLOW, angles, measured, module_scan

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed"),
]
FILE = "\"'{{ 7*7 }}{% x %}<img src=x onerror=window.taken=1>javascript:window.taken=1"
"""A name that a file may have."""
HOSTILE = f"</style></title></script></textarea>--><script>window.taken=1</script>{FILE}"
LEADS_TO_A_SCRIPT = """[...document.querySelectorAll("*")].filter(e => [...e.attributes].some(a =>
  /^on/i.test(a.name) && a.value.includes("taken") || /^\\s*javascript:/i.test(a.value))).length"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("names")) as tab:
        yield tab


scan = module_scan(lambda: measured(FLOW, 60, angles(3), dt=0.1), f"{FILE}A_c2")


def named(scan) -> FitResult:
    """A result whose texts from files are all hostile."""
    result = flow_result_of(scan)
    names = dict.fromkeys(("store", "source_file"), HOSTILE)
    return changed(
        result,
        inputs=result.provenance.inputs | names,
        findings=Findings([finding("undetermined", [HOSTILE])]),
    )


def check(tab, address: str) -> str:
    """Open a page on which nothing may run; return what it says."""
    tab.open(address)
    assert tab.value("window.taken") is None
    assert tab.value(LEADS_TO_A_SCRIPT) == 0
    return tab.value("document.documentElement.textContent")


def written(folder: Path, html: str, name: str = "page.html") -> str:
    (folder / name).write_text(html)
    return (folder / name).as_uri()


def report(folder: Path, scan) -> str:
    (folder / "fit").mkdir()
    write_result(named(scan), scan, folder / "fit")
    return (folder / "fit" / "report.html").as_uri()


def live_page(folder: Path, scan) -> str:
    entry = fit_row("store", folder / FILE, named(scan))
    (folder / FILE).mkdir()
    rows = {
        "fitted": row_of_scan(1, 1.8e9, replace(entry, name=HOSTILE)),
        "failed": row_of_scan(2, 1.8e9, FitRow(HOSTILE, message=HOSTILE)),
    }
    ScanTable((), rows).write(folder, [HOSTILE, HOSTILE])
    return (folder / "scans.html").as_uri()


def progress() -> Progress:
    names = dict.fromkeys(("title", "store", "where", "doing", "sentence"), HOSTILE)
    return replace(RUNNING, names=(HOSTILE, "alpha"), units=(HOSTILE, ""), **names)


def dashboard(folder: Path, scan) -> str:
    shown = replace(progress(), refused=(HOSTILE,))
    return written(folder, render_page("page.html", [shown], ["fit"]))


def cell(folder: Path, scan) -> str:
    return written(folder, f"<!DOCTYPE html>{render_cell(progress())}")


def reprs(folder: Path, scan) -> str:
    """What notebooks show of a scan, a result and a series."""
    result = named(scan)
    at = {"q": 0.0054}
    entries = (fit_row(HOSTILE, None, result, at=at), fit_row(HOSTILE, None, None, HOSTILE, at))
    parts = (scan, result, FitSeries("q", entries))
    return written(folder, f"<!DOCTYPE html>{''.join(part._repr_html_() for part in parts)}")


def scans_page(folder: Path, scan) -> str:
    """The page of several fits."""
    good = fit_row(HOSTILE, folder / FILE, named(scan))
    entries = [good, good, fit_row(HOSTILE, None, None, HOSTILE)]
    write_index(folder, LAMINAR_FLOW.names, entries, len(entries))
    return (folder / "scans.html").as_uri()


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("page", [report, scans_page, live_page, dashboard, cell, reprs])
def test_names_stay_text_and_nothing_in_them_runs(tab, tmp_path, scan, page: Callable[..., str]):
    assert "{{ 7*7 }}" in check(tab, page(tmp_path, scan))


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
