"""The page: its parts, and what happens when a bin, a window or a pair of times is chosen."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from bokeh.core.templates import FILE
from bokeh.document import Document
from bokeh.events import Tap
from bokeh.layouts import gridplot
from bokeh.models import Column, ColumnDataSource, Div, Row, Select
from markupsafe import escape

from homodyne_dask.apps.view import view_figures as figures
from homodyne_dask.apps.view.viewed_data import Shown, Source, name_of, open_shown
from homodyne_dask.errors import HomodyneDaskError, printable
from homodyne_dask.results.data.window_means import Window, cell_axes, read_window
from homodyne_dask.results.views.figures.style import bin_name

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
    """One page in one browser."""

    def __init__(self, sources: Sequence[Source]) -> None:
        """Make the page of the first source, on which the others can be chosen."""
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
        """Become the page of a browser."""
        self.document = document
        document.title = printable(self.shown.name)
        document.template = TEMPLATE
        document.add_root(self.layout)
        self.update()

    def _parts(self, shown: Shown) -> list[Any]:
        """Return the parts of the page, with empty maps and cuts."""
        self.shown, scan = shown, shown.scan
        self.bins.options = [(str(n), bin_name(scan, n)) for n in range(len(scan.bins))]
        self.bins.value = min(self.bins.value, self.bins.options[-1][0], key=int)
        self.x, self.y = (figures.time_range(scan) for _ in "xy")
        parts = ["data"] if shown.fit is None else ["data", "model", "residual"]
        self.maps = figures.new_maps(parts, self.x, self.y)
        begin, end = figures.whole_span(scan)
        lags = 0.8 * scan.attrs["frame_time"], 1.2 * (end - begin)
        self.along_lag = figures.cut_figure("along-lag", "lag t₂ − t₁ [s]", lags, "log")
        self.along_age = figures.cut_figure("along-age", "age t₁ [s]", (begin, end), "linear")
        self.cuts = self.along_lag, self.along_age
        self.t1, self.lag = begin + 0.25 * (end - begin), 0.02 * (end - begin)
        self.marks = figures.dotted("height"), figures.dotted("width")
        for one in self.maps.values():
            for mark in self.marks:
                one.figure.add_layout(mark)
            one.figure.on_event(Tap, self._tapped)
        for axis in (self.x, self.y):
            axis.on_change("start", self._changed)
            axis.on_change("end", self._changed)
        drawn = [one.figure for one in (*self.maps.values(), *self.cuts)]
        drawn += figures.intensity_figures(scan, self.x)
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
            self._ask()

    def _changed(self, attr: str, old: object, new: object) -> None:
        self._ask()

    def _ask(self) -> None:
        """Update the page in a moment, once for all that changes until then."""
        if self.document is not None and not self.waiting:
            self.waiting = True
            self.document.add_timeout_callback(self.update, PAUSE_MS)

    def update(self) -> None:
        """Show the chosen bin in the chosen window, and the cuts."""
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
        figures.put_map(self.maps["data"], shown.scan, window, window.c2)
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
                    figures.put_map(self.maps[part], shown.scan, window, values)
            except Exception as e:  # whatever a user-defined model raises; the data are shown
                self._say(f"the model cannot be evaluated: {e}")
                _clear(self.maps["model"].image, self.maps["residual"].image)
        titles = f"at age t₁ = {self.t1:.4g} s", f"at lag t₂ − t₁ = {self.lag:.4g} s"
        for cut, title, line, curve in zip(self.cuts, titles, lines, curves, strict=True):
            figures.put_cut(cut, title, line, curve)

    def _say(self, note: str) -> None:
        self.status.text = f"<p>{escape(printable(note))}</p>" if note else ""


def _clear(*sources: ColumnDataSource) -> None:
    for source in sources:
        source.data = {key: [] for key in source.data}
