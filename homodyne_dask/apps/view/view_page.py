"""The page: its parts, and what happens when a bin, a window or a pair of times is chosen."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, cast

import numpy as np
from bokeh.document import Document
from bokeh.events import DocumentReady, Reset, SelectionGeometry, Tap
from bokeh.layouts import column, row
from bokeh.models import (
    BoxAnnotation,
    Button,
    Column,
    ColumnDataSource,
    CustomJS,
    DataTable,
    Div,
    NumberFormatter,
    Row,
    TableColumn,
)
from bokeh.models import Span as Mark
from markupsafe import escape

from homodyne_dask.apps.view import view_figures as figures
from homodyne_dask.apps.view.data_window import Span, frames_in, times_of, whole_span
from homodyne_dask.apps.view.latest_request import Check, LatestRequest, Update
from homodyne_dask.apps.view.maps_and_cuts import (
    Line,
    Maps,
    cut_along_age,
    cut_along_lag,
    data_map,
    with_model,
)
from homodyne_dask.apps.view.viewed_data import ShownScan, Viewed, bin_of
from homodyne_dask.errors import HomodyneDaskError, SelectionError, printable
from homodyne_dask.results.views.figures.style import bin_name

KEYS = """
if (window.homodyneKeys) return
window.homodyneKeys = true
document.addEventListener("keydown", event => {
  const at = event.composedPath()[0]
  if (event.ctrlKey || event.altKey || event.metaKey || /^(INPUT|TEXTAREA|SELECT)$/.test(at.tagName)) return
  const last = bins.get_length() - 1, now = bins.selected.indices[0] ?? 0
  const to = {ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: last}[event.key]
  if (to !== undefined) {
    bins.selected.indices = [Math.min(Math.max(to, 0), last)]
    event.preventDefault()
    event.stopPropagation()
  }
  if (event.key == "0") {
    x.setv({start: x.reset_start, end: x.reset_end})
    y.setv({start: y.reset_start, end: y.reset_end})
  }
}, true)
"""
"""Arrows, Home and End go through the bins; 0 shows the whole matrix."""
SCRIPTS = """{% block js_resources %}
{% for line in bokeh_js.splitlines() if "mathjax" not in line and "bokeh-gl" not in line %}
{{ line }}
{% endfor %}
{% endblock %}"""
"""The page without half of Bokeh's scripts: no formulas are typeset, nothing is drawn with WebGL."""
HELP = (
    "Turn the wheel to zoom, drag to move, click to move the cuts; the tool with a dashed box marks frames. "
    "Cuts: circles are averages over cells of age and lag, dots what the map shows, lines the model, "
    "in the colours of the names."
)
KEYS_HELP = " Keys: ← → Home End for bins, 0 for the whole matrix."
TABLE_WIDTH = 330
FIRST_CUTS = 0.25, 0.02
"""Age and lag of the first cuts, of the whole time."""


