"""`fit --over`: each ring or window of one store has its fit; one that fails does not stop the others."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from homodyne_dask.fitting.series import many_fits as run_many
from homodyne_dask.fitting.series.rings_and_windows import SharedByRings
from homodyne_dask.results.saved_results import load_result, load_series
from homodyne_dask.results.views import fit_figures as plots
from tests.run_command import csv_rows, done, run
from tests.synthetic import measured, store

pytestmark = pytest.mark.usefixtures("no_pictures")
FIT = ("fit", "R_c2.zarr", "--model", "static", "--fixed", "D_offset=0", "--over")
FILES = {f"series.{kind}" for kind in ("csv", "html", "txt", "json", "nc", "png")}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with a store of two rings, fits of each, and what was printed."""
    folder = tmp_path_factory.mktemp("rings")
    q, phi = np.repeat([0.004, 0.006], 3), np.tile([0.0, 45.0, 90.0], 2)
    store(measured([20000.0, -0.4, 0.0], 30, phi, q=q, sigma=0.01), folder, "R_c2")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(plots, "save_all", lambda *_: [])
        (folder / "printed.txt").write_text(done(*FIT, "q"))
    return folder


def test_every_ring_has_its_result_and_a_series_lists_them(here):
    printed = Path("printed.txt").read_text()
    assert {path.name for path in Path("R_fit_q").iterdir()} == FILES | {"q_0.004", "q_0.006"}
    stored = load_result("R_fit_q/q_0.006")
    first, second = csv_rows("R_fit_q/series.csv")
    assert (first["q"], first["folder"], second["q"]) == ("0.004", "q_0.004", "0.006")
    assert float(second["D0"]) == stored.parameters["value"].values[0]
    assert float(second["J_stderr_naive"]) > 0
    assert float(second["D0_stderr"]) > 0
    series = load_series("R_fit_q")
    assert f"{series}\n" == done("show", "R_fit_q") == Path("R_fit_q/series.txt").read_text()
    assert str(series) in printed
    assert "2 of 2 fits converged" in printed


@pytest.mark.long
def test_a_series_that_keeps_its_fits_keeps_what_rings_share(here, monkeypatch):
    """Kept fits have no noise: without the share, the errors of means would be too small."""
    monkeypatch.setattr(SharedByRings, "correlations", lambda rings: (0.5,) if rings.ended else ())
    done(*FIT, "q", "--overwrite")
    before = json.loads(Path("R_fit_q/series.json").read_text())
    assert before["correlations"] == [0.5]
    done(*FIT, "q", "--resume")
    assert json.loads(Path("R_fit_q/series.json").read_text())["correlations"] == [0.5]


def test_windows_of_age_are_fitted_in_the_same_way(here):
    options = "over: age\nwindows: [[0, 4], [5, 9]]\nq: 0.004\noutput: windows\n"
    Path("fit.yaml").write_text(f"data: R_c2.zarr\nmodel: static\n{options}")
    done("fit", "fit.yaml")
    edges = [(float(row["from"]), float(row["to"])) for row in csv_rows("windows/series.csv")]
    assert [first for first, _ in edges] == [0.0, 5.0]
    assert [last < stop for (_, last), stop in zip(edges, (4.0, 9.0), strict=True)] == [True, True]
    assert {p.name for p in Path("windows").iterdir() if p.is_dir()} == {"window_01", "window_02"}


@pytest.mark.long
def test_a_rate_without_a_formula_stands_for_its_coefficients(here):
    """At the mean age of a window or of a whole record."""
    free = ("--model", "static", "--rates", "spline", "--knots", "5")
    printed = done("fit", "R_c2.zarr", *free, "--over", "age", "--windows", "2", "--output", "free")
    assert "J at mean age [Å²/s]" in printed
    last, rates = csv_rows("free/series.csv")[1], load_result("free/window_02").rates
    for name in ("J", "J_stderr_naive"):
        wanted = np.interp(float(last["age"]), rates["t"], rates[name.removesuffix("_naive")])
        assert float(last[name]) == pytest.approx(wanted, rel=1e-3)
    assert not [name for name in last if name.startswith("J_1")]
    shutil.copytree("R_c2.zarr", "Q_c2.zarr")
    done("fit", "Q_c2.zarr", "R_c2.zarr", *free, "--output", "two")
    assert [float(row["J"]) > 0 for row in csv_rows("two/scans.csv")] == [True, True]
    assert "J at mean age [Å²/s]" in Path("two/scans.html").read_text()


@pytest.mark.cluster
@pytest.mark.slow
def test_small_fits_on_workers_write_the_same_as_fits_in_this_process(here, monkeypatch):
    wanted = Path("R_fit_q/q_0.006/summary.json").read_text()
    here = Path("R_fit_q/series.csv").read_text()
    monkeypatch.setattr(run_many, "MIN_DRAWN_FITS_FOR_WORKERS", 2)
    done(*FIT, "q", "--overwrite")
    # figures are switched off in this process only: workers drew this one
    assert Path("R_fit_q/q_0.006/angles.png").exists()
    assert Path("R_fit_q/series.csv").read_text() == here
    assert reproducible(Path("R_fit_q/q_0.006/summary.json").read_text()) == reproducible(wanted)


def reproducible(summary: str) -> dict:
    """The part of a summary that does not depend on when and where it was computed."""
    content = json.loads(summary)
    return {key: content[key] for key in ("parameters", "scaling", "chisqr", "outcome")}


BAD_OPTIONS = {
    "R_c2.zarr --over q": "over applies to a single store, but 2 are given",
    "--over q --checkpoint c.json": "applies to a single fit, but there are 2 fits",
    "--windows 3": "give --over age",
    "--over age --windows few": "--windows = .* cannot be used",
}


@pytest.mark.parametrize("options", BAD_OPTIONS)
def test_the_error_for_bad_options_is_one_sentence(here, options):
    result = run("fit", "R_c2.zarr", "--model", "static", *options.split())
    assert result.exit_code == 2
    assert re.search(BAD_OPTIONS[options], result.stderr), result.stderr
    assert result.stderr.count("error:") == 1
