"""What the page of `view` shows, computed without a browser, and the command that serves it."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import bokeh.document
import h5py
import numpy as np
import pytest

import ingest
from homodyne_dask.apps.view import data_window as window
from homodyne_dask.apps.view.data_window import Tiles, cell_axes, whole_span, window_means
from homodyne_dask.apps.view.latest_request import Stale
from homodyne_dask.apps.view.maps_and_cuts import data_map, with_model
from homodyne_dask.apps.view.model_values import quadrature
from homodyne_dask.apps.view.view_figures import evenly
from homodyne_dask.apps.view.view_page import ViewPage
from homodyne_dask.apps.view.viewed_data import choices_of, matching_bins, open_shown, viewed
from homodyne_dask.errors import OptionError, SelectionError, StoreError
from homodyne_dask.store.scan import Chunk, Scan
from tests.html_pages import NASTY
from tests.ingest_files import simulated
from tests.results.made_results import changed, flow_result_of
from tests.synthetic import FLOW, angles, measured, store, without_some


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    """Four chunks of 600 frames, of which a tenth of the pairs and one frame are unknown."""
    made = without_some(measured(FLOW, 600, angles(2), dt=0.1))
    return store(made, tmp_path_factory.mktemp("seen"), "A0001_c2")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A scan of 150 frames without unknown pairs, and a fit of most of it."""
    scan = store(measured(FLOW, 150, angles(2), dt=0.1), tmp_path_factory.mktemp("small"))
    some = scan.select(frames=(10, 150))
    return scan, flow_result_of(some)


def whole(scan: Scan, bin: int) -> np.ndarray:
    """The whole symmetric matrix of used frames."""
    half = scan.dataset["c2"].values[bin]
    square = np.where(np.isnan(half), half.T, half)
    square[~scan.frame_mask], square[:, ~scan.frame_mask] = np.nan, np.nan
    return square


def nobody() -> None:
    """Nothing is stale."""


@pytest.mark.parametrize(
    ("x", "y"),
    [((0.0, 9.9), (0.0, 9.9)), ((3.0, 8.0), (40.0, 44.0)), ((50.0, 59.9), (1.0, 2.0)),
     ((45.0, 60.0), (48.0, 58.0))],
    ids=["the beginning", "above the diagonal", "below it", "across chunks"],
)  # fmt: skip
def test_a_window_shows_the_pairs_of_the_symmetric_matrix(scan, x, y):
    columns, rows = cell_axes(scan, x, y)
    assert (rows.side, rows.level) == (1, 1)
    found = window_means(scan, Tiles(), 1, rows, columns, nobody)
    expected = whole(scan, 1)[np.ix_(rows.cells, columns.cells)]
    np.testing.assert_allclose(found.c2, expected, rtol=1e-6)
    assert np.array_equal(found.pairs, np.isfinite(expected))


@pytest.mark.parametrize(("most", "side", "level"), [(80, 2, 1), (40, 4, 4), (20, 8, 4)])
def test_a_wide_window_shows_means_over_cells(small, monkeypatch, most, side, level):
    scan, _ = small
    monkeypatch.setattr(window, "MAX_CELLS", most)
    columns, rows = cell_axes(scan, whole_span(scan), whole_span(scan))
    assert (rows.side, rows.level) == (side, level)
    found = window_means(scan, Tiles(), 0, rows, columns, nobody)
    square = whole(scan, 0)
    for i, j in ((0, 1), (5, 3), (2, rows.number - 3)):
        cell = square[i * side : (i + 1) * side, j * side : (j + 1) * side]
        assert found.c2[i, j] == pytest.approx(cell.mean(), rel=1e-6)
        assert found.pairs[i, j] == side**2
    assert np.isnan(np.diag(found.c2)).all()


