"""The events of a fit, as callbacks, the log and a notebook get them."""

import itertools
import logging
import sys
import time
from dataclasses import replace
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.cluster.local import local_cluster
from homodyne_dask.errors import OptionError
from homodyne_dask.fitting import observer as callbacks
from homodyne_dask.fitting.events import (
    FitFailed,
    FitPlanned,
    PassEnded,
    TilesDone,
    on_pass,
    on_progress,
)
from homodyne_dask.solver.checkpoint import load, saved_identity
from homodyne_dask.sweep import layout as layouts
from tests.synthetic import CREEP, angles, measured, module_scan, store

GIVEN = {"initial": {"D0": 9000.0, "alpha": 0.0}, "fixed": {"D_offset": 1000.0}}
scan = module_scan(lambda: measured(CREEP, 60, [0.0, 45.0], dt=0.1), "A0001_c2")
"""2 angles of 60 frames: 3540 pairs."""


def observed(scan, **options):
    shown = []
    result = hd.fit(scan, hd.STATIC, **GIVEN, callbacks=[on_progress(shown.append)], **options)
    return result, shown


def test_a_fit_emits_each_pass_and_its_end_and_every_pair_once_with_its_rate(scan):
    result, shown = observed(scan)
    first, last = shown[0], shown[-1]
    assert (first.title, first.where) == ("static fitted to A0001_c2.zarr", "in this process")
    assert (first.pairs, first.bins, first.done, first.outcome) == (3540, 2, (), "RUNNING")
    assert (last.outcome, last.sentence) == (result.outcome.name, result.verdict)
    assert [one.chisqr for one in last.done] == [entry["chisqr"] for entry in result.run.history]
    accepted = [entry["accepted"] for entry in result.run.history]
    assert [one.accepted for one in last.done] == accepted
    assert last.passes == result.passes
    for name, values in (("value", last.theta), ("stderr", last.stderr)):
        np.testing.assert_array_equal(values, result.parameters[name].values)
    assert np.isnan(last.done[-1].stderr).all()  # of 2 bins, no error is known before the end
    assert last.findings == result.findings
    passes = [s for s in shown if s.now is not None and s.doing.endswith("over all data")]
    ends = [s for s in passes if s.now.done == s.now.tiles]
    assert {s.now.pairs for s in ends} == {result.ndata}
    assert shown[-1].pairs_total >= result.passes * result.ndata
    for progress in ends:
        expected = progress.now.pairs / (progress.now.last - progress.now.began)
        assert progress.rate == pytest.approx(expected)
    assert any(s.doing == "pass 2 over all data" for s in shown)
    assert any(s.doing == "estimating the errors" for s in shown)


@pytest.mark.long
def test_coarse_passes_do_not_count_as_those_over_all_data(tmp_path, monkeypatch):
    monkeypatch.setattr(layouts, "MIN_PAIRS_FOR_LEVELS", 0)
    scan = store(measured(CREEP, 300, angles(9), dt=0.02), tmp_path)
    result, shown = observed(scan)
    levels = {e["level"]: e["passes"] for e in result.run.history if "level" in e}
    assert levels
    done = shown[-1].done
    assert {f: sum(p.factor == f for p in done) for f in levels} == levels
    assert shown[-1].passes == result.passes == sum(p.factor == 1 for p in done)
    assert any("over 4×4 means" in s.doing for s in shown)
    finest = [one for one in done if one.factor == min(levels)][-1]
    known = result.parameters["stderr"].values
    np.testing.assert_allclose(finest.stderr, known, rtol=0.5)  # the means hold the same data


def test_a_resumed_fit_counts_its_passes_on(scan, tmp_path):
    path = tmp_path / "checkpoint.json"
    for state in hd.iterate(scan, hd.STATIC, checkpoint=path, **GIVEN):
        if state.passes == 2:
            break
    result, shown = observed(scan, checkpoint=path, resume=True)
    assert [one.number for one in shown[-1].done] == list(range(2, result.passes + 1))
    assert shown[-1].passes == result.passes
    assert any(s.doing == "pass 3 over all data" for s in shown)


def test_leaving_the_loop_ends_the_fit_and_the_log_says_so(scan, caplog):
    with caplog.at_level(logging.INFO, "homodyne_dask"):
        for state in hd.iterate(scan, hd.STATIC, **GIVEN):
            if state.passes == 2:
                break
    said = [r.getMessage() for r in caplog.records if r.name == "homodyne_dask.fitting.observer"]
    assert [line.split(": ")[1][:8] for line in said[:2]] == ["pass   1", "pass   2"]
    assert said[-1].endswith("interrupted before converging")


def test_the_events_of_a_fit_come_in_their_order(scan, tmp_path):
    seen = []
    result = hd.fit(scan, hd.STATIC, **GIVEN, callbacks=[seen.append])
    kinds = [type(event).__name__ for event in seen if not isinstance(event, TilesDone)]
    one_pass = ["PassStarted", "PassEnded"]
    assert kinds[: 1 + 2 * result.passes] == ["FitPlanned", *one_pass * result.passes]
    assert kinds[1 + 2 * result.passes] == "PhaseStarted"
    assert kinds[-1] == "FitEnded"
    assert seen[-1].result is result
    assert len({event.fit for event in seen}) == 1
    assert [event.at for event in seen] == sorted(event.at for event in seen)
    states = [event.state for event in seen if isinstance(event, PassEnded)]
    assert [state.passes for state in states] == list(range(1, result.passes + 1))