class ViewPage:
    """One page in one browser."""

    def __init__(self, viewed: Viewed, pool: Executor, keys: bool) -> None:
        self.viewed, self.keys = viewed, keys
        self.first = viewed.shown[0].scan
        self.x, self.y = (figures.common_range([one.scan for one in viewed.shown]) for _ in "xy")
        begin, end = whole_span(self.first)
        age, lag = FIRST_CUTS
        self.t1, self.lag = begin + age * (end - begin), lag * (end - begin)
        self.marks = [
            Mark(location=0, dimension=dimension, line_color="black", line_dash="dotted")
            for dimension in ("height", "width", "height")
        ]
        self._move_marks()
        self.help = HELP + KEYS_HELP * keys
        self.rows = [self._row(n, one) for n, one in enumerate(viewed.shown)]
        number = len(viewed.shown)
        begin, end = _span(self.x)
        lags = 0.8 * self.first.attrs["frame_time"], 1.2 * (end - begin)
        self.along_lag = figures.cut_figure("along-lag", "lag t₂ − t₁ [s]", lags, True, number)
        self.along_age = figures.cut_figure("along-age", "age t₁ [s]", (begin, end), False, number)
        self.bins = bins_of(viewed.shown)
        self.heading, self.status = Div(name="bin"), Div(name="status")
        self.marked = Div(name="marked")
        self.bands = [self._bands(fig) for one in self.rows for fig in one.figures]
        self.latest = LatestRequest(pool, self._work, self._failed)
        self.layout = self._layout()
        self._connect()

    def show_in(self, document: Document) -> None:
        """Become the page of a browser."""
        document.title = self.viewed.title
        document.template = cast(Any, SCRIPTS)
        document.add_root(self.layout)
        document.on_session_destroyed(lambda _: self.latest.close())
        if self.keys:
            arguments = {"bins": self.bins, "x": self.x, "y": self.y}
            document.js_on_event(DocumentReady, CustomJS(args=arguments, code=KEYS))
        self.latest.document = document
        self._bin_chosen()

    @property
    def bin(self) -> int:
        """The chosen bin of the page."""
        chosen = self.bins.selected.indices
        return int(chosen[0]) if chosen else 0

    def _row(self, n: int, one: ShownScan) -> figures.MapRow:
        parts = tuple(figures.PARTS) if one.result is not None else ("data",)
        side = figures.SIDE if len(self.viewed.shown) == 1 else figures.SMALL_SIDE
        marks = self.marks[0], self.marks[1]
        return figures.map_row(parts, self.x, self.y, marks, one.name, n, side)

    def _layout(self) -> Any:
        unknown = bool(np.isnan(self.first.q).any())
        rates = figures.rate_figures(self.viewed.rates, self.marks[2], unknown)
        buttons = []
        for name, step in (("◀ previous bin", -1), ("next bin ▶", 1)):
            button = Button(label=name, width=110, name="previous" if step < 0 else "next")
            button.on_click(partial(self._step, step))
            buttons.append(button)
        whole = Button(label="whole matrix", width=110, name="whole")
        whole.on_click(self._whole)
        cuts: list[Any] = [self.along_lag.figure, self.along_age.figure]
        groups = [one.figures for one in self.rows]
        if len(groups) == 1:
            groups = [[part] for part in groups[0]]
        maps = [column(*group, align="end") for group in groups]
        table = column(row([*buttons, whole]), bin_table(self.bins, self.viewed.shown))
        lines = [_wrapped([*maps, table]), _wrapped(cuts + rates), Div(text=self.help)]
        parts = [self.heading, *lines, self.marked, self.status]
        return Column(children=parts, sizing_mode="stretch_width")

    def _connect(self) -> None:
        self.bins.selected.on_change("indices", lambda attr, old, new: self._bin_chosen())
        for axis in (self.x, self.y):
            for end in ("start", "end"):
                axis.on_change(end, lambda attr, old, new: self.latest.ask())
        for one in self.rows:
            for fig in one.figures:
                fig.on_event(Tap, self._tapped)
                fig.on_event(SelectionGeometry, self._marked)
                fig.on_event(Reset, lambda _: self._whole())

    def _step(self, by: int) -> None:
        last = len(self.viewed.shown[0].scan.bins) - 1
        self.bins.selected.indices = [min(max(self.bin + by, 0), last)]

    def _whole(self) -> None:
        for axis in (self.x, self.y):
            axis.update(start=axis.reset_start, end=axis.reset_end)

    def _bin_chosen(self) -> None:
        self.heading.text = f"<h2>{escape(bin_name(self.first, self.bin))}</h2>"
        self.latest.ask()

    def _tapped(self, event: Any) -> None:
        if event.x is None or event.y is None:
            return
        early, late = sorted((float(event.x), float(event.y)))
        self.t1, self.lag = early, max(late - early, self.first.attrs["frame_time"])
        self._move_marks()
        self.latest.ask()

    @staticmethod
    def _bands(fig: Any) -> tuple[BoxAnnotation, BoxAnnotation]:
        """Return the bands of a marked range in a map, of its columns and of its rows; not yet visible."""
        style: dict[str, Any] = {"fill_color": "black", "fill_alpha": 0.25, "visible": False}
        bands = BoxAnnotation(**style), BoxAnnotation(**style)
        for band in bands:
            fig.add_layout(band)
        return bands

    def _marked(self, event: Any) -> None:
        """Shade the frames of a range that is marked, and print the option that excludes them."""
        if not event.final:
            return
        ends = sorted((float(event.geometry["x0"]), float(event.geometry["x1"])))
        try:
            first, stop = frames_in(self.first, (ends[0], ends[1]))
        except SelectionError as e:
            self.marked.text = f"<p>{escape(printable(str(e)))}</p>"
            return
        begin, end = times_of(self.first, np.array([first, stop]) - 0.5)
        for columns, rows in self.bands:
            columns.update(left=begin, right=end, visible=True)
            rows.update(bottom=begin, top=end, visible=True)
        self.marked.text = (
            f"<p>to exclude the marked frames: <code>--exclude-frames {first}:{stop}</code></p>"
        )

    def _move_marks(self) -> None:
        for mark, at in zip(self.marks, (self.t1, self.t1 + self.lag, self.t1), strict=True):
            mark.location = at

    def _work(self, check: Check) -> Iterator[Update]:
        """Yield what to show; runs in a thread."""
        at, spans, t1, lag = self.bin, (_span(self.x), _span(self.y)), self.t1, self.lag
        notes = list(self.viewed.notes)
        for n, one in enumerate(self.viewed.shown):
            check()
            cuts: tuple[Line, Line] | None = None
            missing = tuple(figures.PARTS)
            try:
                bin = bin_of(one, at)
                maps, sigma = data_map(one, bin, *spans, check)
                yield partial(self._show_maps, n, maps, ("data",))
                missing = ("model", "residual")
                if one.result is not None:
                    maps = with_model(one, bin, maps, sigma)
                    yield partial(self._show_maps, n, maps, missing)
                missing = ()
                check()
                cuts = cut_along_lag(one, bin, maps, t1), cut_along_age(one, bin, maps, lag)
            except HomodyneDaskError as e:
                notes.append(f"{one.name}: {e}")
            yield partial(self._clear, n, missing)
            yield partial(self._show_cuts, n, cuts, t1, lag)
        yield partial(self._say, notes)

    def _show_maps(self, n: int, maps: Maps, parts: Sequence[str]) -> None:
        one, side = self.viewed.shown[n], maps.rows.side
        figures.put_maps(self.rows[n], one.scan, maps, parts)
        means = f"means over {side}×{side} pairs" if side > 1 else "single pairs"
        self.rows[n].resolution.text = f"data: {means}"

    def _clear(self, n: int, parts: Sequence[str]) -> None:
        figures.clear_maps(self.rows[n], parts)
        if "data" in parts:
            self.rows[n].resolution.text = "no data"

    def _show_cuts(self, n: int, cuts: tuple[Line, Line] | None, t1: float, lag: float) -> None:
        self.along_lag.title.text = f"at the age t₁ = {t1:.4g} s"
        self.along_age.title.text = f"at the lag t₂ − t₁ = {lag:.4g} s"
        for figure, line in zip(
            (self.along_lag, self.along_age), cuts or (None, None), strict=True
        ):
            figures.put_cut(figure, n, line)
            figures.fit_heights(figure)

    def _failed(self, error: Exception) -> None:
        self._say([f"a bug in homodyne-dask ({type(error).__name__}: {error}): please report it"])

    def _say(self, notes: Sequence[str]) -> None:
        self.status.text = "".join(
            f"<p>{escape(printable(note))}</p>" for note in dict.fromkeys(notes)
        )


