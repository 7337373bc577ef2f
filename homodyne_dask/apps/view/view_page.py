"""The page: its figures, of Bokeh, and what happens when a bin, a window or a pair of times is chosen."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from bokeh import models
from bokeh.core.templates import FILE
from bokeh.document import Document
from bokeh.events import Tap
from bokeh.layouts import gridplot
from bokeh.palettes import Cividis256, RdBu11, interp_palette
from bokeh.plotting import figure
from jaxtyping import Float, Int
from markupsafe import escape

from homodyne_dask.apps.view.viewed_data import Shown, Source, name_of, open_shown
from homodyne_dask.document.blocks import as_fragment
from homodyne_dask.errors import HomodyneDaskError, printable
from homodyne_dask.results.data import c2_means as means
from homodyne_dask.results.views.report_content import report_of
from homodyne_dask.results.views.style import COLOURS, UNKNOWN_COLOUR, bin_name
from homodyne_dask.store.scan import Scan

SIDE = 400
"""Pixels along a side of a figure, until it grows with the window."""
TOOLS = "pan,wheel_zoom,box_zoom,reset,save"
TITLES = {"data": "data", "model": "model", "residual": "(data − model) / σ"}
CENTRAL = (0.01, 0.99)
"""Quantiles between which the colours of c2 lie."""
LEAST_REACH = 3.0
"""σ that the colours of residuals reach at least."""


def new_figure(name: str, x: str, y: str, **options: Any) -> Any:
    options |= {"name": name, "x_axis_label": x, "y_axis_label": y, "min_border_right": 20}
    options |= {"width": SIDE, "height": SIDE, "toolbar_location": "below"}
    fig: Any = figure(tools=TOOLS, active_scroll="wheel_zoom", **options)
    fig.toolbar.logo = None
    return fig


def new_source(name: str, *columns: str) -> models.ColumnDataSource:
    return models.ColumnDataSource({column: [] for column in columns}, name=name)


def new_map(image: str, cells: models.ColumnDataSource, colours: Any, axes: Any) -> Any:
    """Return a figure of the image that is the column of this name of the cells."""
    title, (x, y) = TITLES[image], axes
    fig = new_figure(f"{image}-map", "t₁ [s]", "t₂ [s]", x_range=x, y_range=y, title=title)
    fig.image(image, "x", "y", "dw", "dh", source=cells, color_mapper=colours, level="image")
    fig.add_layout(models.ColorBar(color_mapper=colours, width=12), "right")
    value_below_pointer = [("t₁, t₂ [s]", "$x, $y"), (title, f"@{image}{{0.0000}}")]
    fig.add_tools(models.HoverTool(tooltips=value_below_pointer))
    fig.grid.visible = False
    return fig


def columns_of(
    scan: Scan, window: means.Window, values: Mapping[str, Float[np.ndarray, "rows columns"]]
) -> dict[str, Any]:
    """Return the columns of the cells of a window: the images, and where all of them lie."""
    (x0, x1), (y0, y1) = (axis.edges(scan)[[0, -1]] for axis in (window.columns, window.rows))
    pixels = np.ix_(evenly(scan, window.rows), evenly(scan, window.columns))
    images = {name: [values[name].astype(np.float32)[pixels]] for name in values}
    return {**images, "x": [x0], "y": [y0], "dw": [x1 - x0], "dh": [y1 - y0]}


def evenly(scan: Scan, axis: means.CellAxis) -> Int[np.ndarray, " n"]:
    """Return the cells at equal steps of time, which an image has: all once where frames are even."""
    edges = axis.edges(scan)
    steps = np.diff(edges)
    if np.ptp(steps) < 1e-3 * steps.mean():
        return np.arange(axis.number)
    n = 4 * axis.number
    middles = edges[0] + (np.arange(n) + 0.5) / n * np.ptp(edges)
    return np.searchsorted(edges, middles, side="right") - 1


def set_colours(colours: models.LinearColorMapper, values: np.ndarray, around_0: bool) -> None:
    finite = values[np.isfinite(values)]
    if len(finite):
        low, high = (float(end) for end in np.quantile(finite, CENTRAL))
        if around_0:
            high = max(LEAST_REACH, high, -low)
            low = -high
        colours.update(low=low, high=high if high > low else low + 1)


def new_cut(averages: models.ColumnDataSource, curve: models.ColumnDataSource, scan: Scan) -> Any:
    """Return a figure of averages with errors, and of the model, against lag."""
    begin, end = means.whole_span(scan)
    lags = models.Range1d(start=0.8 * scan.attributes.frame_time, end=1.2 * (end - begin))
    fig = new_figure("cut", "lag t₂ − t₁ [s]", "c₂", x_axis_type="log", title="", x_range=lags)
    bars: dict[str, Any] = {"upper_head": None, "lower_head": None, "line_color": COLOURS[0]}
    fig.add_layout(models.Whisker(base="x", lower="low", upper="high", source=averages, **bars))
    fig.scatter("x", "c2", source=averages, size=6, color=COLOURS[0], fill_color="white")
    fig.line("x", "c2", source=curve, color=COLOURS[1], line_width=2)
    return fig


TEMPLATE = FILE.environment.from_string(
    """{% extends base %}
{% block js_resources %}{{ bokeh_js | replace('src="/static/', 'src="static/') }}{% endblock %}"""
)
"""Bokeh's own, with addresses of scripts relative to that of the page, which a proxy may serve elsewhere."""
PAUSE_MS = 40
"""Milliseconds in which further changes join the first: of a turn of the wheel, many come."""
HELP = "Wheel: zoom. Drag: move. Point: read a value. Click: choose the age t₁ of the cut."