def test_only_the_chunks_in_a_window_are_read_and_each_once(scan, monkeypatch):
    read: list[Chunk] = []
    inner = Scan.read_chunk
    monkeypatch.setattr(
        Scan, "read_chunk", lambda self, chunk, into: (read.append(chunk), inner(self, chunk, into))
    )
    tiles = Tiles()
    for x, y in (((1.0, 5.0), (1.0, 6.0)), ((55.0, 59.0), (2.0, 9.0)), ((2.0, 9.0), (55.0, 59.0))):
        columns, rows = cell_axes(scan, x, y)
        window_means(scan, tiles, 0, rows, columns, nobody)
    assert read == [Chunk(1, 0, 0, 0), Chunk(1, 0, 0, 1)]


def test_what_nobody_waits_for_is_not_read(scan):
    def stale() -> None:
        raise Stale

    columns, rows = cell_axes(scan, (0.0, 9.0), (0.0, 9.0))
    with pytest.raises(Stale):
        window_means(scan, Tiles(), 0, rows, columns, stale)


@pytest.mark.parametrize("side", [1, 2, 3, 4, 16, 33])
def test_the_mean_over_a_cell_is_exact_to_the_degree_of_its_nodes(side):
    nodes, weights = quadrature(side)
    frames = np.arange(side) - (side - 1) / 2
    for degree in range(6):
        exact = np.mean(frames**degree)
        assert weights @ nodes**degree == pytest.approx(exact, abs=1e-12 * side**degree)


@pytest.mark.parametrize("most", [320, 30])
def test_model_and_residual_are_those_of_the_fit(small, monkeypatch, most):
    monkeypatch.setattr(window, "MAX_CELLS", most)
    _, fitted = small
    (one,) = open_shown([fitted])
    maps, sigma = data_map(one, 1, (2.0, 8.0), (4.0, 12.0), nobody)
    maps = with_model(one, 1, maps, sigma)
    side, i, j = maps.rows.side, maps.rows.cells, maps.columns.cells
    first = 10  # of the frames that were fitted
    model = fitted.model(one.scan).values[1]

    def mean(of: np.ndarray, row: int, column: int) -> float:
        block = np.s_[
            row * side - first : (row + 1) * side - first,
            column * side - first : (column + 1) * side - first,
        ]
        return of[block].mean()

    for r, c in ((3, 4), (len(i) - 2, 2)):
        assert maps.model[r, c] == pytest.approx(mean(model, i[r], j[c]), abs=1e-5)
        residual = (maps.data[r, c] - maps.model[r, c]) / (0.02 / side)
        assert maps.residual[r, c] == pytest.approx(residual, rel=1e-3)
    assert np.isnan(maps.model[i[:, None] == j]).all()
    assert np.nanstd(maps.residual) == pytest.approx(1.0, abs=0.1)


def test_bins_of_other_stores_belong_together_by_q_and_angle(scan, tmp_path):
    other = store(measured(FLOW, 40, [45.0, 0.4, 180.0], dt=0.1), tmp_path)
    assert scan.phi.tolist() == [-90.0, 0.0]
    assert other.phi.tolist() == [45.0, 0.4, 180.0]
    assert matching_bins(scan, other).tolist() == [-1, 1]
    assert matching_bins(other, scan).tolist() == [-1, 1, -1]
    nameless = [
        replace(one, all_bins=one.all_bins | {"q": one.q * np.nan}) for one in (scan, other)
    ]
    assert matching_bins(*nameless).tolist() == [0, 1]  # labels 1 and 2
    assert matching_bins(scan, scan.select(label=int(scan.label[1]))).tolist() == [-1, 0]


def test_what_cannot_be_shown_is_said(small, scan, tmp_path):
    with pytest.raises(OptionError, match="1 to 6 stores and results, but 7 were given"):
        open_shown([scan] * 7)
    with pytest.raises(OptionError, match="or the path of a store or of the folder of a fit"):
        open_shown([3])
    with pytest.raises(StoreError, match="does not exist"):
        open_shown([tmp_path / "nothing"])
    (tmp_path / "A_fit").mkdir()
    (tmp_path / "A_fit" / "summary.json").touch()
    with pytest.raises(OptionError, match=r"only argument, or name up to 6 .*/A_fit"):
        choices_of([tmp_path, scan])


