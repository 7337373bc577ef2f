"""Figures: each is drawn for every kind of fit, from the numbers of slow NumPy; pages, panels and tables."""

import shutil
from dataclasses import replace
from types import SimpleNamespace

import click
import numpy as np
import pytest
import xarray
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import homodyne_dask as hd
from homodyne_dask.cli.shared_options import PicturesCommand
from homodyne_dask.errors import OptionError, SelectionError, StoreError
from homodyne_dask.fitting.predict import predict
from homodyne_dask.models import LAMINAR_FLOW
from homodyne_dask.results.data.c2_means import CellAxis, Window, ages, cut_at_age
from homodyne_dask.results.data.fit_view import FitView, decay_times, fitted_scan, representative
from homodyne_dask.results.data.rate_curves import BANDS
from homodyne_dask.results.views import fit_figures as plots
from homodyne_dask.results.views import panels as draw
from homodyne_dask.results.views.fit_figures import (
    _fitted_rate,
    at_one_lag,
    influential,
    lags_and_residuals,
    measured_decay_times,
    page_of_angles,
)
from homodyne_dask.results.views.panels import FitFigure, limits, png_of
from homodyne_dask.results.views.style import alternative, symbol
from tests import synthetic
from tests.results.made_results import (
    FIGURE_CASES,
    FLOW,
    by_speckle,
    changed,
    fit_of,
    influence_of_bins,
    result_for,
    scan_of,
)
from tests.results.views.figures.texts import check_places, texts_of
from tests.synthetic import CREEP

COARSE = (
    {"level": 16, "passes": 7, "candidates": 6, "seconds": 0.35},
    {"level": 4, "passes": 3, "candidates": 0, "seconds": 0.6},
)
RINGS = (
    {"theta": FLOW, "q": [0.004, 0.004, 0.006, 0.006], "phi": [-90.0, 0.0, 0.0, 90.0]},
    {"naive": np.diag((0.5 * FLOW) ** 2)},
)


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("case", [*FIGURE_CASES, "two rings, wide bands, coarse passes"])
@pytest.mark.parametrize("name", plots.PICTURES)
def test_a_picture_shows_something_and_no_text_is_cut_off_or_lies_on_another(name, case, tmp_path):
    given, found = FIGURE_CASES.get(case, RINGS)
    made = {**given, "theta": CREEP} if given.get("q") is np.nan else given
    scan = scan_of(tmp_path, **made)
    result = result_for(scan, given["theta"], **found)
    if case not in FIGURE_CASES:
        result = changed(result, history=(*COARSE, *result.run.history))
    view = FitView(result, scan)
    words = alternative(name, view)
    assert words.endswith(".")
    assert "nan" not in words
    picture = plots.PICTURES[name](view).figure()
    png_of(picture, {})
    canvas = FigureCanvasAgg(picture)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba()) / 255
    assert min(pixels.shape[:2]) > 300
    assert (pixels.std(axis=(0, 1))[:3] > 0.05).all()
    shown = [(text, box) for text, box in texts_of(picture) if text]
    assert len(shown) > 5
    check_places(shown, picture.bbox)


def test_contrast_and_offset_are_drawn_with_their_errors_and_never_naive_ones(flowing):
    result, stderr = result_for(flowing, FLOW), np.array([0.01, np.nan, 0.03])
    scaling = result.scaling.assign(
        {"contrast_stderr": ("bin", np.full(3, np.nan)), "contrast_stderr_naive": ("bin", stderr)}
        | {"offset_stderr": ("bin", stderr / 2), "offset_stderr_naive": ("bin", stderr / 9)}
    )
    picture = plots.page_of_angles(FitView(replace(result, scaling=scaling), flowing)).figure()
    assert picture.axes[0].get_title() == ""
    assert picture.axes[1].get_title() == "bars: standard errors (cluster-robust)"
    tables = picture.tables
    for name in ("contrast", "offset"):
        np.testing.assert_allclose(tables[name][name], scaling[name])
        np.testing.assert_allclose(tables[name]["φ [°]"], flowing.phi)
    assert "stderr" not in tables["contrast"]
    np.testing.assert_allclose(tables["offset"]["stderr"], stderr / 2)
    few = by_speckle(fit_of(flowing))
    axes = plots.page_of_angles(FitView(replace(few, scaling=scaling), flowing)).figure().axes
    assert axes[1].get_title() == "bars: standard errors (speckle)"


