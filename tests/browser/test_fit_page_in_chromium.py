"""The page /fit and report.html as a person sees them, in Chromium, while a real fit runs."""

import threading
import time
from contextlib import suppress
from urllib.request import urlopen

import pytest

import homodyne_dask as hd
from homodyne_dask.cluster import local as cluster
from homodyne_dask.fitting.events import on_pass
from homodyne_dask.results.files import result_folder as folder
from tests.browser.chromium import NAMELESS, PATIENCE, PROGRAM, browser
from tests.synthetic import FLOW, angles, measured, module_scan

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(240),
    pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed"),
]
TRUE = dict(zip(hd.LAMINAR_FLOW.names, FLOW.tolist(), strict=True))
FLOWING = {
    "gap": "200 um",
    "initial": {"D0": 1.6 * TRUE["D0"], "alpha": 0.0, "gamma_dot_t0": 0.4 * TRUE["gamma_dot_t0"]},
    "fixed": {name: TRUE[name] for name in ("D_offset", "gamma_dot_t_offset")},
}
PASSES = "document.querySelectorAll('.passes tbody tr').length"


class Steps:
    """Lets a fit go on pass by pass, as its callback is called."""

    def __init__(self) -> None:
        self.done = 0
        self.may = threading.Semaphore(0)

    def __call__(self, event) -> None:
        self.done = event.number
        assert self.may.acquire(timeout=PATIENCE)


class Fit(threading.Thread):
    """A fit that runs beside the test."""

    def __init__(self, scan, client, model=hd.LAMINAR_FLOW, **options) -> None:
        super().__init__(daemon=True)
        self.steps = Steps()
        self.options = {"client": client, "callbacks": [on_pass(self.steps)], **options}
        self.scan, self.model = scan, model
        self.result: hd.FitResult | None = None
        self.start()

    def run(self) -> None:
        self.result = hd.fit(self.scan, self.model, **self.options)

    def finish(self) -> hd.FitResult:
        self.steps.may.release(1000)
        self.join(PATIENCE)
        assert self.result is not None
        return self.result


scan = module_scan(lambda: measured(FLOW, 150, angles(9), dt=0.2), "A0001_c2")
"""9 angles of 150 frames."""


@pytest.fixture
def tab(tmp_path):
    with browser(tmp_path) as tab:
        yield tab


def wait_for_page(address: str) -> None:
    """The first fit adds the page to its scheduler."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with suppress(OSError):
            urlopen(address).close()
            return
        time.sleep(0.05)


@pytest.mark.long
def test_a_person_follows_two_fits_and_reads_how_they_ended(scan, tab):
    with cluster.local_cluster(processes=1, threads=2) as client:
        first = Fit(scan, client, **FLOWING)
        status = client.dashboard_link
        page = status.replace("status", "fit")
        wait_for_page(page)
        tab.open(page)
        seen = {}
        for passes in (1, 2, 3):
            tab.until(f"{PASSES} == {passes}")
            assert "the fit is still running" in tab.text()
            seen[passes] = tab.value(
                "document.querySelector('.passes tbody tr:last-child').innerText"
            )
            seen[f"D0 after {passes}"] = tab.value(
                "document.querySelector('.parameters tbody tr').innerText"
            )
            first.steps.may.release()
        assert len(set(seen.values())) == 6, seen  # numbers change from pass to pass
        tab.look(1200, "light")
        tab.shot("fit-running")

        second = Fit(scan, client, hd.STATIC)
        tab.until("document.querySelectorAll('h2').length == 2")
        assert tab.value("document.querySelector('h2').innerText").startswith("static")
        second.finish()
        tab.until("!document.querySelector('.outcome').innerText.includes('still running')")
        result = first.finish()
        assert result.converged
        last = "[...document.querySelectorAll('.outcome')].at(-1).innerText"
        tab.until(f"{last}.includes('converged')")
        assert tab.value(last) == f"✓ {result.outcome.value}"
        passes = (
            "[...document.querySelectorAll('.passes')].at(-1).querySelectorAll('tbody tr').length"
        )
        assert tab.value(passes) == result.passes

        tab.check_layout("fit")
        tab.open(status)
        tab.until("[...document.querySelectorAll('.navbar a')].some(a => a.innerText == 'Fit')")
        tab.open(status.replace("status", "fit"))
        tab.until("document.querySelector('.outcome') != null")
        assert not tab.complaints
    # the cluster is gone: what was there last is still to be read
    tab.until("document.querySelector('#contact').innerText.includes('no longer answers')")
    assert "✓ converged" in tab.text()


@pytest.mark.long
def test_the_report_of_a_fit_opens_without_complaint_light_and_dark(scan, tab, tmp_path):
    result = hd.fit(scan, hd.LAMINAR_FLOW, **FLOWING)
    written = folder.write_result(result, scan, tmp_path)
    (report,) = [path for path in written if path.name == "report.html"]
    tab.open(report.as_uri())
    tab.check_layout("report")
    assert tab.value(NAMELESS) == 0
    assert tab.value("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
    assert result.outcome.value in tab.text()
    tab.press("Tab", 9)
    assert tab.value("document.activeElement.tagName") == "A"
    assert not tab.complaints