def test_a_window_beyond_the_frames_is_said_to_be(scan):
    for x in ((60.0, 70.0), (-5.0, -0.1)):
        with pytest.raises(SelectionError, match="there are no frames from"):
            cell_axes(scan, x, (1.0, 2.0))
    columns, rows = cell_axes(scan, (59.88, 80.0), (-3.0, 0.04))
    assert (columns.first, columns.number) == (599, 1)
    assert (rows.first, rows.number) == (0, 1)


def test_uneven_frames_are_drawn_where_they_are(tmp_path):
    time = np.append(np.arange(20) * 0.1, 2.0 + np.arange(20) * 0.4)
    scan = store(measured(FLOW, time=time), tmp_path)
    _, rows = cell_axes(scan, whole_span(scan), whole_span(scan))
    drawn = evenly(scan, rows)
    pixels = np.linspace(*rows.ends(scan), len(drawn), endpoint=False)
    assert np.array_equal(np.unique(drawn), np.arange(40))
    assert np.abs(time[drawn] - pixels).max() < 0.4


def test_rates_are_those_of_the_result_with_bands(small):
    scan, fitted = small
    bound = fitted.parameters["at_bound"].copy(data=fitted.parameters["param"].values == "alpha")
    covariance = fitted.errors.covariance.copy(deep=True)
    covariance.values[bound.values] = covariance.values[:, bound.values] = np.nan
    fitted = replace(
        fitted,
        parameters=fitted.parameters.assign(at_bound=bound),
        errors=replace(fitted.errors, covariance=covariance),
    )
    content = viewed([scan, fitted])
    expected, found = fitted.rates, content.rates[0]
    assert list(found) == ["J", "gamma_dot"]
    for name, line in found.items():
        np.testing.assert_array_equal(line.value, expected[name])
        np.testing.assert_array_equal(line.bands[1][0], expected[f"{name}_low_95"])
    assert content.notes == (f"{content.shown[0].name}: {expected.attrs['notes']}",)


@pytest.fixture
def series(small, tmp_path):
    """A folder with fits of two windows of frames."""
    for n, frames in enumerate([(10, 90), (60, 150)]):
        (tmp_path / f"age_{n}").mkdir()
        fit = flow_result_of(small[0].select(frames=frames))
        fit.to_json(tmp_path / f"age_{n}" / "summary.json")
    return tmp_path


@pytest.fixture
def page_of_series(series):
    choices = choices_of([series])
    with ThreadPoolExecutor(1) as pool:
        yield ViewPage(viewed(choices["age_0"]), pool, True, choices)


def test_another_fit_of_a_series_is_shown_at_the_same_bin_and_in_the_same_range(page_of_series):
    page = page_of_series
    page.bins.selected.indices = [1]
    page.x.update(start=7.0, end=8.5)
    page._choose(1)
    assert page.viewed.title == "age_1"
    assert page.bin == 1
    assert (page.x.start, page.x.end) == (7.0, 8.5)
    assert (page.y.start, page.y.end) == pytest.approx(
        (5.95, 14.95), abs=0.06
    )  # all of it, as before


def test_a_fit_of_a_series_that_cannot_be_opened_leaves_the_page_as_it_is(page_of_series, series):
    (series / "age_1" / "summary.json").write_text("{")
    page_of_series._choose(1)
    assert page_of_series.viewed.title == "age_0"
    assert "summary.json" in page_of_series.status.text


def test_the_page_shows_the_parameters_and_how_the_fit_ended(page_of_series):
    (table,) = page_of_series.layout.select({"name": "fit-0"})
    assert page_of_series.viewed.shown[0].result.verdict in table.text
    assert "<td>phi0</td><td>5.000 ± 0.0" in table.text