def test_the_decay_at_one_lag_is_the_mean_of_the_same_pairs_in_data_and_model(tmp_path):
    scan = scan_of(tmp_path, FLOW, n=128, phi=np.arange(-90.0, 90.0, 12.0), sigma=1e-7)
    view = FitView(result_for(scan, FLOW), scan)
    found = at_one_lag(view)
    assert np.ptp(found.f) > 0.2
    np.testing.assert_allclose(found.f, found.of_model(view.model), atol=2e-3)
    noisy = scan_of(tmp_path, FLOW, n=128, phi=np.arange(-90.0, 90.0, 12.0), dt=0.2)
    view = FitView(result_for(noisy, FLOW), noisy)
    again = at_one_lag(view)
    assert 0 < (again.f - again.of_model(view.model)).std() < 0.05


def test_measured_decay_times_scatter_about_a_smooth_line_of_the_model(tmp_path):
    scan = scan_of(tmp_path, FLOW, n=200, phi=np.arange(-80.0, 81.0, 20.0))
    view = FitView(result_for(scan, FLOW), scan)
    time, of_model = measured_decay_times(view), decay_times(view.model, scan)
    known = np.isfinite(time)
    assert known.sum() > 5
    np.testing.assert_allclose(time[known], of_model[known], rtol=0.1)
    lines = plots.page_of_angles(view).figure().axes[2].get_lines()
    line = next(line for line in lines if len(line.get_xdata()) > len(scan.bins))
    (here,) = np.flatnonzero(np.isclose(line.get_xdata(), 0.0))
    assert line.get_ydata()[here] == pytest.approx(of_model[scan.phi == 0.0][0])


def test_a_single_bin_has_no_picture_against_the_angle(diffusing, tmp_path, monkeypatch):
    drawn = {"angles": plots.page_of_angles, "passes": plots.page_of_passes}
    monkeypatch.setattr(plots, "PICTURES", drawn)
    for bins, wanted in (
        (diffusing, ["angles.png", "passes.png"]),
        (diffusing.select(label=2), ["passes.png"]),
    ):
        written = plots.save_all(FitView(result_for(bins, CREEP), bins), tmp_path)
        assert [path.name for path in written] == wanted


def test_bins_without_decay_or_pairs_and_values_that_are_not_numbers_leave_gaps(flowing):
    result = result_for(flowing, np.full(7, np.nan), history=())
    table = result.scaling
    for name, values in (("undetermined", [1, 0, 0]), ("ndata", [10, 0, 0])):
        table[name] = "bin", np.array(values, table[name].dtype)
    for name in ("contrast", "offset", "redchi"):
        table[name] = table[name].where([True, False, False])
    result = replace(result, scaling=table)
    for draw_picture in plots.PICTURES.values():
        draw_picture(FitView(result, flowing)).figure()


@pytest.mark.long
@pytest.mark.parametrize("name", plots.PICTURES)
def test_every_picture_is_drawn_in_the_place_of_axes(name, flowing):
    result = result_for(flowing, FLOW)
    alone = getattr(result.plot, name)(flowing)
    with pytest.raises(SelectionError, match="give the selection that was fitted"):
        getattr(result.plot, name)(flowing.select(label=2))
    whole = Figure(figsize=(24, 9))
    left, right = whole.subplots(1, 2)
    part = getattr(result.plot, name)(flowing, ax=left)
    assert len(part.axes) == len(alone.axes)
    assert whole.axes[-1] is not left
    assert right in whole.axes
    for one, other in zip(part.axes, alone.axes, strict=True):
        assert one.get_title() == other.get_title()
        low, high = whole.transFigure.inverted().transform(one.bbox.get_points())[:, 0]
        assert 0 <= low < high <= 0.5


