"""Data and model of a few bins: maps, cuts at a few ages, and the distribution of the residuals."""

from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from homodyne_dask.results.data.cuts import ages, cut_at_age
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.data.number_format import format_count
from homodyne_dask.results.data.window_means import times_of
from homodyne_dask.results.views.figures import panels as draw
from homodyne_dask.results.views.figures.style import (
    COLOURS,
    GREY,
    MARKERS,
    UNKNOWN_COLOUR,
    bin_name,
)

SIDE, LEFT, RIGHT = 1.36, 0.45, 0.52
"""Inches: side of a map, and what is left and right of it."""
LAG_CELLS = 24
"""Intervals of lag for the statistics of residuals."""
FEWEST = 8
"""Residuals of an interval, at least."""


def draw_maps(view: FitView) -> draw.FitFigure:
    """Draw data, model and residual of up to four bins, as means over cells of pairs."""
    reach = _reach(np.concatenate([each.residual.ravel() for each in view.maps]))
    edges, side, shown = view.axis.edges(view.scan), view.axis.side, dict[str, Any]()
    for each in view.maps:
        known = np.concatenate([v[np.isfinite(v)] for v in (each.data, each.model)])
        low, high = np.quantile(known, (0.01, 0.99)) if len(known) else (0.0, 1.0)
        c2 = "cividis", (low, high if high > low else low + 1.0)
        label = view.scan.label[each.bin]
        for name, values, title, look in (
            ("data", each.data, bin_name(view.scan, each.bin), c2),
            ("model", each.model, "model", c2),
            ("residual", each.residual, "(data − model) / σ", ("RdBu_r", (-reach, reach))),
        ):
            of = partial(_map, edges=edges, values=values, title=title, look=look)
            shown[f"{name} {label}"] = of
    cells = f"data are means over {side}×{side} pairs" if side > 1 else ""
    return draw.page(shown, 3, SIDE, cells, LEFT, RIGHT)


def _map(
    axes: Axes,
    edges: Float[np.ndarray, " edge"],
    values: Float[np.ndarray, "n n"],
    title: str,
    look: tuple[str, tuple[float, float]],
) -> None:
    """Draw values against both times; look: names of the colours, and the values at their ends."""
    draw.label_axes(axes, "t₁ [s]", "t₂ [s]")
    axes.set_box_aspect(1)
    shades = colormaps[look[0]].with_extremes(bad=UNKNOWN_COLOUR)
    image: Any = axes.pcolorfast(edges, edges, values, cmap=shades, clim=look[1])
    image.set_interpolation("nearest")
    axes.set_title(title, fontsize=draw.SMALL, loc="left")
    bar = axes.inset_axes((1.04, 0.0, 0.05, 1.0))
    ticks = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10])
    axes.figure.colorbar(image, cax=bar, extend="both", extendfrac=0.05, ticks=ticks)
    bar.tick_params(labelsize=draw.SMALL)
    bar.ticklabel_format(useOffset=False)


def draw_cuts(view: FitView) -> draw.FitFigure:
    """Draw c2 against lag at up to five ages, and the model, for up to four bins.

    Bars are drawn of tables of g2 only, whose errors are given: those of pairs of frames that would be
    independent are far too small where speckle is correlated.
    """
    bins = map(int, view.shown)
    shown = {f"bin {view.scan.label[b]}": partial(_cuts, view=view, b=b) for b in bins}
    return draw.page(shown, 2, 1.9)


def _cuts(axes: Axes, view: FitView, b: int) -> None:
    scan, read = view.scan, view.cuts
    x, y = ("lag [s]", "g₂") if scan.is_table else ("lag t₂ − t₁ [s]", "c₂")
    draw.label_axes(axes, x, y, bin_name(scan, b), log="x")
    chosen = ages(read, b, scan)
    shades = colormaps["viridis"](np.linspace(0.0, 0.85, max(len(chosen), 1)))
    for age, colour, marker in zip(chosen, shades, MARKERS, strict=False):
        cut = cut_at_age(scan, read, b, age)
        look = {"fmt": marker, "ms": 3, "color": colour}
        look["label"] = None if scan.is_table else f"t₁ = {cut.t1[0]:.3g} s"
        draw.points(axes, cut.lag, cut.c2, cut.stderr if scan.is_table else None, **look)
        axes.plot(*view.curve(b, cut), color=colour, lw=1.2)


def _reach(residual: np.ndarray) -> float:
    known = np.abs(residual[np.isfinite(residual)])
    return max(3.0, float(np.quantile(known, 0.99))) if len(known) else 3.0


def draw_residuals(view: FitView) -> draw.FitFigure:
    """Draw the distribution of residual/σ of the cells of the maps, and its dependence on lag."""
    lag, residual = lags_and_residuals(view)
    shown = {
        "distribution": partial(_histogram, residual=residual),
        "against lag": partial(_by_lag, lag=lag, residual=residual, is_table=view.scan.is_table),
    }
    return draw.page(shown, 2, 1.9)


def lags_and_residuals(view: FitView) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Return lags [s] and residuals of each known cell of the maps once."""
    middle = times_of(view.scan, view.axis.middles)
    lag = np.triu(middle - middle[:, None])
    residual = np.stack([each.residual for each in view.maps])
    known = np.isfinite(residual) & (lag > 0)
    return np.broadcast_to(lag, known.shape)[known], residual[known]


def _histogram(axis: Axes, residual: Float[np.ndarray, " n"]) -> None:
    draw.label_axes(axis, "residual / σ", "density", "residuals", log="y")
    if not len(residual):
        return
    reach = _reach(residual) * 1.5
    beyond = int((np.abs(residual) > reach).sum())
    label = f"{format_count(len(residual))} blocks"
    label += f", {format_count(beyond)} beyond the axis" if beyond else ""
    density, edges = np.histogram(residual, np.linspace(-reach, reach, 61), density=True)
    axis.stairs(density, edges, fill=True, color=COLOURS[5], label=label)
    x = np.linspace(-reach, reach, 301)
    normal = np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)
    axis.plot(x, normal, "--", color=COLOURS[6], lw=1.2, label="unit normal")
    axis.set_ylim(0.3 / len(residual), 1.5)


def _by_lag(
    axis: Axes,
    lag: Float[np.ndarray, " n"],
    residual: Float[np.ndarray, " n"],
    is_table: bool,
) -> None:
    log = "x" if is_table else ""  # whose lags are spread over decades
    draw.label_axes(axis, "lag [s]", "residual / σ", "residuals against lag", log=log)
    axis.axhline(0, color=UNKNOWN_COLOUR, zorder=0)
    axis.axhline(1, color=GREY, linestyle=":", linewidth=1, label="expected std. dev.")
    number = min(LAG_CELLS, len(lag) // FEWEST)
    groups = np.array_split(np.argsort(lag), number) if number else []
    columns = [(lag[g].mean(), residual[g].mean(), residual[g].std()) for g in groups]
    middle, mean, deviation = np.array(columns or np.empty((0, 3))).T
    draw.points(axis, middle, mean, ms=3.5, label="mean")
    axis.plot(middle, deviation, "s", ms=3.5, color=COLOURS[1], label="std. dev.")
