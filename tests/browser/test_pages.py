"""Reports and displays as a browser shows them; names that are HTML or scripts stay text."""

from pathlib import Path

import pytest

import homodyne_dask as hd
from homodyne_dask.results.data.fit_rows import fit_row
from homodyne_dask.results.files.result_folder import write_index, write_result
from homodyne_dask.results.result_classes import FitSeries
from tests.browser.chromium import NAMELESS, NEEDED
from tests.browser.hostile_names import FILE, HOSTILE, check, named, scan, tab, written

__all__ = ["scan", "tab"]
pytestmark = NEEDED


def report(folder: Path, scan) -> Path:
    (folder / "fit").mkdir()
    write_result(named(scan), scan, folder / "fit")
    return folder / "fit" / "report.html"


def reprs(folder: Path, scan) -> Path:
    result, at = named(scan), {"q": 0.0054}
    entries = (fit_row(HOSTILE, None, result, at=at), fit_row(HOSTILE, None, None, HOSTILE, at))
    shown = (scan, result, FitSeries("q", entries))
    return written(folder, f"<!DOCTYPE html>{''.join(value._repr_html_() for value in shown)}")


def scans_page(folder: Path, scan) -> Path:
    good = fit_row(HOSTILE, folder / FILE, named(scan))
    entries = [good, good, fit_row(HOSTILE, None, None, HOSTILE)]
    write_index(folder, hd.LAMINAR_FLOW.names, entries, len(entries))
    return folder / "scans.html"


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("page", [report, scans_page, reprs])
def test_names_stay_text_and_nothing_in_them_runs(tab, tmp_path, scan, page):
    check(tab, page(tmp_path, scan))


@pytest.mark.long
def test_the_report_of_a_fit_opens_without_complaint_light_and_dark(scan, tab, tmp_path):
    result = hd.fit(scan, hd.LAMINAR_FLOW, gap="200 um")
    written = write_result(result, scan, tmp_path)
    (report,) = [path for path in written if path.name == "report.html"]
    tab.open(report.as_uri())
    tab.check_layout("report")
    assert tab.value(NAMELESS) == 0
    assert tab.value("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
    assert result.outcome.value in tab.text()
    tab.press("Tab", 9)
    assert tab.value("document.activeElement.tagName") == "A"
    assert not tab.complaints