def test_a_long_scan_is_read_from_block_means_of_the_store(tmp_path):
    n, side = 2057, 8
    rng = np.random.default_rng(5)
    scan = scan_of(tmp_path, CREEP, n=64)
    held = synthetic.Scans(
        CREEP, np.arange(n) * 0.1, scan.q[:1], scan.phi[:1], *([np.ones(1)] * 2), np.ones((1, n)),
        np.triu(rng.normal(1.0, 0.1, (1, n, n)).astype(np.float32), 1), "physical",
    )  # fmt: skip
    c2 = held.c2[0].copy()
    held.c2[:, np.tril(np.ones((n, n), bool))] = np.nan
    view = FitView(result_for(scan := synthetic.store(held, tmp_path, "long"), CREEP), scan)
    axis, drawn = view.axis, view.map_of(0)
    assert (axis.level, axis.merged, axis.number) == (4, 2, 257)
    block = c2[side * 5 : side * 6, side * 90 : side * 91]
    np.testing.assert_allclose(drawn.data[90, 5], block.mean(), rtol=1e-6)
    residual = (block.mean() - drawn.model[5, 90]) * side
    np.testing.assert_allclose(drawn.residual[5, 90], residual, rtol=1e-5)


@pytest.mark.parametrize("convention", ["physical", "homodyne"])
def test_the_model_of_a_picture_is_the_mean_of_the_prediction(convention, flowing):
    view = FitView(result_for(flowing, FLOW, convention=convention), flowing)
    full = predict(
        LAMINAR_FLOW, FLOW, flowing.time, q=flowing.q[1], phi=flowing.phi[1], gap=synthetic.GAP,
        convention=convention,
    )[0]  # fmt: skip
    rows, columns = CellAxis(1, 3, 0, 4), CellAxis(1, 3, 8, 10)
    means, _ = view.model_of(1, Window(rows, columns, *[np.ones((4, 10))] * 3))
    slow = full[:12, 24:54].reshape(4, 3, 10, 3).mean(axis=(1, 3))
    np.testing.assert_allclose((means - 1.0) / 0.2, slow, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("D0", "shown"), [(2e4, 90.0), (6e4, 9.15), (1e6, 4.0)])
def test_maps_of_a_record_of_many_decays_show_the_decays_in_its_middle(tmp_path, D0, shown):
    theta = np.array([D0, 0.0, 0.0])
    scan = scan_of(tmp_path, theta, n=900)
    view = FitView(result_for(scan, theta), scan)
    picture = plots.page_of_maps(view).figure()
    low, high = picture.axes[0].get_xlim()
    assert high - low == pytest.approx(shown, abs=0.3)
    assert (high + low) / 2 == pytest.approx(45.0, abs=0.3)
    is_part = "the middle of a record from -0.05 to 90 s" in picture.get_supxlabel()
    assert is_part == (shown < 90)
    assert view.axis.number * view.axis.side > 890  # files keep all of the record


@pytest.mark.parametrize("dt", [0.1, 1e-3, 0.3, 250.0])
def test_labels_of_maps_have_room_beside_ticks_of_any_width(tmp_path, dt):
    """The leftmost label was cut off beside ticks such as 0.04 and 10.0."""
    scan = scan_of(tmp_path, CREEP, n=40, dt=dt, phi=[0.0, 45.0])
    picture = plots.page_of_maps(FitView(result_for(scan, CREEP), scan)).figure()
    shown = [(text, box) for text, box in texts_of(picture) if text]
    assert sum(text == "t₂ [s]" for text, _ in shown) == 6
    check_places(shown, picture.bbox)


