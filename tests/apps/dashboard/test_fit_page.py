"""The page /fit without a browser: what it says of fits, and that it is sound HTML."""

import time
from dataclasses import replace
from html.parser import HTMLParser

import pytest

import homodyne_dask as hd
from homodyne_dask.apps.dashboard.event_messages import event_of, message_of
from homodyne_dask.apps.dashboard.fit_page import PageState, WorkerRow, render_cell, render_page
from homodyne_dask.apps.dashboard.page_charts import Mark, chart, scale_of, ticks
from homodyne_dask.apps.dashboard.scheduler_plugin import FitPage
from tests.apps.dashboard.example_progress import ENDED, NAN, RUNNING
from tests.html_pages import NASTY, ParsedPage

PAGES = ["status", "workers", "fit"]
WORKERS = (WorkerRow("tcp://127.0.0.1:1", 4, 700_000_000, 8_000_000_000), WorkerRow("b", 4, 1, 0))


def shown(*fits, **more):
    return ParsedPage(render_page(PageState(fits, fits[0] if fits else None, **more), PAGES))


class Words(HTMLParser):
    """All text of a page."""

    def __init__(self, html):
        super().__init__()
        self.said = []
        self.feed(html)

    def handle_data(self, data):
        self.said.append(data)


def text(*fits, **more):
    words = Words(render_page(PageState(fits, fits[0] if fits else None, **more), PAGES))
    return " ".join(" ".join(words.said).split())


def test_a_running_fit_is_told_with_tiles_rates_and_targets():
    said = text(RUNNING, workers=WORKERS, cost=0.1)
    for words in (
        "… the fit is still running", "12 of 45 tiles", "15 M (20 M with all threads busy)",
        "0.06 GB (0.08 GB with all threads busy)", "1000 ± 10", "3 of 57",
        "No worker was lost during this fit.", "700 MB 8 GB", "0.25 % of the processor time of the fits",
        "pass 2 over 16×16 means", "rejected",
        """homodyne-dask view '/data/it'"'"'s <b>/A0001_c2.zarr'""",
    ):  # fmt: skip
        assert words in said, words


def test_how_a_fit_ended_is_said_in_words_with_what_is_against_it():
    said = text(ENDED, lost=("tcp://gone",))
    assert "✗ the data do not determine all parameters D0 is not determined" in said
    assert "Workers lost during this fit (1): tcp://gone" in said
    assert "singular after 1 pass" in said


def test_intervals_are_shown_when_the_fit_has_ended_and_are_those_of_its_result():
    assert "95 %" not in text(RUNNING)
    said = text(replace(ENDED, low=(904.3, NAN), high=(1095.7, NAN)))
    assert "1000 ± 10 Å²/s 904.3 1095.7" in said
    assert "-0.5000 ± 0.0100 - -" in said.replace("-0.500 ±", "-0.5000 ±").replace(
        "± 0.010 ", "± 0.0100 "
    )


def test_of_several_fits_each_has_a_link_and_the_one_shown_is_marked():
    links = [a for a in shown(RUNNING, ENDED).all("a") if a["href"].startswith("fit?")]
    assert [a["href"] for a in links] == ["fit?id=a1b2c3", "fit?id=d4e5f6"]
    assert [a.get("aria-current") for a in links] == ["true", None]


def test_without_any_fit_the_page_says_so_and_has_its_tabs():
    found = shown()
    assert "No fit yet" in found.text
    assert [a["href"] for a in found.all("a")] == PAGES
    assert [a.get("aria-current") for a in found.all("a")] == [None, None, "page"]


@pytest.mark.parametrize("fit", [RUNNING, ENDED])
def test_every_chart_says_what_it_shows_and_every_table_is_reached_by_keyboard(fit):
    found = shown(fit, workers=WORKERS)
    charts = found.all("svg")
    assert len(charts) == 3 + len(fit.names)
    assert all(a["role"] == "img" and a["aria-label"] for a in charts)
    assert "D0 ± 1σ [Å²/s], by pass: from 1000 to 1000 ± 10 after 3 passes" in [
        a["aria-label"] for a in charts
    ]
    around = [a for a in found.all("div") if a.get("class") == "wide"]
    assert len(around) == len(found.all("table")) == 3
    assert all(a["tabindex"] == "0" for a in around)
    assert len(found.all("h1")) == 1
    ids = [a["id"] for _, a in found.tags if "id" in a]
    assert len(ids) == len(set(ids))


def test_no_title_becomes_markup():
    html = render_page(
        PageState((replace(RUNNING, title=NASTY, doing=NASTY, reservations=(NASTY,)),), RUNNING),
        PAGES,
    )
    assert "<script>alert" not in html


