"""The page: its figures, of Bokeh, and what happens when a bin, a window or a pair of times is chosen."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from bokeh.core.templates import FILE
from bokeh.document import Document
from bokeh.events import Tap
from bokeh.layouts import gridplot
from bokeh.models import (
    ColorBar,
    Column,
    ColumnDataSource,
    Div,
    HoverTool,
    LinearColorMapper,
    LogColorMapper,
    Range1d,
    Row,
    Select,
    Whisker,
)
from bokeh.models import Span as Mark
from bokeh.palettes import Cividis256, RdBu11, interp_palette
from bokeh.plotting import figure
from jaxtyping import Float, Int
from markupsafe import escape

from homodyne_dask.apps.view.viewed_data import Line, Shown, Source, name_of, open_shown
from homodyne_dask.errors import HomodyneDaskError, printable
from homodyne_dask.results.data.c2_means import (
    CellAxis,
    Span,
    Window,
    cell_axes,
    read_window,
    whole_span,
)
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
MAX_POINTS = 4000
"""Frames of a curve of the intensity; longer ones are means over groups of frames."""
REACH = 1e4
"""The largest over the smallest intensity that colours tell apart."""


def new_figure(name: str, x: str | None, y: str | None, **options: Any) -> Any:
    options |= {"name": name, "x_axis_label": x, "y_axis_label": y, "min_border_right": 20}
    options |= {"width": SIDE, "height": SIDE, "toolbar_location": "below"}
    fig: Any = figure(tools=TOOLS, active_scroll="wheel_zoom", **options)
    fig.toolbar.logo = None
    return fig


@dataclass(frozen=True)
class Map:
    figure: Any
    image: ColumnDataSource
    colours: LinearColorMapper


def new_maps(parts: list[str], x: Range1d, y: Range1d) -> dict[str, Map]:
    made = {}
    c2, of_residual = (
        LinearColorMapper(palette=palette, low=-3, high=3, nan_color=UNKNOWN_COLOUR)
        for palette in (Cividis256, interp_palette(RdBu11, 256))
    )
    for part in parts:
        title, colours = TITLES[part], of_residual if part == "residual" else c2
        fig = new_figure(f"{part}-map", "t₁ [s]", "t₂ [s]", x_range=x, y_range=y, title=title)
        source = ColumnDataSource({key: [] for key in ("image", "x", "y", "dw", "dh")}, name=part)
        fig.image("image", "x", "y", "dw", "dh", source=source, color_mapper=colours, level="image")
        fig.add_layout(ColorBar(color_mapper=colours, width=12), "right")
        fig.add_tools(HoverTool(tooltips=[("t₁, t₂ [s]", "$x, $y"), (title, "@image{0.0000}")]))
        fig.grid.visible = False
        made[part] = Map(fig, source, colours)
    return made


def put_map(
    into: Map, scan: Scan, window: Window, values: Float[np.ndarray, "rows columns"]
) -> None:
    """Show values in the cells of a window; the colours follow them, but for the model those of the data."""
    columns, rows = window.columns, window.rows
    (x0, x1), (y0, y1) = (axis.edges(scan)[[0, -1]] for axis in (columns, rows))
    image = values.astype(np.float32)[evenly(scan, rows)][:, evenly(scan, columns)]
    into.image.data = {"image": [image], "x": [x0], "y": [y0], "dw": [x1 - x0], "dh": [y1 - y0]}
    known = values[np.isfinite(values)]
    if into.image.name == "model" or not len(known):
        return
    low, high = (float(end) for end in np.quantile(known, CENTRAL))
    if into.image.name == "residual":
        high = max(LEAST_REACH, high, -low)
        low = -high
    into.colours.update(low=low, high=high if high > low else low + 1)


def evenly(scan: Scan, axis: CellAxis) -> Int[np.ndarray, " n"]:
    """Return the cells at equal steps of time, which an image has: all once where frames are even."""
    edges = axis.edges(scan)
    steps = np.diff(edges)
    if np.ptp(steps) < 1e-3 * steps.mean():
        return np.arange(axis.number)
    n = 4 * axis.number
    middles = edges[0] + (np.arange(n) + 0.5) / n * np.ptp(edges)
    return np.searchsorted(edges, middles, side="right") - 1


@dataclass(frozen=True)
class CutFigure:
    figure: Any
    averages: ColumnDataSource
    view: ColumnDataSource
    model: ColumnDataSource


def cut_figure(name: str, x: str, ends: Span, scale: Any) -> CutFigure:
    x_range = Range1d(start=ends[0], end=ends[1])
    fig = new_figure(name, x, "c₂", x_axis_type=scale, title="", x_range=x_range)
    averages, view, model = (
        ColumnDataSource({"x": [], "c2": [], "low": [], "high": []}, name=f"{name}-{part}")
        for part in ("averages", "view", "model")
    )
    fig.scatter("x", "c2", source=view, size=3, color=COLOURS[0], alpha=0.35)
    bars: dict[str, Any] = {"upper_head": None, "lower_head": None, "line_color": COLOURS[0]}
    fig.add_layout(Whisker(base="x", lower="low", upper="high", source=averages, **bars))
    shown = fig.scatter("x", "c2", source=averages, size=6, color=COLOURS[0], fill_color="white")
    fig.y_range.renderers = [shown]  # all averages are visible, whatever the cells of the map are
    fig.line("x", "c2", source=model, color=COLOURS[1], line_width=2)
    return CutFigure(fig, averages, view, model)


def put_cut(into: CutFigure, title: str, line: Line, curve: tuple[np.ndarray, np.ndarray]) -> None:
    cut = line.averages
    ends = {"low": cut.c2 - cut.stderr, "high": cut.c2 + cut.stderr}
    into.figure.title.text = title
    into.averages.data = {"x": cut.x, "c2": cut.c2, **ends}
    into.view.data = {"x": line.x, "c2": line.c2}
    into.model.data = dict(zip(("x", "c2"), curve, strict=True))


def intensity_figures(scan: Scan, x: Range1d) -> list[Any]:
    made = []
    counts = scan.all_bins["intensity"][list(scan.bins)]
    known = counts[np.isfinite(counts).all(axis=1)]
    flux = scan.optional_array("flux")
    if len(known):
        made.append(_against_time(scan, known.mean(axis=0), "counts per pixel", x))
    elif flux is not None:
        made.append(_against_time(scan, flux, "intensity [arb. units]", x))
    image = scan.optional_array("mean_image")
    if image is not None and np.nanmax(image) > 0:
        made.append(_image(image))
    return made


def _against_time(scan: Scan, values: Float[np.ndarray, " t"], unit: str, x: Range1d) -> Any:
    masked = ~scan.frame_mask
    title = "intensity" + "; ×: frames masked by ingest" * bool(masked.any())
    fig = new_figure("intensity", "t [s]", unit, x_range=x, title=title)
    side = -(-len(values) // MAX_POINTS)
    whole = len(values) // side * side
    time, means = (of[:whole].reshape(-1, side).mean(axis=1) for of in (scan.time, values))
    fig.line(time, means, color=COLOURS[0])
    fig.scatter(scan.time[masked], values[masked], marker="x", color="black", name="masked")
    return fig


def _image(image: Float[np.ndarray, "y x"]) -> Any:
    """Return the mean over the frames with logarithmic colours; row 0 of the detector is at the top."""
    high = float(np.nanquantile(image, 0.999)) or float(np.nanmax(image))
    low = min(max(float(np.nanmin(image[image > 0])), high / REACH), 0.99 * high)
    mapper = LogColorMapper(palette=Cividis256, low=low, high=high, nan_color=UNKNOWN_COLOUR)
    rows, columns = image.shape
    ranges = {"x_range": Range1d(start=0, end=columns), "y_range": Range1d(start=rows, end=0)}
    look: dict[str, Any] = {"match_aspect": True, "title": "mean over frames", **ranges}
    fig = new_figure("mean-image", None, None, **look)
    fig.image([image], x=0, y=0, dw=columns, dh=rows, color_mapper=mapper)
    fig.axis.visible = False
    fig.grid.visible = False
    fig.add_layout(ColorBar(color_mapper=mapper, width=12), "right")
    return fig


TEMPLATE = FILE.environment.from_string(
    """{% extends base %}
{% block js_resources %}{{ bokeh_js | replace('src="/static/', 'src="static/') }}{% endblock %}"""
)
"""Bokeh's own, with addresses of scripts relative to that of the page, which a proxy may serve elsewhere."""
PAUSE_MS = 40
"""Milliseconds in which further changes join the first: of a turn of the wheel, many come."""
HELP = (
    "Turn the wheel to zoom, drag to move, point at a cell to read its value, click to move the cuts. "
    "Circles are averages over cells of age and lag, dots are cells of the map, and the line is the model."
)


