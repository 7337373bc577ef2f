"""Data and model of a few bins: maps, cuts at a few ages, and the distribution of the residuals."""

from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from homodyne_dask.results.data.cuts import ages, cut_at_age
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.data.number_format import format_count
from homodyne_dask.results.views.figures import panels as draw
from homodyne_dask.results.views.figures.style import COLOURS, MARKERS, UNKNOWN_COLOUR, bin_name

SIDE, LEFT = 2.45, 0.8
"""Inches: side of a map, and of the labels left of it."""
LAG_CELLS = 24
"""Intervals of lag for the statistics of residuals."""


def draw_maps(view: FitView) -> draw.FitFigure:
    """Draw data, model and residual of up to four bins, as means over cells of pairs."""
    margins = (LEFT, 0.75, draw.FOOT + 0.55, 0.35)
    picture, grid = draw.grid_of(len(view.maps), 3, SIDE, SIDE, margins, (0.75, 0.4))
    reach = _reach(np.concatenate([each.residual.ravel() for each in view.maps]))
    edges, side = view.axis.edges(view.scan), view.axis.side
    for row, each in enumerate(view.maps):
        known = np.concatenate([v[np.isfinite(v)] for v in (each.data, each.model)])
        low, high = np.quantile(known, (0.01, 0.99)) if len(known) else (0.0, 1.0)
        c2 = "cividis", (low, high if high > low else low + 1.0)
        for column, (values, title, (colours, ends)) in enumerate(
            (
                (each.data, bin_name(view.scan, each.bin), c2),
                (each.model, "model", c2),
                (each.residual, "(data − model) / σ", ("RdBu_r", (-reach, reach))),
            )
        ):
            axis = picture.add_subplot(grid[row, column])
            shades = colormaps[colours].with_extremes(bad=UNKNOWN_COLOUR)
            image: Any = axis.pcolorfast(edges, edges, values, cmap=shades, clim=ends)
            image.set_interpolation("nearest")
            axis.set_title(title, fontsize=10, loc="left")
            axis.locator_params(nbins=5)
            axis.tick_params(labelleft=column == 0, labelbottom=row == len(view.maps) - 1)
            if column:
                bar = axis.inset_axes((1.04, 0.0, 0.05, 1.0))
                ticks = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10])
                picture.colorbar(image, cax=bar, extend="both", extendfrac=0.05, ticks=ticks)
                bar.ticklabel_format(useOffset=False)
            else:
                axis.set_ylabel("t₂ [s]")
            if row == len(view.maps) - 1:
                axis.set_xlabel("t₁ [s]")
    cells = f", means over {side}×{side} pairs" if side > 1 else ""
    draw.foot_line(picture, f"left: data{cells}, in the colours of the model")
    return picture


def draw_cuts(view: FitView) -> draw.FitFigure:
    """Draw c2 against lag at up to five ages, with error bars and the model, for up to four bins."""
    scan, read = view.scan, view.cuts
    picture, axes = draw.panels(len(view.shown), 2, 3.8, 2.45, left=0.9)
    for axis, b in zip(axes, map(int, view.shown), strict=True):
        draw.label_axes(axis, "lag t₂ − t₁ [s]", "c₂", bin_name(scan, b), log="x")
        chosen = ages(read, b, scan)
        shades = colormaps["viridis"](np.linspace(0.0, 0.85, max(len(chosen), 1)))
        for age, colour, marker in zip(chosen, shades, MARKERS, strict=False):
            cut = cut_at_age(scan, read, b, age)
            look = {"fmt": marker, "ms": 3.5, "color": colour, "label": f"t₁ = {cut.t1[0]:.3g} s"}
            draw.points(axis, cut.lag, cut.c2, cut.stderr, **look)
            axis.plot(*view.curve(b, cut), color=colour)
        if chosen:
            draw.legend(axis, loc="upper right")
    return picture


def _reach(residual: np.ndarray) -> float:
    """Return the limit of |residual/σ| on the colour scale: at least 3."""
    known = np.abs(residual[np.isfinite(residual)])
    return max(3.0, float(np.quantile(known, 0.99))) if len(known) else 3.0


def draw_residuals(view: FitView) -> draw.FitFigure:
    """Draw the distribution of residual/σ of the cells of the maps, and its dependence on lag."""
    lag, residual = lags_and_residuals(view)
    picture, (histogram, by_lag) = draw.panels(2, 2, 3.4, 2.7, left=0.9)
    draw.label_axes(histogram, "residual / σ", "density", "residuals of the maps", log="y")
    draw.label_axes(by_lag, "lag t₂ − t₁ [s]", "residual / σ", "residuals against lag")
    by_lag.axhline(0, color=UNKNOWN_COLOUR, zorder=0)
    by_lag.axhline(1, color=COLOURS[6], linestyle="--", linewidth=1, label="expected")
    if len(residual):
        _histogram(histogram, residual)
        _by_lag(by_lag, lag, residual)
    return picture


def lags_and_residuals(view: FitView) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Return lags [s] and residuals of each known cell of the maps once."""
    middle = np.convolve(view.axis.edges(view.scan), [0.5, 0.5], "valid")
    lag = np.triu(middle - middle[:, None])
    residual = np.stack([each.residual for each in view.maps])
    known = np.isfinite(residual) & (lag > 0)
    return np.broadcast_to(lag, known.shape)[known], residual[known]


def _histogram(axis: Axes, residual: Float[np.ndarray, " n"]) -> None:
    reach = _reach(residual) * 1.5
    beyond = int((np.abs(residual) > reach).sum())
    label = f"{format_count(len(residual))} blocks"
    label += f", {format_count(beyond)} beyond the axis" if beyond else ""
    look = {"density": True, "histtype": "stepfilled", "color": COLOURS[5], "label": label}
    axis.hist(residual, np.linspace(-reach, reach, 61).tolist(), **look)
    x = np.linspace(-reach, reach, 301)
    normal = np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)
    axis.plot(x, normal, "--", color=COLOURS[6], label="unit normal")
    axis.set_ylim(0.3 / len(residual), 10)
    draw.legend(axis, loc="upper left")


def _by_lag(axis: Axes, lag: Float[np.ndarray, " n"], residual: Float[np.ndarray, " n"]) -> None:
    groups = [g for g in np.array_split(np.argsort(lag), LAG_CELLS) if len(g)]
    columns = [(lag[g].mean(), residual[g].mean(), residual[g].std(), len(g)) for g in groups]
    middle, mean, deviation, number = np.array(columns).T
    draw.points(axis, middle, mean, deviation / np.sqrt(number), ms=4, label="mean")
    axis.plot(middle, deviation, "s", ms=4, color=COLOURS[1], label="std. dev.")
    low, high = axis.get_ylim()
    axis.set_ylim(low, high + 0.35 * (high - low))
    draw.legend(axis, loc="upper right", ncols=3)