class ViewPage:
    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = sources
        self.document: Document | None = None
        self.waiting = False
        self.status = models.Div(name="status", disable_math=True)
        names: Any = [(str(n), printable(name_of(source))) for n, source in enumerate(sources)]
        self.choice = models.Select(name="choice", title="shown", value="0", options=names)
        self.choice.on_change("value", lambda attr, old, new: self._choose(int(new)))
        self.bins = models.Select(name="bins", title="bin", value="0")
        self.bins.on_change("value", self._changed)
        contents = self._parts(open_shown(sources[0], sources))
        self.layout = models.Column(children=contents, sizing_mode="stretch_width")

    def show_in(self, document: Document) -> None:
        self.document = document
        document.title = printable(name_of(self.sources[0]))
        document.template = TEMPLATE
        document.add_root(self.layout)
        self.update()

    def _parts(self, shown: Shown) -> list[Any]:
        """Make the figures of a store or a result, and return all that is on the page."""
        self.shown, scan = shown, shown.scan
        self.bins.options = [(str(n), bin_name(scan, n)) for n in range(len(scan.bins))]
        self.bins.value = min(self.bins.value, self.bins.options[-1][0], key=int)
        begin, end = means.whole_span(scan)
        span = {"bounds": (begin, end), "reset_start": begin, "reset_end": end}
        span |= {"start": begin, "end": end, "min_interval": 3 * scan.attributes.frame_time}
        self.axes: Any = [models.Range1d(**span) for _ in "xy"]
        for axis in self.axes:
            axis.on_change("start", self._changed)
            axis.on_change("end", self._changed)
        self.cells = new_source("cells", *TITLES, "x", "y", "dw", "dh")
        self.averages = new_source("averages", "x", "c2", "low", "high")
        self.curve = new_source("curve", "x", "c2")
        c2, residual = (
            models.LinearColorMapper(palette=palette, low=-3, high=3, nan_color=UNKNOWN_COLOUR)
            for palette in (Cividis256, interp_palette(RdBu11, 256))
        )
        self.colours = {"data": c2, "model": c2, "residual": residual}
        names = ["data"] if shown.fit is None else [*TITLES]
        self.maps = {
            name: new_map(name, self.cells, self.colours[name], self.axes) for name in names
        }
        self.t1 = begin + 0.25 * (end - begin)
        self.mark = models.Span(dimension="height", line_color="black", line_dash="dotted")
        for fig in self.maps.values():
            fig.add_layout(self.mark)
            fig.on_event(Tap, self._tapped)
        self.cut = new_cut(self.averages, self.curve, scan)
        look: Any = {"sizing_mode": "scale_width", "toolbar_location": None, "merge_tools": False}
        grid = gridplot([*self.maps.values(), self.cut], ncols=max(len(self.maps), 2), **look)
        report = "" if shown.fit is None else as_fragment(report_of(shown.fit.result))
        fit = models.Div(text=report, name="fit", disable_math=True, sizing_mode="stretch_width")
        top = [self.choice, self.bins, models.Div(text=HELP, sizing_mode="stretch_width")]
        return [models.Row(children=top, sizing_mode="stretch_width"), self.status, grid, fit]

    def _choose(self, number: int) -> None:
        """Show another source, at the same bin and in the same ranges, where it has them."""
        try:
            shown = open_shown(self.sources[number], self.sources)
        except HomodyneDaskError as e:
            self._say(str(e))
            return
        axes_before, parts = self.axes, self._parts(shown)
        for axis, old in zip(self.axes, axes_before, strict=True):
            begin, end = max(axis.start, old.start), min(axis.end, old.end)
            if (old.start, old.end) != old.bounds and end - begin >= axis.min_interval:
                axis.update(start=begin, end=end)
        self.update()
        self.layout.children = parts

    def _tapped(self, event: Any) -> None:
        if event.x is not None and event.y is not None:
            self.t1 = min(float(event.x), float(event.y))
            self._changed("cut", None, None)

    def _changed(self, attr: str, old: object, new: object) -> None:
        """Update the page in a moment, once for all that changes until then."""
        if self.document is not None and not self.waiting:
            self.waiting = True
            self.document.add_timeout_callback(self.update, PAUSE_MS)

    def update(self) -> None:
        self.waiting = False
        self.mark.location = self.t1
        scan, bin = self.shown.scan, int(self.bins.value)
        try:
            columns, rows = means.cell_axes(scan, *((axis.start, axis.end) for axis in self.axes))
            window = means.read_window(scan, self.shown.read, bin, rows, columns)
            cut = self.shown.at_age(bin, self.t1)
        except HomodyneDaskError as e:
            self._say(str(e))
            for source in (self.cells, self.averages, self.curve):
                source.data = {column: [] for column in source.data}
            return
        self._say("")
        images, curve = self._evaluated(bin, window, cut)
        self.cells.data = columns_of(scan, window, images)
        for name in images.keys() - {"model"}:  # the model has the colours of the data
            set_colours(self.colours[name], images[name], name == "residual")
        cells = f"means over {rows.side}×{rows.side} pairs" if rows.side > 1 else "single pairs"
        self.maps["data"].title.text = f"data: {cells}"
        self.cut.title.text = f"at age t₁ = {self.t1:.4g} s"
        low, high = cut.c2 - cut.stderr, cut.c2 + cut.stderr
        self.averages.data = {"x": cut.lag, "c2": cut.c2, "low": low, "high": high}
        self.curve.data = dict(zip(("x", "c2"), curve, strict=True))

    def _evaluated(
        self, bin: int, window: means.Window, cut: means.Cut
    ) -> tuple[dict[str, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """Return the values of each map, and the curve of the model, empty if there is none."""
        fit, images, curve = self.shown.fit, {"data": window.c2}, (np.empty(0), np.empty(0))
        if fit is not None:
            try:
                curve = fit.curve(bin, cut)
                images["model"], images["residual"] = fit.model_of(bin, window)
            except Exception as e:  # whatever a user-defined model raises; the data are shown
                self._say(f"the model cannot be evaluated: {e}")
                images["model"] = images["residual"] = np.full_like(window.c2, np.nan)
        return images, curve

    def _say(self, note: str) -> None:
        self.status.text = f"<p>{escape(printable(note))}</p>" if note else ""
