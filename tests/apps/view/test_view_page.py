"""What the page of `view` shows, computed without a browser, and the command that serves it."""

import asyncio
import re
import shutil
import signal
from dataclasses import replace
from types import SimpleNamespace
from urllib.error import HTTPError
from urllib.request import urlopen

import bokeh.document
import numpy as np
import pytest
from bokeh.models import Div
from tornado.httpclient import AsyncHTTPClient

import homodyne_dask as hd
from homodyne_dask.apps.view.view_page import ViewPage, evenly
from homodyne_dask.apps.view.view_server import leading_file
from homodyne_dask.apps.view.viewed_data import open_shown, sources_of
from homodyne_dask.errors import OptionError, SelectionError, StoreError
from homodyne_dask.results.data import c2_means as window
from homodyne_dask.results.data.c2_means import (
    cell_axes,
    quadrature,
    read_window,
    tile_reader,
    whole_span,
)
from homodyne_dask.store.scan import Chunk, Scan
from tests.html_pages import LARGE, NASTY, answer_to
from tests.results.made_results import changed, flow_result_of
from tests.run_command import run, viewing
from tests.synthetic import FLOW, angles, measured, module_scan, store, without_some

scan = module_scan(lambda: without_some(measured(FLOW, 600, angles(2), dt=0.1)), "A0001_c2")
"""Four chunks of 600 frames, of which a tenth of the pairs and one frame are unknown."""


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A scan of 150 frames without unknown pairs, and a fit of most of it."""
    scan = store(measured(FLOW, 150, angles(2), dt=0.1), tmp_path_factory.mktemp("small"))
    some = scan.select(frames=(10, 150))
    return scan, flow_result_of(some)


def whole(scan: Scan, bin: int) -> np.ndarray:
    half = scan.dataset["c2"].values[bin]
    square = np.where(np.isnan(half), half.T, half)
    square[~scan.frame_mask], square[:, ~scan.frame_mask] = np.nan, np.nan
    return square


def opened(scan: Scan, x, y):
    columns, rows = cell_axes(scan, x, y)
    return read_window(scan, tile_reader(scan), 1, rows, columns), rows, columns


@pytest.mark.parametrize(
    ("x", "y", "most", "side", "level"),
    [
        ((0.0, 9.9), (0.0, 9.9), 320, 1, 1),
        ((3.0, 8.0), (40.0, 44.0), 320, 1, 1),
        ((50.0, 59.9), (1.0, 2.0), 320, 1, 1),
        ((45.0, 60.0), (48.0, 58.0), 320, 1, 1),
        ((0.0, 60.0), (0.0, 60.0), 320, 2, 1),
        ((5.0, 59.9), (30.0, 59.9), 300, 2, 1),
        ((5.0, 59.9), (30.0, 59.9), 200, 4, 4),
        ((0.0, 60.0), (0.0, 60.0), 80, 8, 4),
    ],
    ids=["the beginning", "above the diagonal", "below it", "across chunks", "the whole as pairs of frames",
         "cells of several chunks", "a level", "cells of a level"],
)  # fmt: skip
def test_a_window_shows_means_over_cells_of_the_symmetric_matrix(
    scan, monkeypatch, x, y, most, side, level
):
    monkeypatch.setattr(window, "MAX_CELLS", most)
    seen, rows, columns = opened(scan, x, y)
    assert (rows.side, rows.level) == (side, level)
    inside = [slice(a.first * side, (a.first + a.number) * side) for a in (rows, columns)]
    square = np.pad(whole(scan, 1), (0, side), constant_values=np.nan)
    blocks = square[*inside].reshape(rows.number, side, columns.number, side).swapaxes(1, 2)
    known = np.isfinite(blocks).sum((2, 3))
    apart = rows.cells[:, None] != columns.cells
    assert np.array_equal(seen.lags > 0, apart)
    there = np.isfinite(seen.c2)
    assert not there[~apart].any()
    assert (seen.pairs[there] >= side**2 / 2).all()
    if level == 1:
        assert np.array_equal(seen.pairs[apart], known[apart])
        assert np.array_equal(there, (known >= side**2 / 2) & apart)
    # a mean of means of unequally many pairs differs from that of all pairs
    means, tolerance = np.nanmean(blocks[there], axis=(1, 2)), {1: 1e-6}.get(level, 0.02)
    np.testing.assert_allclose(seen.c2[there], means, rtol=tolerance)


def test_only_the_chunks_in_a_window_are_read_and_each_once(scan, monkeypatch):
    read: list[Chunk] = []
    inner = Scan.read_chunk
    monkeypatch.setattr(
        Scan, "read_chunk", lambda self, chunk, into: (read.append(chunk), inner(self, chunk, into))
    )
    read_tile = tile_reader(scan)
    for x, y in (((1.0, 5.0), (1.0, 6.0)), ((55.0, 59.0), (2.0, 9.0)), ((2.0, 9.0), (55.0, 59.0))):
        columns, rows = cell_axes(scan, x, y)
        read_window(scan, read_tile, 0, rows, columns)
    assert read == [Chunk(1, 0, 0, 0), Chunk(1, 0, 0, 1)]


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
    one = open_shown(fitted)
    seen, rows, columns = opened(one.scan, (2.0, 8.0), (4.0, 12.0))
    shown, residuals = one.fit.model_of(1, seen)
    side, i, j = rows.side, rows.cells, columns.cells
    model = fitted.model(one.scan).values[1]
    for r, c in ((3, 4), (len(i) - 2, 2)):
        first, other = i[r] * side - 10, j[c] * side - 10  # of the frames that were fitted
        block = model[first : first + side, other : other + side]
        assert shown[r, c] == pytest.approx(block.mean(), abs=1e-5)
        residual = (seen.c2[r, c] - shown[r, c]) / (0.02 / side)
        assert residuals[r, c] == pytest.approx(residual, rel=1e-3)
    assert np.isnan(shown[i[:, None] == j]).all()
    assert np.nanstd(residuals) == pytest.approx(1.0, abs=0.1)


def test_the_cut_is_at_the_age_of_the_click_and_the_model_goes_through_it(small):
    scan, fitted = small
    shown = open_shown(fitted)
    cut = shown.at_age(1, 3.0)
    assert 0 <= (3.0 - cut.t1[0]) < 1.0
    square = whole(scan, 1)
    edges = shown.cuts.age_edges
    first, stop = edges[np.searchsorted(edges, 30, side="right") - 1 :][:2]
    assert cut.c2[0] == pytest.approx(np.mean([square[t, t + 1] for t in range(first, stop)]))
    x, c2 = shown.fit.curve(1, cut)
    away = (cut.c2 - np.interp(cut.lag, x, c2)) / cut.stderr
    assert np.sqrt(np.mean(away**2)) < 1.5
    assert not len(shown.at_age(1, 14.99).lag)


def test_what_cannot_be_shown_is_said(small, tmp_path):
    with pytest.raises(OptionError, match="a fit is shown with the pairs it used"):
        sources_of([small[1]], {"frames": [(0, 2)]})
    assert sources_of([small[1]], {"frames": None})
    with pytest.raises(OptionError, match="there is nothing to view"):
        sources_of([])
    with pytest.raises(OptionError, match="or the path of a store, of a fit"):
        sources_of([3])
    with pytest.raises(StoreError, match="does not exist"):
        sources_of([tmp_path / "nothing"])


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
    pixels = np.linspace(*rows.edges(scan)[[0, -1]], len(drawn), endpoint=False)
    assert np.array_equal(np.unique(drawn), np.arange(40))
    assert np.abs(time[drawn] - pixels).max() < 0.4


@pytest.fixture
def series(small, tmp_path):
    for n, frames in enumerate([(10, 90), (60, 150)]):
        (tmp_path / f"age_{n}").mkdir()
        fit = flow_result_of(small[0].select(frames=frames))
        fit.to_json(tmp_path / f"age_{n}" / "summary.json")
    return tmp_path


def test_another_fit_of_a_series_is_shown_at_the_same_bin_and_in_the_same_range(series):
    page = ViewPage(sources_of([series]))
    assert [name for _, name in page.choice.options] == ["age_0", "age_1"]
    page.bins.value = "1"
    page.axes[0].update(start=7.0, end=8.5)
    page.choice.value = "1"
    assert page.shown.scan.frames == (60, 150)
    assert page.bins.value == "1"
    # the other axis shows all, as before
    assert [(axis.start, axis.end) for axis in page.axes] == [(7.0, 8.5), page.axes[1].bounds]


def test_a_fit_of_a_series_that_cannot_be_opened_leaves_the_page_as_it_is(series):
    page = ViewPage(sources_of([series]))
    (series / "age_1" / "summary.json").write_text("{")
    page.choice.value = "1"
    assert page.shown.scan.frames == (10, 90)
    assert "summary.json" in page.status.text


def test_the_page_of_a_fit_has_maps_cuts_and_its_report(small):
    page = ViewPage([small[1]])
    page.update()
    (report,) = page.layout.select({"name": "fit"})
    assert small[1].verdict in report.text
    for part in ("data", "model", "residual"):
        (image,) = page.cells.data[part]
        assert np.isfinite(image).sum() == 140 * 139
    ends = {name: (colours.low, colours.high) for name, colours in page.colours.items()}
    c2 = page.cells.data["data"][0]
    assert ends["data"] == ends["model"] == pytest.approx(np.nanquantile(c2, (0.01, 0.99)))
    assert -ends["residual"][0] == ends["residual"][1] >= 3
    assert len(page.curve.data["x"])
    assert page.status.text == ""
    assert page.maps["data"].title.text == "data: single pairs"


def test_a_click_moves_the_cut(small):
    page = ViewPage([small[0]])
    page._tapped(SimpleNamespace(x=9.0, y=4.0))
    page.update()
    assert page.cut.title.text == "at age t₁ = 4 s"
    assert page.mark.location == 4.0


def test_a_damaged_chunk_is_said_and_clears_maps_and_cut(small, monkeypatch):
    def damaged(*_) -> None:
        raise StoreError("chunk (0, 0) is damaged")

    page = ViewPage([small[1]])
    page.update()
    page.shown = replace(page.shown)  # nothing is kept decoded
    monkeypatch.setattr(Scan, "read_chunk", damaged)
    page.update()
    assert "is damaged" in page.status.text
    assert page.cells.data.keys() == {"data", "model", "residual", "x", "y", "dw", "dh"}
    for source in (page.cells, page.averages, page.curve):
        assert not any(len(column) for column in source.data.values())


def test_the_store_of_a_result_may_have_moved(small, tmp_path):
    scan, fitted = small
    moved = changed(
        fitted, inputs=fitted.provenance.inputs | {"store_path": str(tmp_path / "gone.zarr")}
    )
    with pytest.raises(StoreError, match="or give the current path of the store after the result"):
        open_shown(moved)
    one = open_shown(moved, sources_of([moved, scan.path]))
    assert one.scan.frames == (10, 150)


def test_a_model_that_is_not_known_here_leaves_the_data(small):
    _, fitted = small
    strange = changed(fitted, config=fitted.config | {"model": "strange", "model_digest": "0"})
    page = ViewPage([changed(strange, definition=None)])
    page.update()
    assert "the fitted model &#39;strange&#39; is unknown in this process" in page.status.text
    finite = {part: np.isfinite(page.cells.data[part]).any() for part in page.maps}
    assert finite == {"data": True, "model": False, "residual": False}
    assert len(page.averages.data["x"])
    assert not len(page.curve.data["x"])


def test_names_of_files_are_text_on_the_page(small, tmp_path):
    hostile = tmp_path / "<img src=x onerror=alert(1)>$$x$$_c2.zarr"
    shutil.copytree(small[0].path, hostile)
    page = ViewPage(sources_of([hostile]))
    document = bokeh.document.Document()
    page.show_in(document)
    page._say(NASTY)
    assert (
        page.status.text
        == "<p>&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt; &amp; &#39; &#34;</p>"
    )
    assert all(div.disable_math for div in page.layout.select({"type": Div}) if div.name)
    assert document.title == hostile.name


one_bin = module_scan(lambda: measured([2500.0, -0.3, 100.0], 40), "A0001_c2")
"""Of 40 frames."""


@pytest.fixture
def served(one_bin):
    with viewing(one_bin.path) as served:
        yield served


@pytest.mark.long
def test_the_command_serves_who_has_the_address_until_ctrl_c(served):
    program, address = served
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{24}", address)
    with urlopen(address) as answer:
        assert b"Bokeh" in answer.read()
    beginning = address.rpartition("/")[0]
    for path in ("", "/", "/ws", "/x" * 12, f"/{'x' * 24}", f"/{'x' * 24}/autoload.js"):
        with pytest.raises(HTTPError, match="404"):
            urlopen(beginning + path)
    taken = run("view", served[0].args[-2], "--no-browser", "--port", beginning.rpartition(":")[2])
    assert taken.exit_code == 2
    assert "cannot be used (Address already in use): give another --port" in taken.stderr
    program.send_signal(signal.SIGINT)
    assert program.wait(10) == 0
    assert program.communicate() == ("", "")


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("how", LARGE)
def test_a_large_body_is_refused_before_it_is_there(served, how):
    _, address = served
    port = int(address.split(":")[2].partition("/")[0])
    for path in ("/", f"/{address.rpartition('/')[2]}"):
        assert answer_to(port, path, how) == b"HTTP/1.1 400 Bad Request"
    with urlopen(address) as answer:
        assert b"Bokeh" in answer.read()


def test_the_command_line_of_a_browser_does_not_hold_the_token(tmp_path):
    file = leading_file("http://127.0.0.1:5006/token", tmp_path)
    assert "token" not in file.relative_to(tmp_path).as_posix()
    assert 'content="0; url=http://127.0.0.1:5006/token"' in file.read_text()


def test_in_a_notebook_the_page_is_the_output_of_the_cell(one_bin, monkeypatch):
    async def cell() -> tuple[str, bytes, str, str]:
        page = hd.view(one_bin)
        answer = await AsyncHTTPClient().fetch(page.address)
        monkeypatch.delenv("JUPYTERHUB_SERVICE_PREFIX", raising=False)
        here = page._repr_html_()
        monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/me/")
        page.close()
        return page.address, answer.body, here, page._repr_html_()

    address, body, here, at_hub = asyncio.run(cell())
    assert b"A0001_c2.zarr" in body
    assert f'<iframe src="{address}"' in here
    port_and_token = address.removeprefix("http://127.0.0.1:")
    assert f'<iframe src="/user/me/proxy/{port_and_token}"' in at_hub
    # a proxy may serve the page below any path, so that no script is at an absolute one
    scripts = re.findall(rb'<script[^>]* src="([^"]+)"', body)
    assert scripts
    assert all(path.startswith(b"static/js/") for path in scripts)
