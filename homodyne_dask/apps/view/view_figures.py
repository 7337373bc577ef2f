"""The figures of the page, of Bokeh, with the functions that put new values into them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from bokeh.models import (
    Band,
    BasicTicker,
    BasicTickFormatter,
    ColorBar,
    ColumnDataSource,
    LinearColorMapper,
    LinearScale,
    LogScale,
    LogTicker,
    LogTickFormatter,
    Range1d,
    Title,
    Whisker,
)
from bokeh.models import Span as Mark
from bokeh.palettes import Cividis256, RdBu11, interp_palette
from bokeh.plotting import figure
from jaxtyping import Float, Float32

from homodyne_dask.apps.view.data_window import CellAxis, Span, times_of, whole_span
from homodyne_dask.apps.view.maps_and_cuts import Line, Maps
from homodyne_dask.apps.view.model_values import RateLine
from homodyne_dask.errors import printable
from homodyne_dask.results.views.figures.style import COLOURS, UNKNOWN_COLOUR
from homodyne_dask.store.scan import Scan

SIDE = 290
"""Pixels along a side of a map."""
SMALL_SIDE = 235
"""The same of several stores or results: two of them stand side by side in a window of 800 pixels."""
BAR = 90
"""Pixels for a colour bar and its labels."""
TOOLS = "pan,wheel_zoom,box_zoom,xbox_select,reset,save"
PARTS = {"data": "data", "model": "model", "residual": "(data − model) / σ"}
CENTRAL = (0.01, 0.99)
"""Quantiles between which the colours of c2 lie."""
LEAST_REACH = 3.0
"""σ that the colours of residuals reach at least."""
RATE_NAMES = {"J": "J [Å²/s]", "gamma_dot": "dγ/dt [1/s]"}


@dataclass(frozen=True)
class MapRow:
    """The maps of one store or result."""

    figures: list[figure]
    images: dict[str, ColumnDataSource]
    colours: dict[str, LinearColorMapper]
    resolution: Title
    """What a cell of the maps is."""


def plain(text: str) -> str:
    """Return text for a title on a canvas, in which Bokeh finds no formula and no control character."""
    return printable(text).replace("$$", "$ $").replace("\\", "\\ ")


def common_range(scans: Sequence[Scan]) -> Range1d:
    """Return a range over the selected frames of all scans, which nobody can leave."""
    begins, ends = zip(*map(whole_span, scans), strict=True)
    begin, end, step = min(begins), max(ends), min(scan.attrs["frame_time"] for scan in scans)
    return Range1d(
        start=begin, end=end, bounds=(begin, end), reset_start=begin, reset_end=end,
        min_interval=3 * step,
    )  # fmt: skip


def map_row(
    parts: Sequence[str],
    x: Range1d,
    y: Range1d,
    marks: tuple[Mark, Mark],
    name: str,
    number: int,
    side: int,
) -> MapRow:
    """Return empty maps of data, model and residual with common ranges.

    name: of the store or result; number: of it, for its colour. side: pixels along a map.
    """
    c2 = LinearColorMapper(palette=Cividis256, low=0, high=1, nan_color=UNKNOWN_COLOUR)
    residuals = LinearColorMapper(
        palette=interp_palette(RdBu11, 256), low=-3, high=3, nan_color=UNKNOWN_COLOUR
    )
    colours = {"data": c2, "model": c2, "residual": residuals}
    images = {part: ColumnDataSource(_no_image(), name=f"{part}-{number}") for part in parts}
    named = Title(text=plain(name), text_color=COLOURS[number], name=f"row-{number}")
    titles = {part: Title(text=PARTS[part], text_font_style="normal") for part in parts}
    titles["data"].name = f"resolution-{number}"
    made: list[figure] = []
    for n, part in enumerate(parts):
        barred = part == parts[-1] or part == "model"
        fig = figure(
            width=side + 60 + BAR * barred, height=side + 80, x_range=x, y_range=y, tools=TOOLS,
            active_scroll="wheel_zoom", x_axis_label="t₁ [s]", y_axis_label="t₂ [s]" if n == 0 else None,
            name=f"{part}-map-{number}", frame_width=side, frame_height=side,
            toolbar_location="below" if n == 0 else None,
        )  # fmt: skip
        image: Any = fig.image  # takes a mapper, too
        image(
            "image", "x", "y", "dw", "dh", source=images[part], color_mapper=colours[part],
            level="image",
        )  # fmt: skip
        fig.add_layout(titles[part], "above")
        fig.add_layout(named if n == 0 else Title(text=" "), "above")
        if barred:
            fig.add_layout(ColorBar(color_mapper=colours[part], width=12), "right")
        for mark in marks:
            fig.add_layout(mark)
        fig.grid.visible = False
        made.append(fig)
    return MapRow(made, images, colours, titles["data"])


def _no_image() -> dict[str, Any]:
    return {"image": [], "x": [], "y": [], "dw": [], "dh": []}


def clear_maps(row: MapRow, parts: Sequence[str]) -> None:
    """Show nothing in some of the maps."""
    for part in set(parts) & row.images.keys():
        row.images[part].data = _no_image()


@dataclass(frozen=True)
class Limits:
    """The colours of the maps that are given by the user; None chooses them by the values shown."""

    low: float | None = None
    high: float | None = None
    reach: float | None = None
    """Of residuals, in σ."""


def put_maps(
    row: MapRow, scan: Scan, maps: Maps, parts: Sequence[str], limits: Limits = Limits()
) -> None:
    """Show some of the maps; the others stay as they are."""
    for part in parts:
        values, source = getattr(maps, part), row.images[part]
        (x0, x1), (y0, y1) = (axis.ends(scan) for axis in (maps.columns, maps.rows))
        image = values[evenly(scan, maps.rows)][:, evenly(scan, maps.columns)]
        corner = {"x": [x0], "y": [y0], "dw": [x1 - x0], "dh": [y1 - y0]}
        source.update(data={"image": [image], **corner})
        _colour(row.colours[part], part, values, limits)


def evenly(scan: Scan, axis: CellAxis) -> np.ndarray:
    """Return the cells at equal steps of time, which an image has: all once where frames are even."""
    edges = times_of(scan, np.append(axis.cells, axis.first + axis.number) * axis.side - 0.5)
    steps = np.diff(edges)
    if np.ptp(steps) < 1e-3 * steps.mean():
        return np.arange(axis.number)
    middles = np.linspace(edges[0], edges[-1], 4 * axis.number + 1)[:-1] + np.ptp(edges) / (
        8 * axis.number
    )
    return np.searchsorted(edges, middles, side="right") - 1


def _colour(
    mapper: LinearColorMapper, part: str, values: Float32[np.ndarray, "r c"], limits: Limits
) -> None:
    known = values[np.isfinite(values)]
    if not len(known) or part == "model":  # has the colours of the data
        return
    if part == "residual":
        reach = limits.reach or max(LEAST_REACH, float(np.quantile(np.abs(known), CENTRAL[1])))
        mapper.update(low=-reach, high=reach)
        return
    low, high = (float(end) for end in np.quantile(known, CENTRAL))
    low, high = (
        given if given is not None else found
        for given, found in ((limits.low, low), (limits.high, high))
    )
    mapper.update(low=low, high=high if high > low else low + 1)


@dataclass(frozen=True)
class CutFigure:
    """A cut of all stores and results."""

    figure: figure
    sources: tuple[tuple[ColumnDataSource, ColumnDataSource, ColumnDataSource], ...]
    """Of each: averages, cells in view, model."""
    title: Title


def cut_figure(name: str, x: str, ends: Span, log: bool, number: int) -> CutFigure:
    """Return an empty figure of the cuts of so many stores and results; ends: of its x axis."""
    title = Title(text="", name=f"{name}-title")
    fig = figure(
        width=SIDE + 60, height=SIDE, tools=TOOLS, active_scroll="wheel_zoom", name=name,
        x_axis_type="log" if log else "linear", x_axis_label=x, y_axis_label="c₂",
        x_range=Range1d(start=ends[0], end=ends[1]), y_range=Range1d(start=0, end=1),
        toolbar_location="below",
    )  # fmt: skip
    fig.add_layout(title, "above")
    sources = []
    for n in range(number):
        colour = COLOURS[n]
        averages, view, model = (
            ColumnDataSource({"x": [], "c2": [], "low": [], "high": []}, name=f"{name}-{part}-{n}")
            for part in ("averages", "view", "model")
        )
        fig.scatter("x", "c2", source=view, size=3, color=colour, alpha=0.35)
        fig.add_layout(
            Whisker(base="x", lower="low", upper="high", source=averages, line_color=colour,
                    upper_head=None, lower_head=None)
        )  # fmt: skip
        fig.scatter("x", "c2", source=averages, size=6, color=colour, fill_color="white")
        fig.line("x", "c2", source=model, color=colour, line_width=2)
        sources.append((averages, view, model))
    return CutFigure(fig, tuple(sources), title)


def set_log(fig: figure, log: bool) -> None:
    """Make the x axis of a figure logarithmic or linear."""
    fig.x_scale = LogScale() if log else LinearScale()
    (axis,) = fig.xaxis
    axis.ticker = LogTicker() if log else BasicTicker()
    axis.formatter = LogTickFormatter() if log else BasicTickFormatter()
    for grid in fig.xgrid:
        grid.ticker = axis.ticker


def fit_heights(cut: CutFigure) -> None:
    """Make all averages visible, with their errors."""
    lows, highs = (
        np.concatenate([averages.data[key] for averages, _, _ in cut.sources])
        for key in ("low", "high")
    )
    if len(lows):
        margin = 0.06 * (highs.max() - lows.min())
        cut.figure.y_range.update(start=lows.min() - margin, end=highs.max() + margin)


def put_cut(cut: CutFigure, n: int, line: Line | None) -> None:
    """Show the cut of the n-th store or result; None empties it."""
    empty = np.empty(0)
    parts = [(empty, empty, empty)] * 3
    if line is not None:
        none_v, none_m = np.zeros(len(line.view_x)), np.zeros(len(line.model_x))
        parts = [
            (line.x, line.c2, line.stderr),
            (line.view_x, line.view_c2, none_v),
            (line.model_x, line.model_c2, none_m),
        ]
    for source, (x, c2, error) in zip(cut.sources[n], parts, strict=True):
        source.data = {"x": x, "c2": c2, "low": c2 - error, "high": c2 + error}


def rate_figures(
    rates: Sequence[Mapping[str, RateLine]], mark: Mark, unknown_q: bool
) -> list[figure]:
    """Return J and γ̇ against time of all results, with bands; none where no result has rates."""
    made = []
    for rate, label in RATE_NAMES.items():
        of = [(n, lines[rate]) for n, lines in enumerate(rates) if rate in lines]
        if not of:
            continue
        label = "q²J [1/s]" if unknown_q and rate == "J" else label
        x, y = (
            _axis(np.concatenate([getattr(line, key) for _, line in of]))
            for key in ("time", "value")
        )
        fig = figure(
            width=SIDE + 60, height=SIDE, tools=TOOLS, active_scroll="wheel_zoom", name=rate,
            x_axis_type=x, y_axis_type=y, x_axis_label="t [s]", y_axis_label=label, toolbar_location="below",
        )  # fmt: skip
        low, high = _limits([line for _, line in of], y == "log")
        fig.y_range.update(start=low, end=high)
        for n, line in of:
            _rate(fig, line, low, COLOURS[n])
        fig.add_layout(mark)
        words = {line.errors for _, line in of} - {"none"}
        bands = (
            f"bands: 68 % and 95 %, {' or '.join(sorted(words))} errors" if words else "no errors"
        )
        fig.add_layout(Title(text=bands, text_font_style="normal", text_font_size="8pt"), "above")
        made.append(fig)
    return made


def _axis(values: Float[np.ndarray, " n"]) -> Any:
    wide = values.min() > 0 and values.max() > 10 * values.min()
    return "log" if wide else "linear"


def _rate(fig: figure, line: RateLine, lowest: float, colour: str) -> None:
    """Draw a rate; edges of bands below the lowest value of the axis lie outside, but not at log 0."""
    for (low, high), strength in zip(line.bands[::-1], (0.15, 0.3), strict=False):
        source = ColumnDataSource(
            {"x": line.time, "low": np.maximum(low, lowest - abs(lowest) / 2), "high": high}
        )
        fig.add_layout(
            Band(base="x", lower="low", upper="high", source=source, fill_color=colour,
                 fill_alpha=strength, line_alpha=0.0)
        )  # fmt: skip
    fig.line(line.time, line.value, color=colour, line_width=2)


def _limits(lines: Sequence[RateLine], log: bool) -> tuple[float, float]:
    """Return limits around the rates and their bands, but at most three times the range of the rates."""
    scale, back = (np.log10, lambda v: 10.0**v) if log else (np.asarray, float)
    values = scale(np.concatenate([line.value for line in lines]))
    span = float(np.ptp(values)) or abs(float(values[0])) or 1.0
    edges = [edge for line in lines for band in line.bands for edge in band]
    with np.errstate(divide="ignore", invalid="ignore"):
        bands = scale(np.concatenate(edges)) if edges else values
    bands = bands[np.isfinite(bands)]
    shown = np.concatenate([values, np.clip(bands, values.min() - span, values.max() + span)])
    margin = 0.06 * span
    return float(back(shown.min() - margin)), float(back(shown.max() + margin))