def test_a_panel_leaves_the_label_of_an_axis_to_one_like_it_alone():
    def panel(axes, scale):
        draw.label_axes(axes, "q [Å⁻¹]", "y", log="x" * (scale == "log"))

    scales = {"a": "log", "b": "linear", "c": "linear"}
    panels = {name: lambda axes, scale=scale: panel(axes, scale) for name, scale in scales.items()}
    axes = draw.Page(panels, 1, 1.6).figure().axes
    assert [panel.xaxis.label.get_visible() for panel in axes] == [True, False, True]


@pytest.mark.parametrize("known", [True, False])
def test_influence_is_said_in_units_of_the_error_that_is_known(diffusing, known):
    influence = influence_of_bins(diffusing, ["D0", "alpha", "D_offset"])
    table = {"stderr": 0.02 * CREEP} if known else {}
    result = changed(result_for(diffusing, CREEP, table=table), influence=influence)
    axes = plots.page_of_influence(FitView(result, diffusing)).figure().axes
    assert axes[0].get_ylabel() == ("change / stderr" if known else "change / naive error")


@pytest.mark.parametrize("low", [0.1, np.nan])
def test_a_distribution_without_bands_has_no_words_about_them(monkeypatch, low):
    rate = np.geomspace(0.1, 10, 9)
    ends = {
        f"{end}_{percent}": ("rate", np.full(9, low))
        for end in ("low", "high")
        for percent in (68, 95)
    }
    known = xarray.Dataset({"density": ("rate", np.full(9, 0.2)), **ends}, {"rate": rate})
    monkeypatch.setattr(plots.curves, "has_distribution", lambda _: True)
    monkeypatch.setattr(plots.curves, "distribution_in", lambda _: known)
    view = SimpleNamespace(result=None)
    assert ("bands" in plots.page_of_rates(view).words) == np.isfinite(low)


def test_maps_are_symmetric_with_a_blank_diagonal_and_residuals_in_units_of_sigma(tmp_path):
    scan = scan_of(tmp_path, FLOW, dead=[30])
    view = FitView(result_for(scan, FLOW), scan)
    drawn = view.map_of(0)
    for part in (drawn.data, drawn.model, drawn.residual):
        np.testing.assert_allclose(part, part.T, rtol=1e-12)
        assert np.isnan(np.diag(part)).all()
    assert np.isnan(drawn.data[30]).all()
    lag, residual = lags_and_residuals(view)
    assert len(lag) == len(residual) == 3 * 59 * 58 // 2
    assert lag.min() > 0
    assert residual.std() == pytest.approx(1, abs=0.05)


def test_the_decay_time_is_where_f_falls_to_one_over_e(tmp_path):
    theta = np.array([20000.0, 0.0, 0.0])
    scan = scan_of(tmp_path, theta, n=100)
    times = decay_times(FitView(result_for(scan, theta), scan).model, scan)
    np.testing.assert_allclose(times, 1 / (synthetic.Q**2 * 20000), rtol=1e-3)
    slow = decay_times(FitView(result_for(scan, theta * 0.01), scan).model, scan)
    assert np.isnan(slow).all()


def test_cuts_have_the_error_of_a_mean_of_their_pairs(tmp_path):
    scan = scan_of(tmp_path, CREEP, n=128, phi=[0.0])
    model, read = FitView(result_for(scan, CREEP), scan).model, scan.cuts()
    shown = ages(read, 0, scan)
    assert 3 <= len(shown) <= 5
    pulls = []
    for age in shown:
        cut = cut_at_age(scan, read, 0, age)
        assert (np.diff(cut.lag) > 0).all()
        wanted = 1 + 0.2 * model.shape(np.array([0]), cut.t1, cut.t1 + cut.lag)[0]
        pulls.append((cut.c2 - wanted) / cut.stderr)
    assert np.concatenate(pulls).std() == pytest.approx(1, abs=0.3)


