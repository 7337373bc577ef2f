"""The page /fit of a fit on threads of this process."""

from urllib.request import urlopen

import pytest

import homodyne_dask as hd
from homodyne_dask.fitting import observer as callbacks
from tests.html_pages import ParsedPage
from tests.synthetic import CREEP, angles, measured, module_scan

GIVEN = {"initial": {"D0": 9000.0, "alpha": 0.0}, "fixed": {"D_offset": 1000.0}}
scan = module_scan(lambda: measured(CREEP, 300, angles(3), dt=0.1))


@pytest.mark.long
def test_the_page_shows_the_fit_while_it_runs_and_its_end(scan, monkeypatch):
    monkeypatch.setattr(callbacks, "PAIRS_FOR_PAGE", 0)
    pages, first = [], []

    def look(event):
        if isinstance(event, hd.events.FitPlanned):
            first.append(event)
        elif isinstance(event, hd.events.PassEnded):
            pages.append(read(first[0].page))

    result = hd.fit(scan, hd.STATIC, **GIVEN, callbacks=[look])
    assert "still running" in pages[0]
    assert result.outcome.value in ParsedPage(read(first[0].page)).text
    assert "still running" not in read(first[0].page + "-now")
    assert first[0].page.startswith("http://127.0.0.1:")


def read(address):
    with urlopen(address) as answer:
        return answer.read().decode()


def test_small_fits_have_no_page(scan):
    planned = []
    hd.fit(scan, hd.STATIC, **GIVEN, max_passes=1, callbacks=[planned.append])
    assert planned[0].page == ""