def test_what_a_callback_raises_ends_the_fit_and_the_others_learn_of_it(scan):
    before, after, number = [], [], 0

    def stop(event):
        nonlocal number
        number += 1
        if isinstance(event, PassEnded):
            raise OptionError("enough")

    with pytest.raises(OptionError, match="enough"):
        hd.fit(scan, hd.STATIC, **GIVEN, callbacks=[before.append, stop, after.append])
    assert isinstance(before[-2], PassEnded)
    assert before[-1] is after[-1]
    assert (before[-1].outcome, before[-1].sentence) == ("FAILED", "failed: enough")
    assert isinstance(before[-1].error, OptionError)
    assert number == len(before) - 1 == len(after)


def test_a_callback_that_fails_after_the_fit_did_does_not_hide_why(scan, caplog):
    def fail(event):
        if isinstance(event, PassEnded):
            raise OptionError("enough")

    def fail_again(event):
        if isinstance(event, FitFailed):
            raise RuntimeError("too late")

    with pytest.raises(OptionError, match="enough"):
        hd.fit(scan, hd.STATIC, **GIVEN, callbacks=[fail, fail_again])
    assert "a callback also failed: RuntimeError: too late" in caplog.text


def test_the_checkpoint_of_a_pass_is_written_before_other_callbacks_get_it(scan, tmp_path):
    path, written = tmp_path / "checkpoint.json", []
    saved = on_pass(lambda _: written.append(load(path, saved_identity(path)).passes))
    result = hd.fit(scan, hd.STATIC, **GIVEN, checkpoint=path, callbacks=[saved])
    assert written == list(range(1, result.passes + 1))


def test_a_package_that_registers_a_callback_gets_every_fit(scan, monkeypatch):
    seen = []
    monkeypatch.setitem(sys.modules, "theirs", SimpleNamespace(
        subscribe=lambda client: hd.events.Subscriber(seen.append, "http://somewhere"),
        decline=lambda client: None,
    ))  # fmt: skip
    points = [
        EntryPoint(n, f"theirs:{n}", callbacks.GROUP) for n in ("subscribe", "decline", "gone")
    ]
    monkeypatch.setattr(callbacks, "offered_in", lambda group: tuple(points))
    with pytest.warns(UserWarning, match=r"callback 'gone' \(theirs:gone\).*AttributeError"):
        hd.fit(scan, hd.STATIC, **GIVEN)
    assert isinstance(seen[0], FitPlanned)
    assert seen[0].page == "http://somewhere"
    assert isinstance(seen[-1], hd.events.FitEnded)


@pytest.mark.long
def test_the_small_fits_of_workers_replay_their_events(scan):
    seen = []
    with local_cluster(processes=1, threads=2) as client:
        series = hd.fit_each(
            scan, hd.STATIC, over="age", windows=2, **GIVEN, client=client, callbacks=[seen.append]
        )
    assert [type(event) for event in seen].count(FitPlanned) == 2
    for result in series.results:
        (ended,) = [e for e in seen if isinstance(e, hd.events.FitEnded) and e.result is result]
        passes = [e for e in seen if isinstance(e, PassEnded) and e.fit == ended.fit]
        assert len(passes) == result.passes


def test_the_time_left_follows_from_the_tiles_that_are_done(scan):
    _, shown = observed(scan)
    at = next(s for s in shown if s.now is not None)
    now = replace(at.now, began=100.0, tiles=10)
    half = replace(at, now=replace(now, done=5, last=104.0))
    assert half.seconds_left(104.0) == pytest.approx(4.0)
    assert half.seconds_left(106.0) == pytest.approx(2.0)
    assert half.seconds_left(200.0) == 0.0
    assert np.isnan(replace(at, now=now, done=()).seconds_left(101.0))
    before = replace(shown[-1].done[-1], seconds=7.0)
    assert replace(at, now=now, done=(before,)).seconds_left(101.0) == pytest.approx(6.0)


@pytest.mark.long
def test_a_notebook_shows_progress_and_result_in_its_cell(scan, tmp_path):
    from nbclient import NotebookClient
    from nbformat.v4 import new_code_cell, new_notebook

    code = f"import homodyne_dask as hd\nhd.fit({scan.path!r}, hd.STATIC, **{GIVEN!r})"
    notebook = new_notebook(cells=[new_code_cell(code)])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    shown = [o["data"].get("text/html", "") for o in notebook.cells[0].outputs if "data" in o]
    progress, result = shown
    assert "3,540 of 2 bins" in progress
    assert "converged" in progress
    assert "D0" in result
    assert "converged" in result


@pytest.mark.parametrize("hours", [-5, 5])
def test_a_clock_that_is_set_during_a_fit_changes_no_duration(scan, monkeypatch, hours):
    calls, real = itertools.count(), time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600.0 * hours * next(calls))
    began = time.monotonic()
    _, shown = observed(scan)
    longest = time.monotonic() - began
    times = [progress.at for progress in shown]
    assert times == sorted(times)
    assert times[-1] - shown[-1].began <= longest
    for progress in shown:
        assert all(0 <= one.seconds <= longest for one in progress.done)
        if progress.now is not None:
            assert 0 <= progress.now.last - progress.now.began <= longest
            assert not progress.seconds_left(progress.at) < 0


def test_what_callbacks_and_results_hold_cannot_be_written_to(scan):
    """A changed theta ended a fit STALLED; a changed Hessian changed its errors without a word."""

    def changed(event):
        if isinstance(event, PassEnded):
            reduced = event.state.reduced
            for array in (
                event.state.theta,
                reduced.hessian,
                reduced.projection,
                reduced.gram.moments,
            ):
                with pytest.raises(ValueError, match="read-only"):
                    array *= 2

    result = hd.fit(scan, hd.STATIC, **GIVEN, callbacks=[changed])
    assert result.converged
    for array in (result.parameters["value"].values, result.scaling["offset"].values, scan.time):
        with pytest.raises(ValueError, match="read-only"):
            array *= 2
