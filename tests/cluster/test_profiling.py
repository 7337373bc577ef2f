"""A profile of a fit: what it leaves, and that it changes no number."""

import json
from pathlib import Path

import pytest

from homodyne_dask.cluster import profiling
from homodyne_dask.fitting import fit as fitting
from tests.run_command import done

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


@pytest.fixture
def fitted(tmp_path, monkeypatch, no_pictures):
    """What fits a small scan and returns its numbers, without pictures and with a short trace."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(profiling, "TRACE_SECONDS", 0.2)
    done("simulate", "A_results.hdf", "--scenario", "static", "--angles", "3", "--frames", "40")
    done("ingest", "A_results.hdf")

    def fit(*more: str) -> dict:
        done("fit", "A_c2.zarr", "--model", "static", "--overwrite", *more)
        found = json.loads(Path("A_fit/summary.json").read_text())
        return {name: found[name] for name in ("parameters", "scaling_per_bin", "chisqr", "passes")}

    return fit


def traces() -> list[Path]:
    return list(Path("prof/jax").rglob("*.xplane.pb"))


@pytest.mark.long
def test_a_profiled_fit_leaves_both_profiles_and_the_same_numbers(fitted, monkeypatch):
    plain = fitted()
    monkeypatch.setattr(fitting, "IN_PROCESS_PAIRS", 0)  # with workers of its own
    assert fitted("--performance-report", "prof") == plain
    report = Path("prof/dask-report.html").read_text()
    assert "gram" in report
    assert "<script src=" not in report  # it opens without a network
    (trace,) = traces()
    assert b"ThunkExecutor" in trace.read_bytes()


def test_of_a_fit_in_this_process_there_is_a_trace_and_no_report(fitted):
    plain = fitted()
    assert fitted("--performance-report", "prof") == plain
    assert len(traces()) == 1
    assert not Path("prof/dask-report.html").exists()
