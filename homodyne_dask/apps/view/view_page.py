"""The page: its parts, and what happens when a bin, a window or a pair of times is chosen."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, cast

import numpy as np
from bokeh.document import Document
from bokeh.events import DocumentReady, Reset, SelectionGeometry, Tap
from bokeh.layouts import column
from bokeh.models import (
    BoxAnnotation,
    Button,
    CheckboxButtonGroup,
    Column,
    ColumnDataSource,
    CustomJS,
    DataTable,
    Div,
    NumberFormatter,
    NumericInput,
    Row,
    Select,
    TableColumn,
)
from bokeh.models import Span as Mark
from markupsafe import escape

from homodyne_dask.apps.view import view_figures as figures
from homodyne_dask.apps.view.data_window import Span, frames_in, times_of, whole_span
from homodyne_dask.apps.view.intensity_figures import intensity_figures
from homodyne_dask.apps.view.latest_request import Check, LatestRequest, Update
from homodyne_dask.apps.view.maps_and_cuts import (
    Line,
    Maps,
    cut_along_age,
    cut_along_lag,
    data_map,
    with_model,
)
from homodyne_dask.apps.view.viewed_data import (
    ShownScan,
    Viewable,
    Viewed,
    bin_of,
    nearest_bin,
    viewed,
)
from homodyne_dask.errors import HomodyneDaskError, SelectionError, printable
from homodyne_dask.results.data import number_format as numbers
from homodyne_dask.results.views.figures.style import COLOURS, bin_name

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
    "Turn the wheel to zoom, drag to move the map, click to move the cuts; the tool with a dashed box marks "
    "frames. In the cuts, circles are averages over cells of age and lag, dots are cells of the map, and "
    "lines are the model, in the colours of the names."
)
KEYS_HELP = " Keys: ←, →, Home and End select bins, 0 shows the whole matrix."
TABLE_WIDTH = 430
RESIZE = """
const fit = () => {
  const groups = maps.children.map(group => group.children)
  const room = window.innerWidth - 40 - groups.length * (60 + bar)
  const side = Math.floor(Math.max(smallest, Math.min(room / groups.length, 0.55 * window.innerHeight)))
  for (const fig of groups.flat()) {
    const width = side + 60 + (fig.right.length ? bar : 0)
    fig.setv({frame_width: side, frame_height: side, height: side + 110, width})
  }
  const share = Math.min((window.innerWidth - 40) / cuts.children.length, 600)
  const cut = Math.floor(Math.max(smallest + 60, share))
  for (const fig of cuts.children) fig.setv({width: cut, height: Math.floor(Math.max(0.7 * cut, smallest))})
}
fit()
window.onresize = fit
"""
"""Maps and cuts grow with the window."""
FIRST_CUTS = 0.25, 0.02
"""Age and lag of the first cuts, of the whole time."""


class ViewPage:
    """One page in one browser."""

    def __init__(
        self,
        content: Viewed,
        pool: Executor,
        keys: bool,
        choices: Mapping[str, Sequence[Viewable]] | None = None,
    ) -> None:
        """Make the page; choices: what it may show, by name, of which `content` is the first."""
        self.keys, self.choices = keys, choices or {}
        self.x, self.y = (figures.common_range([one.scan for one in content.shown]) for _ in "xy")
        self.heading, self.status = Div(name="bin"), Div(name="status")
        self.marked = Div(name="marked")
        self.bins = bins_of(content.shown)
        self.limits = [
            NumericInput(mode="float", title=title, placeholder="automatic", width=110, name=name)
            for title, name in (
                ("c₂ colours from", "colour-low"), ("to", "colour-high"), ("residuals to ±", "colour-reach"),
            )
        ]  # fmt: skip
        self.log = CheckboxButtonGroup(labels=["log lag", "log age"], active=[0], name="log")
        self.latest = LatestRequest(pool, self._work, self._failed)
        self.help = HELP + KEYS_HELP * keys
        self.maps, self.cuts, self.layout = (
            _wrapped([]),
            _wrapped([]),
            Column(sizing_mode="stretch_width"),
        )
        begin, end = whole_span(content.shown[0].scan)
        age, lag = FIRST_CUTS
        self.t1, self.lag = begin + age * (end - begin), lag * (end - begin)
        self._connect()
        self._show(content)

    def _show(self, content: Viewed) -> None:
        """Fill the page."""
        self.viewed, self.first = content, content.shown[0].scan
        self.marks = [
            Mark(location=0, dimension=dimension, line_color="black", line_dash="dotted")
            for dimension in ("height", "width", "height")
        ]
        self._move_marks()
        self.rows = [self._row(n, one) for n, one in enumerate(content.shown)]
        number, (begin, end) = len(content.shown), _span(self.x)
        lags = 0.8 * self.first.attrs["frame_time"], 1.2 * (end - begin)
        self.along_lag = figures.cut_figure("along-lag", "lag t₂ − t₁ [s]", lags, True, number)
        self.along_age = figures.cut_figure("along-age", "age t₁ [s]", (begin, end), False, number)
        self._log_chosen()
        unknown = bool(np.isnan(self.first.q).any())
        self.rates = figures.rate_figures(content.rates, self.marks[2], unknown)
        self.intensity = intensity_figures(content.shown, self.x)
        self.bands = [self._bands(fig) for one in self.rows for fig in one.figures]
        self.marked.text = ""
        for one in self.rows:
            for fig in one.figures:
                fig.on_event(Tap, self._tapped)
                fig.on_event(SelectionGeometry, self._marked)
                fig.on_event(Reset, lambda _: self._whole())
        self.layout.children = self._parts()

    def show_in(self, document: Document) -> None:
        """Become the page of a browser."""
        document.title = self.viewed.title
        document.template = cast(Any, SCRIPTS)
        document.add_root(self.layout)
        document.on_session_destroyed(lambda _: self.latest.close())
        if self.keys:
            arguments = {"bins": self.bins, "x": self.x, "y": self.y}
            document.js_on_event(DocumentReady, CustomJS(args=arguments, code=KEYS))
            arguments = {"maps": self.maps, "cuts": self.cuts, "bar": figures.BAR}
            resize = CustomJS(args=arguments | {"smallest": figures.SMALL_SIDE}, code=RESIZE)
            document.js_on_event(DocumentReady, resize)
            self.cuts.js_on_change("children", resize)
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

    def _parts(self) -> list[Any]:
        """Return the parts of the page, from top to bottom."""
        buttons = []
        for name, step in (("◀ previous bin", -1), ("next bin ▶", 1)):
            button = Button(label=name, width=110, name="previous" if step < 0 else "next")
            button.on_click(partial(self._step, step))
            buttons.append(button)
        whole = Button(label="whole matrix", width=110, name="whole")
        whole.on_click(self._whole)
        controls: list[Any] = [*buttons, whole, self.log, *self.limits]
        if len(self.choices) > 1:
            controls.insert(0, self._choice())
        cuts: list[Any] = [self.along_lag.figure, self.along_age.figure]
        groups = [one.figures for one in self.rows]
        if len(groups) == 1:
            groups = [[part] for part in groups[0]]
        self.maps.children = [column(*group, align="start") for group in groups]
        self.cuts.children = cuts + self.rates + self.intensity
        tables = [
            bin_table(self.bins, self.viewed.shown),
            *map(_parameters, range(99), self.viewed.shown),
        ]
        lines = [_wrapped(controls), self.maps, self.cuts, _wrapped(tables)]
        return [self.heading, *lines, Div(text=self.help), self.marked, self.status]

    def _choice(self) -> Select:
        """Return the list of the fits of a series."""
        names: list[Any] = [printable(name) for name in self.choices]
        select = Select(
            title="fit", options=names, value=printable(self.viewed.title), name="choice"
        )
        select.on_change("value", lambda attr, old, new: self._choose(names.index(new)))
        return select

    def _choose(self, number: int) -> None:
        """Show another fit of the series at the same bin and in the same ranges, where it has them."""
        bin, before = self.bin, self.first
        try:
            content = viewed([*self.choices.values()][number])
        except HomodyneDaskError as e:
            self._say([str(e)])
            return
        scans = [one.scan for one in content.shown]
        for axis in (self.x, self.y):
            _keep_range(axis, figures.common_range(scans))
        self._show(content)
        source = bins_of(content.shown)
        self.bins.selected.indices = []
        self.bins.data = dict(source.data)
        self.bins.selected.indices = [nearest_bin(before, bin, scans[0])]

    def _connect(self) -> None:
        self.bins.selected.on_change("indices", lambda attr, old, new: new and self._bin_chosen())
        self.log.on_change("active", lambda attr, old, new: self._log_chosen())
        for limit in self.limits:
            limit.on_change("value", lambda attr, old, new: self.latest.ask())
        for axis in (self.x, self.y):
            for end in ("start", "end"):
                axis.on_change(end, lambda attr, old, new: self.latest.ask())

    def _log_chosen(self) -> None:
        for n, cut in enumerate((self.along_lag, self.along_age)):
            figures.set_log(cut.figure, n in self.log.active)
        begin, end = _span(self.x)
        least = max(begin, self.first.attrs["frame_time"])
        self.along_age.figure.x_range.update(
            start=least if 1 in self.log.active else begin, end=end
        )
        least = 0.8 * self.first.attrs["frame_time"] if 0 in self.log.active else 0.0
        self.along_lag.figure.x_range.update(start=least)

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
        option = f"--exclude-frames {first}:{stop}"
        self.marked.text = f"<p><code>{option}</code> excludes the marked frames from a fit.</p>"

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
        limits = figures.Limits(*(limit.value for limit in self.limits))
        figures.put_maps(self.rows[n], one.scan, maps, parts, limits)
        means = f"means over {side}×{side} pairs" if side > 1 else "single pairs"
        self.rows[n].resolution.text = f"data: {means}"

    def _clear(self, n: int, parts: Sequence[str]) -> None:
        figures.clear_maps(self.rows[n], parts)
        if "data" in parts:
            self.rows[n].resolution.text = "no data"

    def _show_cuts(self, n: int, cuts: tuple[Line, Line] | None, t1: float, lag: float) -> None:
        self.along_lag.title.text = f"at age t₁ = {t1:.4g} s"
        self.along_age.title.text = f"at lag t₂ − t₁ = {lag:.4g} s"
        for figure, line in zip(
            (self.along_lag, self.along_age), cuts or (None, None), strict=True
        ):
            figures.put_cut(figure, n, line)
            figures.fit_heights(figure)

    def _failed(self, error: Exception) -> None:
        self._say(
            [f"this is a bug in homodyne-dask ({type(error).__name__}: {error}): please report it"]
        )

    def _say(self, notes: Sequence[str]) -> None:
        self.status.text = "".join(
            f"<p>{escape(printable(note))}</p>" for note in dict.fromkeys(notes)
        )


def _wrapped(parts: Sequence[Any]) -> Row:
    """Return parts beside one another, on as many lines as a window needs."""
    return Row(children=[*parts], sizing_mode="stretch_width", styles={"flex-wrap": "wrap"})


def _keep_range(axis: Any, new: Any) -> None:
    """Let an axis have the limits of a new one, and stay where it is as far as they allow."""
    whole = (axis.start, axis.end) == (axis.reset_start, axis.reset_end)
    begin, end = max(axis.start, new.start), min(axis.end, new.end)
    if whole or end - begin < new.min_interval:
        begin, end = new.start, new.end
    limits = {
        key: getattr(new, key) for key in ("bounds", "reset_start", "reset_end", "min_interval")
    }
    axis.update(start=begin, end=end, **limits)


def _parameters(number: int, one: ShownScan) -> Div:
    """Return how a fit ended and its parameters; of a store nothing."""
    if one.result is None:
        return Div(visible=False)
    table = one.result.parameters
    columns = (table[key].values for key in ("param", "value", "stderr", "unit"))
    rows = "".join(
        f"<tr><td>{escape(str(name))}</td><td>{numbers.value_and_error(value, error)}</td>"
        f"<td>{escape(str(unit))}</td></tr>"
        for name, value, error, unit in zip(*columns, strict=True)
    )
    title = f"<b style='color:{COLOURS[number]}'>{escape(printable(one.name))}</b>"
    verdict = escape(printable(one.result.verdict))
    cells = "<style>td{padding:1px 10px 1px 0}</style>"
    return Div(
        text=f"{cells}{title}<p>{verdict}</p><table>{rows}</table>",
        width=TABLE_WIDTH,
        name=f"fit-{number}",
    )


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
