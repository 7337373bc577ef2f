"""Maps of data, model and residual of a few bins, and the distribution of the residuals."""

from typing import TYPE_CHECKING, Any

import numpy as np

from homodyne_dask.results.data.block_means import BinMap
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.data.number_format import format_count
from homodyne_dask.results.views.figures.style import (
    COLOURS,
    UNKNOWN_COLOUR,
    bin_name,
    figure,
    label_axes,
    logarithmic,
    panels,
    place,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable

    from homodyne_dask.results.views.figures.picture import FitFigure

PANEL, BAR, GAP, ROW, BELOW = 2.45, 0.13, 0.12, 3.0, 0.55
"""Inches: side of a map, width of a colour bar, space before it, height of a row, space below all."""
LEFT = (0.75, 0.75 + PANEL + 0.3, 0.75 + 2 * PANEL + 0.3 + 1.1)
"""Inches: where the three maps of a row begin."""
WIDTH = LEFT[2] + PANEL + GAP + 0.8
MAX_TICKS = 5
"""Most intervals between ticks along a map or a colour bar."""
LAG_CELLS = 24
"""Intervals of lag for the statistics of residuals."""


def draw_maps(view: FitView) -> "FitFigure":
    """Draw data, model and residual of up to four bins, as means over blocks of pairs."""
    maps = view.maps
    picture = figure(WIDTH, ROW * len(maps) + BELOW)
    reach = _reach(np.concatenate([shown.residual.ravel() for shown in maps]))
    for row, shown in enumerate(maps):
        last = row == len(maps) - 1
        bottom = BELOW + ROW * (len(maps) - 1 - row)
        side = shown.grid.side
        means = f", means over {side}×{side} pairs" if side > 1 else ""
        title = f"{bin_name(view.scan, shown.bin)}\ndata{means}"
        image, residuals = _row(picture, bottom, shown, title, reach, last)
        _bar(picture, image, LEFT[1], bottom, PANEL).set_title("c₂", fontsize=10)
        if last:  # the scale of the residuals is the same in all rows
            height = ROW * (len(maps) - 1) + PANEL
            _bar(picture, residuals, LEFT[2], bottom, height).set_ylabel("(data − model) / σ")
    return picture


def _row(
    picture: "FitFigure", bottom: float, shown: BinMap, title: str, reach: float, last: bool
) -> "list[ScalarMappable]":
    """Draw one bin; return the images of model and residual."""
    from matplotlib import colormaps

    known = np.concatenate([v[np.isfinite(v)] for v in (shown.data, shown.model)])
    low, high = np.quantile(known, (0.01, 0.99)) if len(known) else (0.0, 1.0)
    high, images = high if high > low else low + 1.0, []
    parts = (
        (shown.data, title, "cividis", low, high),
        (shown.model, "model", "cividis", low, high),
        (shown.residual, "residual", "RdBu_r", -reach, reach),
    )
    for left, (values, name, shades, lowest, highest) in zip(LEFT, parts, strict=True):
        axis = place(picture, left, bottom, PANEL, PANEL)
        colours = colormaps[shades].with_extremes(bad=UNKNOWN_COLOUR)
        image: Any = axis.pcolorfast(
            shown.edges, shown.edges, values, cmap=colours, vmin=lowest, vmax=highest
        )
        image.set_interpolation("nearest")
        images.append(image)
        axis.set_title(name, fontsize=10, loc="left")
        axis.locator_params(nbins=MAX_TICKS)
        axis.tick_params(labelleft=left == LEFT[0], labelbottom=last)
        axis.set_xlabel("t₁ [s]" if last else "")
        axis.set_ylabel("t₂ [s]" if left == LEFT[0] else "")
    return images[1:]


def _bar(
    picture: "FitFigure", image: "ScalarMappable", left: float, bottom: float, height: float
) -> "Axes":
    """Draw the colour bar of an image right of its panel and return its axes."""
    from matplotlib.ticker import MaxNLocator

    bar = place(picture, left + PANEL + GAP, bottom, BAR, height)
    ticks = MaxNLocator(MAX_TICKS, steps=[1, 2, 2.5, 5, 10])
    ends = 0.05 * PANEL / height
    picture.colorbar(image, cax=bar, extend="both", extendfrac=ends, ticks=ticks)
    bar.ticklabel_format(useOffset=False)
    return bar


def _reach(residual: np.ndarray) -> float:
    """Return the limit of |residual/σ| on the colour scale: at least 3."""
    known = np.abs(residual[np.isfinite(residual)])
    return max(3.0, float(np.quantile(known, 0.99))) if len(known) else 3.0


def draw_residuals(view: FitView) -> "FitFigure":
    """Draw the distribution of residual/σ of the blocks of the maps, and its dependence on lag."""
    pairs = [shown.upper for shown in view.maps]
    lag, residual = (np.concatenate([pair[n] for pair in pairs]) for n in (0, 1))
    picture, (histogram, by_lag) = panels(2, 2, 3.4, 2.7, left=0.9)
    _histogram(histogram, residual)
    _by_lag(by_lag, lag, residual)
    return picture


def _histogram(axis: "Axes", residual: np.ndarray) -> None:
    label_axes(axis, "residual / σ", "density", "residuals of the maps")
    if not len(residual):
        return
    reach = _reach(residual) * 1.5
    beyond = int((np.abs(residual) > reach).sum())
    label = f"{format_count(len(residual))} blocks"
    label += f", {format_count(beyond)} beyond the axis" if beyond else ""
    edges = np.linspace(-reach, reach, 61)
    axis.hist(
        residual, edges.tolist(), density=True, histtype="stepfilled", color=COLOURS[5], label=label
    )
    x = np.linspace(-reach, reach, 301)
    normal = np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)
    axis.plot(x, normal, "--", color=COLOURS[6], label="unit normal")
    logarithmic(axis, "y")
    axis.set_ylim(0.3 / len(residual), 10)
    axis.legend(frameon=False, fontsize=8, loc="upper left")


def _by_lag(axis: "Axes", lag: np.ndarray, residual: np.ndarray) -> None:
    label_axes(axis, "lag t₂ − t₁ [s]", "residual / σ", "residuals against lag")
    axis.axhline(0, color=UNKNOWN_COLOUR, zorder=0)
    axis.axhline(1, color=COLOURS[6], linestyle="--", linewidth=1, label="expected")
    if not len(residual):
        return
    order = np.argsort(lag)
    groups = [g for g in np.array_split(order, LAG_CELLS) if len(g)]
    middle = [lag[g].mean() for g in groups]
    mean = np.array([residual[g].mean() for g in groups])
    deviation = [residual[g].std() for g in groups]
    stderr = [residual[g].std() / np.sqrt(len(g)) for g in groups]
    axis.errorbar(middle, mean, stderr, fmt="o", ms=4, color=COLOURS[0], label="mean")
    axis.plot(middle, deviation, "s", ms=4, color=COLOURS[1], label="std. dev.")
    low, high = axis.get_ylim()
    axis.set_ylim(low, high + 0.35 * (high - low))
    axis.legend(frameon=False, fontsize=8, loc="upper right", ncols=3)