def test_a_chart_has_few_ticks_in_order_and_a_place_for_zero():
    marks = [Mark(n, y, False, True) for n, y in enumerate((1e9, 3.0, 0.0, 1e-5))]
    scale = scale_of(marks, log=True)
    heights = [scale.at(value) for value, _ in ticks(scale)]
    assert heights == sorted(heights, reverse=True)
    assert 3 <= len(heights) <= 9
    assert scale.at(0.0) > scale.at(1e-5) > scale.at(3.0) > scale.at(1e9)
    flat = scale_of([Mark(1, 5.0, False, True), Mark(2, 5.0, False, True, 0.1)], log=False)
    assert flat.low < 4.9
    assert flat.high > 5.1
    assert "no values yet" in chart("χ²", [Mark(1, NAN, False, True)])


def test_events_survive_as_messages_but_for_what_is_of_use_in_one_process_only():
    planned = {
        "title": "a",
        "where": "b",
        "names": ("D0",),
        "units": ("Å²/s",),
        "pairs": 3,
        "bins": 1,
    }
    numbers = {
        "number": 1,
        "factor": 1,
        "chisqr": 2.0,
        "per_pair": 1.0,
        "distance": 0.5,
        "damping": 1e-3,
    }
    values = {"theta": (1.0,), "stderr": (NAN,)}
    tiles = dict.fromkeys(
        ("done", "pairs", "bytes", "pairs_total", "tiles_total", "tiles_skipped"), 1
    )
    of_fit = {"fit": "a1b2c3", "at": 1.0}
    sent = [
        hd.events.FitPlanned(**of_fit, **planned, threads=2, page="c", store="d"),
        hd.events.WorkerRefused(**of_fit, reason="too old"),
        hd.events.PhaseStarted(**of_fit, phase="estimating the errors"),
        hd.events.PassStarted(**of_fit, name="pass 1", factor=1, tiles=3),
        hd.events.TilesDone(**of_fit, **tiles, seconds=0.5, busy=0.5),
        hd.events.PassEnded(**of_fit, **numbers, accepted=True, seconds=1.0, **values),
        hd.events.FitEnded(**of_fit, outcome="CONVERGED", sentence="s", reservations=("r",), **values,
                           compilations=1),
    ]  # fmt: skip
    for event in sent:
        message = message_of(event)
        assert message is not None
        assert not {"state", "result", "error", "resumed"} & set(message)
        assert event_of(message) == event
    failed = message_of(hd.events.FitFailed(**of_fit, outcome="FAILED", sentence="failed: e"))
    assert failed == {
        "what": "ended", "fit": "a1b2c3", "at": 1.0, "outcome": "FAILED", "sentence": "failed: e",
        "reservations": [], "theta": [], "stderr": [], "compilations": 0,
    }  # fmt: skip
    assert message_of(hd.events.WorkerJoined(**of_fit, worker="tcp://b")) is None
    assert event_of({"what": "of a later version", "fit": "a1b2c3", "at": 1.0}) is None


def test_the_latest_hundred_fits_are_kept():
    plugin = FitPage()
    for n in range(103):
        keys = ("fit", "title", "where", "names", "units", "pairs", "bins", "threads", "page")
        begun = {key: getattr(RUNNING, key) for key in keys}
        plugin.log_event("homodyne_dask", begun | {"what": "begun", "at": 1.0 * n, "fit": f"{n}"})
    assert list(plugin.kept.progress) == list(plugin.kept.lost) == [f"{n}" for n in range(3, 103)]


def test_only_workers_that_left_unexpectedly_count_and_only_for_fits_that_run():
    plugin = FitPage()
    plugin.kept.progress = {"a": RUNNING, "b": ENDED}
    plugin.kept.lost = {"a": [], "b": []}
    for expected in (True, False):
        event = {"action": "remove-worker", "worker": f"w{expected}", "expected": expected}
        plugin.log_event("all", event)
    assert plugin.kept.lost == {"a": ["wFalse"], "b": []}


@pytest.mark.parametrize("now", [0.0, 1e6])
def test_the_elapsed_time_of_a_fit_follows_no_clock_that_is_set(monkeypatch, now):
    monkeypatch.setattr(time, "time", lambda: now)
    running = replace(RUNNING, seen=time.monotonic() - 60.0)
    assert "elapsed time 1 min 10 s" in text(running) or "elapsed time 70" in text(running)


def test_a_notebook_shows_parameters_while_a_fit_runs_and_leaves_them_to_the_result_then():
    assert "value ± stderr" in render_cell(RUNNING)
    assert "value ± stderr" not in render_cell(replace(RUNNING, outcome="CONVERGED"))
