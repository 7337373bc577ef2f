"""Data, model and residual of a few bins as maps, and what the residuals are like."""

from typing import TYPE_CHECKING

import numpy as np

from homodyne_dask.dataset import Scan
from homodyne_dask.report.numbers import count
from homodyne_dask.report.pictures_blocks import View, representative, view_of
from homodyne_dask.report.pictures_model import fitted
from homodyne_dask.report.pictures_style import (
    COLOURS,
    UNKNOWN,
    bin_name,
    figure,
    finish,
    logarithmic,
)
from homodyne_dask.result import FitResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LAG_CELLS = 24
"""Intervals of lag in which residuals are gathered."""


def views(result: FitResult, scan: Scan) -> list[View]:
    """Return representative bins as pictures, read one after the other."""
    model = fitted(result, scan)
    return [view_of(scan, result, model, int(b)) for b in representative(result, scan)]


def maps(result: FitResult, scan: Scan) -> "Figure":
    """Draw data, model and residual of up to four bins, as means over blocks of pairs."""
    shown = views(result, scan)
    picture = figure(10.0, 0.1 + 3.0 * len(shown), layout="compressed")
    grid = picture.subplots(len(shown), 3, squeeze=False, sharex=True, sharey=True)
    reach = _reach(np.concatenate([view.residual.ravel() for view in shown]))
    for axes, view in zip(grid, shown, strict=True):
        _row(picture, axes, view, reach)
        _square(axes[0], f"{bin_name(scan, view.bin)}\ndata{_means(view)}")
    return picture


def _means(view: View) -> str:
    side = view.grid.side
    return f", means over {side}×{side} pairs" if side > 1 else ""


def _row(picture: "Figure", axes: np.ndarray, view: View, reach: float) -> None:
    from matplotlib import colormaps

    low, high = _range(view)
    shades = colormaps["cividis"].with_extremes(bad=UNKNOWN)
    for axis, values in zip(axes, (view.data, view.model), strict=False):
        axis.pcolorfast(view.edges, view.edges, values, cmap=shades, vmin=low, vmax=high)
    _square(axes[1], "model")
    bar = picture.colorbar(axes[0].images[0], ax=list(axes[:2]), extend="both", pad=0.02)
    bar.ax.set_title("c₂", fontsize=10)
    shades = colormaps["RdBu_r"].with_extremes(bad=UNKNOWN)
    image = axes[2].pcolorfast(
        view.edges, view.edges, view.residual, cmap=shades, vmin=-reach, vmax=reach
    )
    _square(axes[2], "residual")
    picture.colorbar(image, ax=axes[2], label="(data − model) / σ", extend="both", pad=0.04)


def _square(axis: "Axes", title: str) -> None:
    axis.set_aspect("equal")
    axis.set_title(title, fontsize=10, loc="left")
    axis.set_xlabel("t₁ [s]")
    axis.set_ylabel("t₂ [s]")
    axis.label_outer()


def _range(view: View) -> tuple[float, float]:
    """Return the colours' range, of data and model alike: all of both but the outer hundredth."""
    known = np.concatenate([v[np.isfinite(v)] for v in (view.data, view.model)])
    if not len(known):
        return 0.0, 1.0
    low, high = np.quantile(known, (0.01, 0.99))
    return float(low), float(high) if high > low else float(low) + 1.0


def _reach(residual: np.ndarray) -> float:
    """Return up to which |residual/σ| colours tell apart: at least 3."""
    known = np.abs(residual[np.isfinite(residual)])
    return max(3.0, float(np.quantile(known, 0.99))) if len(known) else 3.0


def residuals(result: FitResult, scan: Scan) -> "Figure":
    """Draw how residual/σ of the maps' blocks are distributed, and how they go with lag."""
    pairs = [view.upper for view in views(result, scan)]
    lag, residual = (np.concatenate([pair[n] for pair in pairs]) for n in (0, 1))
    picture = figure(8.5, 3.6)
    histogram, by_lag = picture.subplots(1, 2)
    _histogram(histogram, residual)
    _by_lag(by_lag, lag, residual)
    return picture


def _histogram(axis: "Axes", residual: np.ndarray) -> None:
    finish(axis, "residual / σ", "density", "residuals of the maps")
    if not len(residual):
        return
    reach = _reach(residual) * 1.5
    beyond = int((np.abs(residual) > reach).sum())
    label = f"{count(len(residual))} blocks"
    label += f", {count(beyond)} of them further out" if beyond else ""
    edges = np.linspace(-reach, reach, 61)
    axis.hist(residual, edges.tolist(), density=True, color=COLOURS[5], label=label)
    x = np.linspace(-reach, reach, 301)
    normal = np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)
    axis.plot(x, normal, "--", color=COLOURS[6], label="unit normal")
    logarithmic(axis, "y")
    axis.set_ylim(0.3 / len(residual), 10)
    axis.legend(frameon=False, fontsize=8, loc="upper left")


def _by_lag(axis: "Axes", lag: np.ndarray, residual: np.ndarray) -> None:
    finish(axis, "lag t₂ − t₁ [s]", "residual / σ", "residuals by lag")
    axis.axhline(0, color=UNKNOWN, zorder=0)
    axis.axhline(1, color=COLOURS[6], linestyle="--", linewidth=1, label="expected deviation")
    if not len(residual):
        return
    order = np.argsort(lag)
    groups = [g for g in np.array_split(order, LAG_CELLS) if len(g)]
    middle = [lag[g].mean() for g in groups]
    mean = np.array([residual[g].mean() for g in groups])
    deviation = [residual[g].std() for g in groups]
    stderr = [residual[g].std() / np.sqrt(len(g)) for g in groups]
    axis.errorbar(middle, mean, stderr, fmt="o", ms=4, color=COLOURS[0], label="mean")
    axis.plot(middle, deviation, "s", ms=4, color=COLOURS[1], label="deviation")
    low, high = axis.get_ylim()
    axis.set_ylim(low, high + 0.35 * (high - low))
    axis.legend(frameon=False, fontsize=8, loc="upper right", ncols=3)
