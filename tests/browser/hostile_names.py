"""Names that are HTML, scripts or templates, and a check that they stay text on a page."""

from pathlib import Path

import pytest

from homodyne_dask.results.data.findings import Findings, finding
from homodyne_dask.results.result_classes import FitResult
from tests.browser.chromium import browser
from tests.results.made_results import changed, flow_result_of
from tests.synthetic import FLOW, angles, measured, module_scan

FILE = "\"'{{ 7*7 }}{% x %}<img src=x onerror=window.taken=1>javascript:window.taken=1"
"""A name that a file may have."""
HOSTILE = f"</style></title></script></textarea>--><script>window.taken=1</script>{FILE}"
LEADS_TO_A_SCRIPT = """[...document.querySelectorAll("*")].filter(e => [...e.attributes].some(a =>
  /^on/i.test(a.name) && a.value.includes("taken") || /^\\s*javascript:/i.test(a.value))).length"""
scan = module_scan(lambda: measured(FLOW, 60, angles(3), dt=0.1), f"{FILE}A_c2")


def named(scan) -> FitResult:
    result = flow_result_of(scan)
    inputs = result.provenance.inputs | dict.fromkeys(("store", "source_file"), HOSTILE)
    findings = Findings([finding("undetermined", [HOSTILE])])
    return changed(result, inputs=inputs, findings=findings)


def written(folder: Path, html: str) -> Path:
    (folder / "page.html").write_text(html)
    return folder / "page.html"


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("names")) as tab:
        yield tab


def check(tab, page: Path) -> None:
    tab.open(page.as_uri())
    assert tab.value("window.taken") is None
    assert tab.value(LEADS_TO_A_SCRIPT) == 0
    assert "{{ 7*7 }}" in tab.value("document.documentElement.textContent")
    tab.command("Page.navigate", url="about:blank")
    tab.complaints.clear()  # of a page without its server
