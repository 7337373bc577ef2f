"""Maps of data, model and residual of a few bins, and the distribution of the residuals."""

from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from homodyne_dask.results.data.block_means import BinMap
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.data.number_format import format_count
from homodyne_dask.results.views.figures.picture import FitFigure
from homodyne_dask.results.views.figures.style import (
    COLOURS,
    UNKNOWN_COLOUR,
    bin_name,
    figure,
    label_axes,
    logarithmic,
    panels,
)

COLUMNS = (2.45, 2.45, 0.13, 0.7, 2.45, 0.13)
"""Inches: data, model, their colour bar, its labels, residual, its colour bar."""
MAP, GAP, ABOVE, LEFT, RIGHT, BELOW = 2.45, 0.12, 0.55, 0.75, 0.8, 0.55
"""Inches: side of a map, space between columns, above each map, and around all."""
MAX_TICKS = 5
"""Most intervals between ticks along a map or a colour bar."""
LAG_CELLS = 24
"""Intervals of lag for the statistics of residuals."""


def draw_maps(view: FitView) -> FitFigure:
    """Draw data, model and residual of up to four bins, as means over blocks of pairs."""
    maps, reach = view.maps, _reach(np.concatenate([each.residual.ravel() for each in view.maps]))
    width = LEFT + sum(COLUMNS) + (len(COLUMNS) - 1) * GAP + RIGHT
    height = len(maps) * (ABOVE + MAP) + BELOW
    picture = figure(width, height)
    grid = picture.add_gridspec(
        len(maps),
        len(COLUMNS),
        width_ratios=COLUMNS,
        wspace=GAP * len(COLUMNS) / sum(COLUMNS),
        hspace=ABOVE / MAP,
        left=LEFT / width,
        right=1 - RIGHT / width,
        bottom=BELOW / height,
        top=1 - ABOVE / height,
    )
    image = None
    for row, each in enumerate(maps):
        side = each.grid.side
        means = f", means over {side}×{side} pairs" if side > 1 else ""
        known = np.concatenate([v[np.isfinite(v)] for v in (each.data, each.model)])
        low, high = np.quantile(known, (0.01, 0.99)) if len(known) else (0.0, 1.0)
        ends = low, high if high > low else low + 1.0
        title = f"{bin_name(view.scan, each.bin)}\ndata{means}"
        data, model, residual = (picture.add_subplot(grid[row, at]) for at in (0, 1, 4))
        _image(data, each, each.data, title, "cividis", ends)
        image = _image(model, each, each.model, "model", "cividis", ends)
        _bar(picture.add_subplot(grid[row, 2]), image, 0.05).set_title("c₂", fontsize=10)
        image = _image(residual, each, each.residual, "residual", "RdBu_r", (-reach, reach))
        data.set_ylabel("t₂ [s]")
        data.tick_params(labelleft=True)
        for axis in (data, model, residual) if row == len(maps) - 1 else ():
            axis.set_xlabel("t₁ [s]")
            axis.tick_params(labelbottom=True)
    # the scale of the residuals is the same in all rows
    _bar(picture.add_subplot(grid[:, 5]), image, 0.05 / len(maps)).set_ylabel("(data − model) / σ")
    return picture


def _image(
    axis: Axes,
    at: BinMap,
    values: Float[np.ndarray, "n n"],
    title: str,
    colours: str,
    ends: tuple[float, float],
) -> Any:
    """Draw one map without tick labels, and return its image."""
    shades = colormaps[colours].with_extremes(bad=UNKNOWN_COLOUR)
    drawn: Any = axis.pcolorfast(at.edges, at.edges, values, cmap=shades, clim=ends)
    drawn.set_interpolation("nearest")
    axis.set_title(title, fontsize=10, loc="left")
    axis.locator_params(nbins=MAX_TICKS)
    axis.tick_params(labelleft=False, labelbottom=False)
    return drawn


def _bar(axis: Axes, image: Any, ends: float) -> Axes:
    """Draw the colour bar of an image, with ends beyond its scale, in axes of its own."""
    ticks = MaxNLocator(MAX_TICKS, steps=[1, 2, 2.5, 5, 10])
    axis.figure.colorbar(image, cax=axis, extend="both", extendfrac=ends, ticks=ticks)
    axis.ticklabel_format(useOffset=False)
    return axis


def _reach(residual: np.ndarray) -> float:
    """Return the limit of |residual/σ| on the colour scale: at least 3."""
    known = np.abs(residual[np.isfinite(residual)])
    return max(3.0, float(np.quantile(known, 0.99))) if len(known) else 3.0


def draw_residuals(view: FitView) -> FitFigure:
    """Draw the distribution of residual/σ of the blocks of the maps, and its dependence on lag."""
    pairs = [shown.upper for shown in view.maps]
    lag, residual = (np.concatenate([pair[n] for pair in pairs]) for n in (0, 1))
    picture, (histogram, by_lag) = panels(2, 2, 3.4, 2.7, left=0.9)
    _histogram(histogram, residual)
    _by_lag(by_lag, lag, residual)
    return picture


def _histogram(axis: Axes, residual: np.ndarray) -> None:
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


def _by_lag(axis: Axes, lag: np.ndarray, residual: np.ndarray) -> None:
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
