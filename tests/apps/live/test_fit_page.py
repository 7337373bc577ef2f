"""The page /fit without a browser: what it says of fits, and that it is sound HTML; that of a process."""

from dataclasses import fields, replace
from urllib.request import urlopen

import pytest

import homodyne_dask as hd
from homodyne_dask.apps.live.event_messages import event_of, message_of
from homodyne_dask.apps.live.fit_page import render_cell, render_page
from homodyne_dask.apps.live.shown_fits import MAX_FITS, FitPage
from homodyne_dask.fitting import observer as callbacks
from homodyne_dask.results.data.findings import finding
from tests.example_progress import ENDED, NAN, RUNNING
from tests.html_pages import NASTY, ParsedPage
from tests.synthetic import CREEP, angles, measured, module_scan

PAGES = ["status", "workers", "fit"]


def page(*fits):
    return render_page("page.html", fits, PAGES)


def text(*fits):
    return " ".join(" ".join(ParsedPage(page(*fits)).said).split())


def test_a_running_fit_is_told_with_tiles_rates_passes_and_parameters():
    said = text(replace(RUNNING, refused=("worker tcp://gone was lost",)))
    for words in (
        "… the fit is still running", "12 of 45 tiles", "15 M pairs/s, 0.06 GB/s", "1000 ± 10", "3 of 57",
        "worker tcp://gone was lost", "pass 2 over 16×16 means", "rejected",
        """homodyne-dask view '/data/it'"'"'s <b>/A0001_c2.zarr'""",
    ):  # fmt: skip
        assert words in said, words


def test_before_the_first_tile_no_rate_is_shown():
    assert "rate - pairs" in text(replace(RUNNING, rate=NAN, now=None, done=(), theta=()))


def test_without_any_fit_the_page_says_so_and_has_its_tabs():
    found = ParsedPage(page())
    assert "No fit yet" in found.text
    assert [a["href"] for a in found.all("a")] == PAGES
    assert [a.get("aria-current") for a in found.all("a")] == [None, None, "page"]


def test_fits_are_shown_below_one_another_and_every_table_is_reached_by_keyboard():
    found = ParsedPage(page(RUNNING, ENDED))
    around = [a for a in found.all("div") if a.get("class") == "wide"]
    assert len(around) == len(found.all("table")) == 4
    assert all(a["tabindex"] == "0" for a in around)
    assert len(found.all("h1")) == 1
    assert len(found.all("h2")) == 2
    ids = [a["id"] for _, a in found.tags if "id" in a]
    assert len(ids) == len(set(ids))


def test_no_title_becomes_markup():
    findings = (finding("determined", [NASTY]),)
    hostile = replace(RUNNING, title=NASTY, doing=NASTY, findings=findings, refused=(NASTY,))
    assert "<script>alert" not in page(hostile)


SENT = hd.events.Event.__subclasses__()
VALUES = {
    str: "a", int: 3, float: 0.5, bool: True, tuple[str, ...]: ("b", "c"), tuple[float, ...]: (1.0, NAN),
    "tuple[Finding, ...]": (finding("determined", ["D0"]),),
}  # fmt: skip


@pytest.mark.parametrize("event", SENT)
def test_events_survive_as_messages_but_for_what_is_of_use_in_one_process_only(event):
    local = {"state", "result", "noise", "error", "resumed"}
    sent = event(**{of.name: VALUES[of.type] for of in fields(event) if of.name not in local})
    message = message_of(sent)
    assert message["what"] == event.__name__
    assert not local & message.keys()
    assert not any(isinstance(value, tuple) for value in message.values())
    assert event_of(message) == sent
    assert event_of(message | {"of": "a later version"}) == sent


def test_an_event_of_a_later_version_is_left_out():
    plugin = FitPage()
    plugin.log_event("homodyne_dask", {"what": "SomethingNew", "fit": "a1b2c3", "at": 1.0})
    assert not plugin.shown.fits


def planned(name: str) -> dict:
    keys = ("title", "where", "names", "units", "pairs", "datum", "bins")
    values = {key: getattr(RUNNING, key) for key in keys}
    return message_of(hd.events.FitPlanned(fit=name, **values))


def test_a_fit_that_has_ended_is_shown_until_the_next_one_begins():
    plugin = FitPage()
    for name in "ab":
        plugin.log_event("homodyne_dask", planned(name))
    ended = hd.events.FitFailed(fit="a", outcome="FAILED", sentence="failed: e")
    plugin.log_event("homodyne_dask", message_of(ended))
    assert [fit.outcome for fit in plugin.shown.fits.values()] == ["FAILED", "RUNNING"]
    plugin.log_event("homodyne_dask", planned("c"))
    assert list(plugin.shown.fits) == ["b", "c"]


def test_fits_that_never_end_do_not_fill_the_scheduler():
    plugin = FitPage()
    for n in range(MAX_FITS + 3):
        plugin.log_event("homodyne_dask", planned(f"{n}"))
    assert list(plugin.shown.fits) == [f"{n}" for n in range(3, MAX_FITS + 3)]


def test_only_workers_that_left_unexpectedly_count_and_only_for_fits_that_run():
    plugin = FitPage()
    plugin.shown.fits = {"a": RUNNING, "b": ENDED}
    for expected in (True, False):
        event = {"action": "remove-worker", "worker": f"w{expected}", "expected": expected}
        plugin.log_event("all", event)
    assert [fit.refused for fit in plugin.shown.fits.values()] == [("worker wFalse was lost",), ()]


def test_a_notebook_shows_parameters_while_a_fit_runs_and_leaves_them_to_the_result_then():
    assert "value ± stderr" in render_cell(RUNNING)
    assert "value ± stderr" not in render_cell(replace(RUNNING, outcome="CONVERGED"))


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
