"""The pages of running fits as a person sees them in Chromium."""

import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import pytest

import homodyne_dask as hd
from homodyne_dask.apps.live.fit_page import render_cell, render_page
from homodyne_dask.cluster import local as cluster
from homodyne_dask.fitting.events import on_pass
from tests.browser.chromium import NEEDED, PATIENCE
from tests.browser.hostile_names import HOSTILE, check, tab, written
from tests.example_progress import RUNNING
from tests.synthetic import FLOW, angles, measured, module_scan

__all__ = ["tab"]
pytestmark = NEEDED
NAMES = dict.fromkeys(("title", "store", "where", "doing", "sentence"), HOSTILE)
PROGRESS = replace(RUNNING, names=(HOSTILE, "alpha"), units=(HOSTILE, ""), **NAMES)


def dashboard(folder: Path) -> Path:
    shown = replace(PROGRESS, refused=(HOSTILE,))
    return written(folder, render_page("page.html", [shown], ["fit"]))


def cell(folder: Path) -> Path:
    return written(folder, f"<!DOCTYPE html>{render_cell(PROGRESS)}")


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("page", [dashboard, cell])
def test_names_stay_text_and_nothing_in_them_runs(tab, tmp_path, page):
    check(tab, page(tmp_path))


TRUE = dict(zip(hd.LAMINAR_FLOW.names, FLOW.tolist(), strict=True))
FLOWING = {
    "gap": "200 um",
    "initial": {"D0": 1.6 * TRUE["D0"], "alpha": 0.0, "gamma_dot_t0": 0.4 * TRUE["gamma_dot_t0"]},
    "fixed": {name: TRUE[name] for name in ("D_offset", "gamma_dot_t_offset")},
}
PASSES = "document.querySelectorAll('.passes tbody tr').length"


class Fit(threading.Thread):
    """A fit that runs beside the test, and waits after each pass until it may go on."""

    def __init__(self, scan, client, model=hd.LAMINAR_FLOW, **options) -> None:
        super().__init__(daemon=True)
        self.may_go_on = threading.Semaphore(0)
        self.scan, self.model, self.options = scan, model, options | {"client": client}
        self.result: hd.FitResult | None = None
        self.start()

    def run(self) -> None:
        def wait(_) -> None:
            assert self.may_go_on.acquire(timeout=PATIENCE)

        self.result = hd.fit(self.scan, self.model, callbacks=[on_pass(wait)], **self.options)

    def finish(self) -> hd.FitResult:
        self.may_go_on.release(1000)
        self.join(PATIENCE)
        assert self.result is not None
        return self.result


scan = module_scan(lambda: measured(FLOW, 150, angles(9), dt=0.2), "A0001_c2")
"""9 angles of 150 frames."""


def wait_for_page(address: str) -> None:
    """The first fit adds the page to its scheduler."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with suppress(OSError):
            urlopen(address).close()
            return
        time.sleep(0.05)


@pytest.mark.long
@pytest.mark.cluster
def test_a_person_follows_two_fits_and_reads_how_they_ended(scan, tab):
    with cluster.local_cluster(processes=1, threads=2) as client:
        first = Fit(scan, client, **FLOWING)
        status = client.dashboard_link
        page = status.replace("status", "fit")
        wait_for_page(page)
        tab.open(page)
        seen = set()
        for passes in (1, 2, 3):
            tab.until(f"{PASSES} == {passes}")
            assert "the fit is still running" in tab.text()
            for row in (".passes tbody tr:last-child", ".parameters tbody tr"):
                seen.add(tab.value(f"document.querySelector('{row}').innerText"))
            first.may_go_on.release()
        assert len(seen) == 6, seen  # numbers change from pass to pass
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
        passes = "[...document.querySelectorAll('.passes')].at(-1)"
        assert tab.value(f"{passes}.querySelectorAll('tbody tr').length") == result.passes

        tab.check_layout("fit")
        tab.open(status)
        tab.until("[...document.querySelectorAll('.navbar a')].some(a => a.innerText == 'Fit')")
        tab.open(status.replace("status", "fit"))
        tab.until("document.querySelector('.outcome') != null")
        assert not tab.complaints
    # the cluster is gone: what was there last is still to be read
    tab.until("document.querySelector('#contact').innerText.includes('no longer answers')")
    assert "✓ converged" in tab.text()
