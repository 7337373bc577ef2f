"""What a fit tells of itself while it runs, as a function, the log and a notebook hear it."""

import logging
from dataclasses import replace

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import OptionError
from homodyne_dask.fitting.events import apply_event
from homodyne_dask.sweep import layout as layouts
from tests.synthetic import measured, store

DIFFUSION = np.array([20000.0, -0.4, 1000.0])
GIVEN = {"initial": {"D0": 9000.0, "alpha": 0.0}, "fixed": {"D_offset": 1000.0}}


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    """2 angles of 60 frames: 3540 pairs."""
    made = measured(DIFFUSION, 60, [0.0, 45.0], dt=0.1)
    return store(made, tmp_path_factory.mktemp("told"), "A0001_c2")


def told(scan, **options):
    """A fit, and where it stood each time it was told."""
    heard = []
    result = hd.fit(scan, hd.STATIC, **GIVEN, watch=heard.append, **options)
    return result, heard


def test_a_fit_tells_of_its_work_each_pass_and_its_end(scan):
    result, heard = told(scan)
    first, last = heard[0], heard[-1]
    assert (first.title, first.where) == ("static fitted to A0001_c2.zarr", "in this process")
    assert (first.pairs, first.bins, first.done, first.outcome) == (3540, 2, (), "RUNNING")
    assert (last.outcome, last.sentence) == (result.outcome.name, result.outcome.value)
    assert [one.chisqr for one in last.done] == [entry["chisqr"] for entry in result.history]
    assert [one.accepted for one in last.done] == [entry["accepted"] for entry in result.history]
    assert last.passes == result.passes
    np.testing.assert_array_equal(last.theta, result.parameters["value"].values)
    np.testing.assert_array_equal(last.stderr, result.parameters["stderr_naive"].values)
    np.testing.assert_array_equal(last.done[-1].stderr, last.stderr)
    assert last.reservations == (*result.undetermined, *result.warnings)


def test_every_tile_and_pair_is_told_once_and_rates_follow(scan):
    result, heard = told(scan)
    passes = [s for s in heard if s.now is not None and s.doing.endswith("over all data")]
    ends = [s for s in passes if s.now.done == s.now.tiles]
    assert {s.now.pairs for s in ends} == {result.ndata}
    assert heard[-1].pairs_total >= result.passes * result.ndata
    for progress in ends:
        expected = progress.now.pairs / (progress.now.last - progress.now.began)
        assert progress.rate == pytest.approx(expected)
        assert progress.target == pytest.approx(progress.now.pairs / progress.now.seconds)
    assert np.isnan(heard[0].target)
    assert any(s.doing == "pass 2 over all data" for s in heard)
    assert any(s.doing == "estimating the errors" for s in heard)


def test_coarse_passes_are_told_apart_from_those_over_all_data(tmp_path, monkeypatch):
    monkeypatch.setattr(layouts, "MIN_PAIRS_FOR_LEVELS", 0)
    scan = store(measured(DIFFUSION, 300, [0.0, 45.0], dt=0.02), tmp_path)
    result, heard = told(scan)
    levels = {e["level"]: e["passes"] for e in result.history if "level" in e}
    assert levels
    done = heard[-1].done
    assert {f: sum(p.factor == f for p in done) for f in levels} == levels
    assert heard[-1].passes == result.passes == sum(p.factor == 1 for p in done)
    assert any("over 4×4 means" in s.doing for s in heard)
    finest = [one for one in done if one.factor == min(levels)][-1]
    naive = result.parameters["stderr_naive"].values
    np.testing.assert_allclose(finest.stderr, naive, rtol=0.3)  # the means hold the same data


def test_the_loop_sees_the_passes_of_the_fit_and_its_value_is_the_result(scan):
    states = []

    def loop():
        result = yield from hd.iterate(scan, hd.STATIC, **GIVEN)
        assert isinstance(result, hd.FitResult)
        states.append(result)

    passes = list(loop())
    result, fitted = states[0], hd.fit(scan, hd.STATIC, **GIVEN)
    assert [state.passes for state in passes] == list(range(1, fitted.passes + 1))
    assert passes[-1].outcome is fitted.outcome
    assert result.parameters.identical(fitted.parameters)


def test_a_resumed_fit_counts_its_passes_on(scan, tmp_path):
    path = tmp_path / "checkpoint.json"
    for state in hd.iterate(scan, hd.STATIC, checkpoint=path, **GIVEN):
        if state.passes == 2:
            break
    result, heard = told(scan, checkpoint=path, resume=True)
    assert [one.number for one in heard[-1].done] == list(range(2, result.passes + 1))
    assert heard[-1].passes == result.passes
    assert any(s.doing == "pass 3 over all data" for s in heard)


def test_with_two_threads_the_target_is_what_both_can_do(scan):
    _, heard = told(scan)
    last = next(s for s in reversed(heard) if s.now is not None and s.now.done)
    event = {"what": "tiles", "fit": last.fit, "at": last.at, "done": 1, "pairs": 100, "bytes": 400}
    event |= dict.fromkeys(("pairs_total", "tiles_total", "tiles_skipped", "busy"), 0)
    two = apply_event(replace(last, threads=2), event | {"seconds": 0.5})
    assert (two.target, two.byte_target) == (400.0, 1600.0)


def test_leaving_the_loop_ends_the_fit_and_the_log_says_so(scan, caplog):
    with caplog.at_level(logging.INFO, "homodyne_dask"):
        for state in hd.iterate(scan, hd.STATIC, **GIVEN):
            if state.passes == 2:
                break
    said = [
        r.getMessage() for r in caplog.records if r.name == "homodyne_dask.fitting.fit_observer"
    ]
    assert [line.split(": ")[1][:8] for line in said[:2]] == ["pass   1", "pass   2"]
    assert said[-1].endswith("interrupted before converging")


def test_what_a_callback_raises_ends_the_fit(scan):
    def stop(progress):
        if progress.passes == 1:
            raise OptionError("enough")

    with pytest.raises(OptionError, match="enough"):
        hd.fit(scan, hd.STATIC, **GIVEN, watch=stop)


def test_an_event_of_a_fit_whose_beginning_was_missed_says_nothing():
    assert apply_event(None, {"what": "tiles", "fit": "a", "at": 1.0}) is None


def test_the_time_left_follows_from_the_tiles_that_are_done(scan):
    _, heard = told(scan)
    at = next(s for s in heard if s.now is not None)
    now = replace(at.now, began=100.0, tiles=10)
    half = replace(at, now=replace(now, done=5, last=104.0))
    assert half.seconds_left(104.0) == pytest.approx(4.0)
    assert half.seconds_left(106.0) == pytest.approx(2.0)
    assert half.seconds_left(200.0) == 0.0
    assert np.isnan(replace(at, now=now, done=()).seconds_left(101.0))
    before = replace(heard[-1].done[-1], seconds=7.0)
    assert replace(at, now=now, done=(before,)).seconds_left(101.0) == pytest.approx(6.0)


def test_a_notebook_shows_progress_and_result_in_its_cell(scan, tmp_path):
    from nbclient import NotebookClient
    from nbformat.v4 import new_code_cell, new_notebook

    code = f"import homodyne_dask as hd\nhd.fit({scan.path!r}, hd.STATIC, **{GIVEN!r})"
    notebook = new_notebook(cells=[new_code_cell(code)])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    shown = [o["data"].get("text/html", "") for o in notebook.cells[0].outputs if "data" in o]
    progress, result = shown
    assert "3 540 of 2 bins" in progress
    assert "converged" in progress
    assert "D0" in result
    assert "converged" in result