def test_colours_that_are_given_are_those_of_the_maps(page_of_series):
    page = page_of_series
    page.limits[0].value, page.limits[2].value = 1.05, 8.0
    (one,) = page.viewed.shown
    maps, sigma = data_map(one, 0, (2.0, 4.0), (4.0, 8.0), nobody)
    page._show_maps(0, with_model(one, 0, maps, sigma), ("data", "residual"))
    colours = page.rows[0].colours
    assert colours["data"].low == 1.05
    assert colours["data"].high == pytest.approx(np.nanquantile(maps.data, 0.99))
    assert (colours["residual"].low, colours["residual"].high) == (-8.0, 8.0)


def test_axes_of_cuts_are_logarithmic_as_chosen(page_of_series):
    page = page_of_series
    page.log.active = [1]
    scales = [type(cut.figure.x_scale).__name__ for cut in (page.along_lag, page.along_age)]
    assert scales == ["LinearScale", "LogScale"]
    assert page.along_age.figure.x_range.start > 0


def test_bins_without_a_counterpart_are_named(scan, tmp_path):
    other = store(measured(FLOW, 40, [45.0, 0.4, 180.0], dt=0.1), tmp_path)
    lacks, more = viewed([scan, other]).notes
    assert lacks.endswith(f"has no bin at q = 0.0054 Å⁻¹, φ = −90°, bin {scan.label[0]}")
    assert "lacks them: q = 0.0054 Å⁻¹, φ = 45°, bin 1; q = 0.0054 Å⁻¹, φ = 180°, bin 3" in more


def test_a_store_that_is_given_with_its_result_is_its_data(small):
    scan, fitted = small
    (one,) = open_shown([scan, fitted])
    assert one.result is fitted
    assert one.scan.frames == (10, 150)


def test_a_store_that_has_gone_may_be_given(small, tmp_path):
    moved = changed(
        small[1], inputs=small[1].provenance.inputs | {"store_path": str(tmp_path / "gone.zarr")}
    )
    with pytest.raises(StoreError, match="or give the current path of the store after the result"):
        open_shown([moved])
    (one,) = open_shown([moved, small[0].path])
    assert one.result is moved


def test_a_model_that_is_not_known_here_leaves_the_data(small):
    _, fitted = small
    strange = changed(fitted, config=fitted.config | {"model": "strange", "model_digest": "0"})
    content = viewed([changed(strange, definition=None)])
    assert "the fitted model 'strange' is unknown in this process" in content.notes[0]
    assert content.rates == [{}]


def test_names_of_files_are_text_on_the_page(small, tmp_path):
    hostile = tmp_path / "<img src=x onerror=alert(1)>$$x$$_c2.zarr"
    hostile.symlink_to(small[0].path)
    with ThreadPoolExecutor(1) as pool:
        page = ViewPage(viewed([hostile]), pool, keys=True)
        document = bokeh.document.Document()
        page.show_in(document)
        page.latest.close()
    page._say([NASTY])
    page._clear(0, ("data",))
    assert (
        page.status.text
        == "<p>&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt; &amp; &#39; &#34;</p>"
    )
    (named,) = document.select({"name": "row-0"})
    assert named.text == hostile.name.replace("$$", "$ $")
    assert document.title == hostile.name


def test_intensity_is_shown_against_time_and_averaged_over_frames(tmp_path):
    path = simulated(tmp_path / "A.hdf", n=40)
    with h5py.File(path, "r+") as file:
        file["/xpcs/spatial_mean/intensity_vs_time"][1, 5:8] = 0.0
    page = ViewPage(viewed([ingest.ingest(path).store]), ThreadPoolExecutor(1), False)
    curve, image = page.cuts.children[-2:]
    assert (curve.name, image.name) == ("intensity", "mean-image-0")
    assert curve.x_range is page.x
    assert "masked" in curve.above[0].text
    masked = curve.select_one({"name": "masked-0"}).data_source.data
    np.testing.assert_allclose(masked["x"], [0.5, 0.6, 0.7])


def test_without_intensity_no_figure_of_it_is_shown(small):
    scan, _ = small
    page = ViewPage(viewed([scan]), ThreadPoolExecutor(1), False)
    assert [one.name for one in page.cuts.children] == ["along-lag", "along-age"]
