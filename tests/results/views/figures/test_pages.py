"""Pages of panels: widths, units, legends beside data, panels alone, tables, and files for print."""

from dataclasses import replace

import click
import numpy as np
import pytest
import xarray
from matplotlib.figure import Figure

import homodyne_dask as hd
from homodyne_dask.cli.shared_options import PicturesCommand
from homodyne_dask.errors import OptionError
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.data.rate_curves import BANDS
from homodyne_dask.results.views import fit_figures as plots
from homodyne_dask.results.views import panels as draw
from homodyne_dask.results.views.angles import draw_angles, influential
from homodyne_dask.results.views.fit_figures import _fitted_rate
from tests.results.made_results import FLOW, changed, influence_of_bins, result_for, scan_of
from tests.synthetic import CREEP

PURE = ("contrast", "offset", "c₂", "strain γ", "density", "pass", "f")
"""Quantities without a unit; ratios and differences have the sign of what is done."""
PANELS = {
    "angles": ["contrast", "offset", "decay_time", "f_at_lag"],
    "rates": ["J", "gamma_dot", "strain"],
    "residuals": ["distribution", "against lag"],
    "passes": ["chisqr", "distance", "seconds"],
}


@pytest.mark.parametrize("name", PANELS)
def test_a_page_has_its_width_units_and_a_legend_beside_the_panels(name, flowing):
    picture = plots.PICTURES[name](FitView(result_for(flowing, FLOW), flowing))
    picture.draw_without_rendering()
    assert picture.get_figwidth() == draw.PAGE
    assert list(picture.tables) == PANELS[name]
    for axes in picture.axes:
        for label in (axes.get_xlabel(), axes.get_ylabel()):
            assert label.endswith("]") or label in PURE or {"/", "−"} & {*label}, label
    for legend in picture.legends:
        box = legend.get_window_extent()
        assert not any(box.overlaps(axes.get_window_extent()) for axes in picture.axes)
        assert box.y0 >= 0


def test_a_panel_is_drawn_alone_in_given_axes_or_as_wide_as_a_column(flowing):
    result, (left, right) = result_for(flowing, FLOW), Figure().subplots(1, 2)
    result.plot.angles(flowing, ax=left, panel="offset")
    assert left.get_ylabel() == "offset"
    assert left.figure.axes == [left, right]
    alone = result.plot.angles(flowing, panel="offset")
    assert (alone.get_figwidth(), list(alone.tables)) == (draw.COLUMN, ["offset"])
    with pytest.raises(OptionError, match="did you mean"):
        result.plot.angles(flowing, panel="ofset")


def test_a_rate_that_may_be_zero_has_a_linear_axis(flowing):
    for error, scale in ((0.05, "log"), (2.0, "linear")):
        theta = FLOW * [1, 3, 0, 1, 1, 1, 1]
        known = np.diag((error * np.abs(theta) + 1e-12) ** 2)
        view = FitView(result_for(flowing, theta, naive=known), flowing)
        assert plots.draw_rates(view).axes[0].get_yscale() == scale
    t = np.linspace(1.0, 100.0, 50)
    edges = [f"J_{end}_{band}" for end in ("low", "high") for band in BANDS]
    for power, scale in ((-2.0, "log"), (2.0, "linear")):  # of a rate without a formula
        columns = dict.fromkeys(("J", "J_power_law", *edges), ("t", t**power))
        _fitted_rate(
            axis := Figure().subplots(), xarray.Dataset(columns, {"t": t}), "J", ("J", ""), None
        )
        assert axis.get_yscale() == scale


def test_figures_for_print_keep_their_text(flowing, tmp_path):
    picture = draw_angles(FitView(result_for(flowing, FLOW), flowing))
    assert draw.vector_of(picture, "pdf").startswith(b"%PDF")
    assert "decay time [s]" in draw.vector_of(picture, "svg").decode()


def test_repeats_at_one_angle_are_drawn_against_their_number(tmp_path, monkeypatch):
    scan = scan_of(tmp_path, CREEP, phi=[3.0, 3.0, 3.0])
    view = FitView(result_for(scan, CREEP), scan)
    monkeypatch.setattr(type(scan), "has_repeats", True)
    monkeypatch.setattr(type(scan), "scan_number", np.array([1, 2, 3]))
    picture = draw_angles(view)
    assert {axes.get_xlabel() for axes in picture.axes} == {"scan"}
    assert picture.tables["contrast"]["scan"].tolist() == [1, 2, 3]
    assert all(tick == round(tick) for tick in picture.axes[0].get_xticks())


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("--pictures A", "png"),
        ("A --pictures", "png"),
        ("--pictures pdf A", "pdf"),
        ("--no-pictures A", "none"),
    ],
)
def test_pictures_may_have_a_format_after_them(words, wanted):
    params = [click.Option(["--pictures"]), click.Argument(["store"])]
    made = PicturesCommand("fit", params=params, callback=lambda **given: given)
    assert made.main(words.split(), standalone_mode=False) == {"pictures": wanted, "store": "A"}


def test_an_influence_that_is_unknown_or_on_coefficients_of_a_rate_is_not_drawn(diffusing):
    for influence in (None, influence_of_bins(diffusing, ["D0"])):  # the change of the last is NaN
        result = changed(result_for(diffusing, CREEP), influence=influence)
        with pytest.raises(OptionError, match="does not contain the influence of bins"):
            plots.draw_influence(FitView(result, diffusing))
    result = changed(
        result_for(diffusing, CREEP),
        influence=influence_of_bins(diffusing, ["J_1", "J_2", "a", "b"]),
    )
    assert influential(result).tolist() == [True, True, True, False]
    config = {**result.config, "splines": {"J": {"size": 2}}}
    result = replace(result, provenance=replace(result.provenance, config=config))
    assert influential(result).tolist() == [False, False, True, False]


def test_simulated_rings_have_q_from_half_to_twice_that_of_the_scenario(tmp_path):
    made = hd.simulate(tmp_path / "R.h5", "brownian", angles=2, frames=20, rings=3)
    scan = hd.open_dataset(hd.ingest(tmp_path / "R.h5").store)
    np.testing.assert_allclose(scan.q / made.q, [0.5, 0.5, 1, 1, 2, 2])
    assert scan.phi[0::2].tolist() == [scan.phi[0]] * 3