def _wrapped(parts: Sequence[Any]) -> Row:
    """Return parts beside one another, on as many lines as a window needs."""
    return Row(children=[*parts], sizing_mode="stretch_width", styles={"flex-wrap": "wrap"})


def _span(axis: Any) -> Span:
    return float(axis.start), float(axis.end)


def bins_of(shown: Sequence[ShownScan]) -> ColumnDataSource:
    """Return the table of the bins of a page, the first chosen."""
    scan = shown[0].scan
    pixels = scan.all_bins["n_pixels"][list(scan.bins)]
    columns: dict[str, Any] = {
        "scan": scan.scan_number,
        "label": scan.label,
        "q": scan.q,
        "phi": scan.phi,
        "pixels": np.where(pixels > 0, pixels, np.nan),
    }
    for n, one in enumerate(shown):
        if one.result is not None:
            for key in ("contrast", "offset", "redchi"):
                values = one.result.scaling[key].values
                columns[f"{key}-{n}"] = np.where(one.bins < 0, np.nan, values[one.bins])
    source = ColumnDataSource(columns, name="bins")
    source.selected.indices = [0]
    return source


def bin_table(source: ColumnDataSource, shown: Sequence[ShownScan]) -> DataTable:
    """Return the table; with several results χ²/N of each stands in it, but contrast and offset do not."""
    several = sum(one.result is not None for one in shown) > 1
    columns = [("scan", "scan", "0")] * ("scans" in shown[0].scan.attrs)
    columns += [("label", "bin", "0"), ("q", "q [1/Å]", "0.00000"), ("phi", "φ [°]", "0.0")]
    for n, one in enumerate(shown):
        if one.result is not None:
            named = f"χ²/N {n + 1}" if several else "χ²/N"
            columns.append((f"redchi-{n}", named, "0.000"))
            if not several:
                columns += [
                    (f"contrast-{n}", "contrast", "0.0000"),
                    (f"offset-{n}", "offset", "0.0000"),
                ]
    if not any(one.result is not None for one in shown):
        columns.append(("pixels", "pixels", "0"))
    return DataTable(
        source=source, width=TABLE_WIDTH, height=figures.SIDE, index_position=None, sortable=False,
        scroll_to_selection=True, selectable=True, name="table",
        columns=[
            TableColumn(field=field, title=title, formatter=NumberFormatter(format=form, nan_format="-"))
            for field, title, form in columns
        ],
    )  # fmt: skip
