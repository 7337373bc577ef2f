"""The figures of the page, of Bokeh, with the functions that put new values into them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from bokeh.models import ColorBar, ColumnDataSource, HoverTool, LinearColorMapper, Range1d, Whisker
from bokeh.models import Span as Mark
from bokeh.palettes import Cividis256, RdBu11, interp_palette
from bokeh.plotting import figure
from jaxtyping import Float, Float32, Int

from homodyne_dask.apps.view.data_window import CellAxis, Span, whole_span
from homodyne_dask.apps.view.maps_and_cuts import Line, Maps
from homodyne_dask.results.views.figures.style import COLOURS, UNKNOWN_COLOUR
from homodyne_dask.store.scan import Scan

SIDE = 400
"""Pixels along a side of a figure, until it grows with the window."""
TOOLS = "pan,wheel_zoom,box_zoom,reset,save"
TITLES = {"data": "data", "model": "model", "residual": "(data − model) / σ"}
CENTRAL = (0.01, 0.99)
"""Quantiles between which the colours of c2 lie."""
LEAST_REACH = 3.0
"""σ that the colours of residuals reach at least."""


def time_range(scan: Scan) -> Any:
    """Return a range over the selected frames, which nobody can leave."""
    begin, end = whole_span(scan)
    return Range1d(
        start=begin, end=end, bounds=(begin, end), reset_start=begin, reset_end=end,
        min_interval=3 * scan.attrs["frame_time"],
    )  # fmt: skip


def new_figure(name: str, x: str | None, y: str | None, **options: Any) -> Any:
    """Return an empty figure; x and y: labels of its axes."""
    fig: Any = figure(
        width=SIDE, height=SIDE, tools=TOOLS, active_scroll="wheel_zoom", name=name, x_axis_label=x,
        y_axis_label=y, toolbar_location="below", min_border_right=20, **options,
    )  # fmt: skip
    fig.toolbar.logo = None
    return fig


@dataclass(frozen=True)
class Map:
    """The map of data, model or residual."""

    figure: Any
    image: ColumnDataSource
    colours: LinearColorMapper


def new_map(part: str, x: Range1d, y: Range1d, colours: LinearColorMapper) -> Map:
    """Return an empty map with the ranges of the other maps; the mouse shows the value of a cell."""
    fig = new_figure(f"{part}-map", "t₁ [s]", "t₂ [s]", x_range=x, y_range=y, title=TITLES[part])
    source = ColumnDataSource({key: [] for key in ("image", "x", "y", "dw", "dh")}, name=part)
    fig.image("image", "x", "y", "dw", "dh", source=source, color_mapper=colours, level="image")
    fig.add_layout(ColorBar(color_mapper=colours, width=12), "right")
    fig.add_tools(HoverTool(tooltips=[("t₁, t₂ [s]", "$x, $y"), (TITLES[part], "@image{0.0000}")]))
    fig.grid.visible = False
    return Map(fig, source, colours)


def new_maps(parts: list[str], x: Range1d, y: Range1d) -> dict[str, Map]:
    """Return empty maps by their parts: data and model have the same colours."""
    c2 = LinearColorMapper(palette=Cividis256, low=0, high=1, nan_color=UNKNOWN_COLOUR)
    residuals = LinearColorMapper(
        palette=interp_palette(RdBu11, 256), low=-3, high=3, nan_color=UNKNOWN_COLOUR
    )
    return {part: new_map(part, x, y, residuals if part == "residual" else c2) for part in parts}


def put_map(into: Map, scan: Scan, maps: Maps, values: Float32[np.ndarray, "rows columns"]) -> None:
    """Show values in the cells of a window."""
    (x0, x1), (y0, y1) = (axis.edges(scan)[[0, -1]] for axis in (maps.columns, maps.rows))
    image = values[evenly(scan, maps.rows)][:, evenly(scan, maps.columns)]
    corner = {"x": [x0], "y": [y0], "dw": [x1 - x0], "dh": [y1 - y0]}
    into.image.data = {"image": [image], **corner}


def set_colours(into: Map, values: Float32[np.ndarray, "rows columns"], residual: bool) -> None:
    """Let the colours of a map follow the values shown; those of residuals are symmetric."""
    known = values[np.isfinite(values)]
    if not len(known):
        return
    low, high = (float(end) for end in np.quantile(known, CENTRAL))
    if residual:
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
    """A cut, with the sources of its averages, of the cells of the map, and of the model."""

    figure: Any
    averages: ColumnDataSource
    view: ColumnDataSource
    model: ColumnDataSource


def cut_figure(name: str, x: str, ends: Span, scale: Any) -> CutFigure:
    """Return an empty figure; ends, scale: of its x axis."""
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


def put_cut(
    cut: CutFigure, line: Line, curve: tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]
) -> None:
    """Show a cut and the curve of the model."""
    c2, error = line.averages.c2, line.averages.stderr
    cut.averages.data = {"x": line.x, "c2": c2, "low": c2 - error, "high": c2 + error}
    cut.view.data = {"x": line.view_x, "c2": line.view_c2}
    cut.model.data = dict(zip(("x", "c2"), curve, strict=True))


def dotted(dimension: Any) -> Mark:
    """Return a line at one time across a figure: 'height' at one t₁, 'width' at one t₂."""
    return Mark(location=0, dimension=dimension, line_color="black", line_dash="dotted")