def test_bins_shown_lie_along_the_flow_across_it_and_between(tmp_path):
    phi = np.arange(-90.0, 90.0, 10.0)
    scan = scan_of(tmp_path, FLOW, n=8, phi=phi)
    shown = representative(result_for(scan, FLOW), scan)
    assert (scan.phi[shown] - FLOW[6] + 90) % 180 - 90 == pytest.approx([-3, 27, 57, 87])
    static = representative(result_for(scan, CREEP), scan)
    assert scan.phi[static].tolist() == [-90, -30, 20, 80]


def test_the_band_of_a_nearly_constant_curve_is_seen():
    axis = FitFigure().subplots()
    limits(axis, np.array([8000.0, 8020.0]), np.array([7840.0, 8170.0]))
    low, high = axis.get_ylim()
    assert 7700 < low < 7840
    assert 8170 < high < 8300


@pytest.fixture
def fitted(tmp_path):
    """A scan and the fit of some of its bins, in another order, and frames."""
    scan = scan_of(tmp_path, CREEP, n=40).select(label=[3, 1], frames=(2, 38))
    known = {"D_offset": 1000.0, "alpha": -0.4}
    return scan, hd.fit(scan, hd.STATIC, initial={"D0": 20000.0}, fixed=known)


def test_a_figure_finds_the_bins_and_frames_of_its_fit_unless_the_store_is_gone(fitted, tmp_path):
    scan, result = fitted
    result.to_json(tmp_path / "fit.json")
    for one in (result, hd.load_result(tmp_path / "fit.json")):
        assert fitted_scan(one).selection == scan.selection
        drawn, wanted = ([a.get_title() for a in one.plot.cuts(of).axes] for of in (None, scan))
        assert drawn == wanted
    other = changed(result, inputs=result.provenance.inputs | {"store_sha256": "0" * 64})
    with pytest.raises(StoreError, match="has changed since the fit: fit again, or give the scan"):
        other.plot.maps()
    shutil.rmtree(scan.path)
    with pytest.raises(StoreError, match="does not exist"):
        result.plot.maps()


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
    picture = plots.PICTURES[name](FitView(result_for(flowing, FLOW), flowing)).figure()
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
        assert plots.page_of_rates(view).figure().axes[0].get_yscale() == scale
    t = np.linspace(1.0, 100.0, 50)
    edges = [f"J_{end}_{band}" for end in ("low", "high") for band in BANDS]
    for power, scale in ((-2.0, "log"), (2.0, "linear")):  # of a rate without a formula
        columns = dict.fromkeys(("J", "J_power_law", *edges), ("t", t**power))
        _fitted_rate(
            axis := Figure().subplots(), xarray.Dataset(columns, {"t": t}), "J", ("J", ""), None
        )
        assert axis.get_yscale() == scale


def test_figures_for_print_keep_their_text(flowing, tmp_path):
    picture = page_of_angles(FitView(result_for(flowing, FLOW), flowing)).figure()
    assert draw.vector_of(picture, "pdf").startswith(b"%PDF")
    assert "decay time [s]" in draw.vector_of(picture, "svg").decode()


def test_repeats_at_one_angle_are_drawn_against_their_number(tmp_path, monkeypatch):
    scan = scan_of(tmp_path, CREEP, phi=[3.0, 3.0, 3.0])
    view = FitView(result_for(scan, CREEP), scan)
    monkeypatch.setattr(type(scan), "has_repeats", True)
    vars(scan)["scan_number"] = np.array([1, 2, 3])
    picture = page_of_angles(view).figure()
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
            plots.page_of_influence(FitView(result, diffusing))
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


def test_a_figure_for_print_names_quantities_by_their_symbols():
    names = (
        "frozen_fraction",
        "gamma_dot_t0",
        "alpha",
        "Gamma_q0.004",
        "q_exponent",
        "D0 of scan 3",
    )
    symbols = ("frozen fraction F", "γ̇₀", "α", "Γ q0.004", "q exponent", "D₀ of scan 3")
    assert tuple(map(symbol, names)) == symbols