class ViewPage:
    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = sources
        self.document: Document | None = None
        self.waiting = False
        self.status = Div(name="status", disable_math=True)
        self.choice = Select(name="choice", title="shown", value="0")
        self.choice.options = [(str(n), printable(name_of(one))) for n, one in enumerate(sources)]
        self.choice.on_change("value", lambda attr, old, new: self._choose(int(new)))
        self.bins = Select(name="bins", title="bin", value="0")
        self.bins.on_change("value", self._changed)
        parts = self._parts(open_shown(sources[0], sources))
        self.layout = Column(children=parts, sizing_mode="stretch_width")

    def show_in(self, document: Document) -> None:
        self.document = document
        document.title = printable(self.shown.name)
        document.template = TEMPLATE
        document.add_root(self.layout)
        self.update()

    def _parts(self, shown: Shown) -> list[Any]:
        self.shown, scan = shown, shown.scan
        self.bins.options = [(str(n), bin_name(scan, n)) for n in range(len(scan.bins))]
        self.bins.value = min(self.bins.value, self.bins.options[-1][0], key=int)
        begin, end = whole_span(scan)
        whole = {"bounds": (begin, end), "reset_start": begin, "reset_end": end}
        whole |= {"start": begin, "end": end, "min_interval": 3 * scan.attrs["frame_time"]}
        axes: Any = (Range1d(**whole) for _ in "xy")
        self.x, self.y = axes
        parts = ["data"] if shown.fit is None else ["data", "model", "residual"]
        self.maps = new_maps(parts, self.x, self.y)
        lags = 0.8 * scan.attrs["frame_time"], 1.2 * (end - begin)
        self.along_lag = cut_figure("along-lag", "lag t₂ − t₁ [s]", lags, "log")
        self.along_age = cut_figure("along-age", "age t₁ [s]", (begin, end), "linear")
        self.cuts = self.along_lag, self.along_age
        self.t1, self.lag = begin + 0.25 * (end - begin), 0.02 * (end - begin)
        across: Any = ("height", "width")  # at one t₁, at one t₂
        self.marks = [Mark(dimension=of, line_color="black", line_dash="dotted") for of in across]
        for one in self.maps.values():
            for mark in self.marks:
                one.figure.add_layout(mark)
            one.figure.on_event(Tap, self._tapped)
        for axis in (self.x, self.y):
            axis.on_change("start", self._changed)
            axis.on_change("end", self._changed)
        drawn = [one.figure for one in (*self.maps.values(), *self.cuts)]
        drawn += intensity_figures(scan, self.x)
        look: Any = {"sizing_mode": "scale_width", "toolbar_location": None, "merge_tools": False}
        grid = gridplot(cast(Any, drawn), ncols=3, **look)
        report = "" if shown.fit is None else shown.fit.result._repr_html_()
        fit = Div(text=report, name="fit", disable_math=True, sizing_mode="stretch_width")
        top: list[Any] = [self.choice, self.bins, Div(text=HELP, sizing_mode="stretch_width")]
        return [Row(children=top, sizing_mode="stretch_width"), self.status, grid, fit]

    def _choose(self, number: int) -> None:
        """Show another source at the same bin and in the same ranges, where it has them."""
        try:
            shown = open_shown(self.sources[number], self.sources)
        except HomodyneDaskError as e:
            self._say(str(e))
            return
        before, parts = (self.x, self.y), self._parts(shown)
        for axis, old in zip((self.x, self.y), before, strict=True):
            begin, end = max(axis.start, old.start), min(axis.end, old.end)
            whole = (old.start, old.end) == (old.reset_start, old.reset_end)
            if not whole and end - begin >= axis.min_interval:
                axis.update(start=begin, end=end)
        self.update()
        self.layout.children = parts

    def _tapped(self, event: Any) -> None:
        if event.x is not None and event.y is not None:
            early, late = sorted((float(event.x), float(event.y)))
            self.t1, self.lag = early, max(late - early, self.shown.scan.attrs["frame_time"])
            self._changed("cuts", None, None)

    def _changed(self, attr: str, old: object, new: object) -> None:
        """Update the page in a moment, once for all that changes until then."""
        if self.document is not None and not self.waiting:
            self.waiting = True
            self.document.add_timeout_callback(self.update, PAUSE_MS)

    def update(self) -> None:
        self.waiting = False
        for mark, at in zip(self.marks, (self.t1, self.t1 + self.lag), strict=True):
            mark.location = at
        self._say("")
        shown, bin = self.shown, int(self.bins.value)
        spans = ((float(axis.start), float(axis.end)) for axis in (self.x, self.y))
        try:
            columns, rows = cell_axes(shown.scan, *spans)
            window = read_window(shown.scan, shown.read, bin, rows, columns)
        except HomodyneDaskError as e:
            self._say(str(e))
            _clear(*(source for cut in self.cuts for source in (cut.averages, cut.view, cut.model)))
            _clear(*(one.image for one in self.maps.values()))
            return
        cells = f"means over {rows.side}×{rows.side} pairs" if rows.side > 1 else "single pairs"
        self.maps["data"].figure.title.text = f"data: {cells}"
        put_map(self.maps["data"], shown.scan, window, window.c2)
        self._show_model_and_cuts(bin, window)

    def _show_model_and_cuts(self, bin: int, window: Window) -> None:
        shown = self.shown
        lines = [
            shown.along_lag(bin, window, self.t1),
            shown.along_age(bin, window, self.lag),
        ]
        curves = [(np.empty(0), np.empty(0))] * 2
        if shown.fit is not None:
            try:
                both = shown.fit.model_of(bin, window)
                curves = [shown.fit.curve(bin, line.averages) for line in lines]
                for part, values in zip(("model", "residual"), both, strict=True):
                    put_map(self.maps[part], shown.scan, window, values)
            except Exception as e:  # whatever a user-defined model raises; the data are shown
                self._say(f"the model cannot be evaluated: {e}")
                _clear(self.maps["model"].image, self.maps["residual"].image)
        titles = f"at age t₁ = {self.t1:.4g} s", f"at lag t₂ − t₁ = {self.lag:.4g} s"
        for cut, title, line, curve in zip(self.cuts, titles, lines, curves, strict=True):
            put_cut(cut, title, line, curve)

    def _say(self, note: str) -> None:
        self.status.text = f"<p>{escape(printable(note))}</p>" if note else ""


def _clear(*sources: ColumnDataSource) -> None:
    for source in sources:
        source.data = {key: [] for key in source.data}
