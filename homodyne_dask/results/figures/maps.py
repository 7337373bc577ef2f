"""Maps of data, model and residual of a few bins, and the distribution of the residuals."""

from typing import TYPE_CHECKING

import numpy as np

from homodyne_dask.results.figures.block_means import BinMap, bin_map, representative
from homodyne_dask.results.figures.rates import fitted_model
from homodyne_dask.results.figures.style import (
    COLOURS,
    UNKNOWN_COLOUR,
    bin_name,
    figure,
    label_axes,
    logarithmic,
)
from homodyne_dask.results.fit_result import FitResult
from homodyne_dask.results.numbers import format_count
from homodyne_dask.store.scan import Scan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL, BAR, GAP, ROW, BELOW = 2.45, 0.13, 0.12, 3.0, 0.55
"""Inches: side of a map, width of a colour bar, space before it, height of a row, space below all."""
LEFT = (0.75, 0.75 + PANEL + 0.3, 0.75 + 2 * PANEL + 0.3 + 1.1)
"""Inches: where the three maps of a row begin."""
WIDTH = LEFT[2] + PANEL + GAP + 0.8
LAG_CELLS = 24
"""Intervals of lag for the statistics of residuals."""


def bin_maps(result: FitResult, scan: Scan) -> list[BinMap]:
    """Return the maps of representative bins; they are read one after the other."""
    model = fitted_model(result, scan)
    return [bin_map(scan, result, model, int(b)) for b in representative(result, scan)]


def draw_maps(result: FitResult, scan: Scan) -> "Figure":
    """Draw data, model and residual of up to four bins, as means over blocks of pairs."""
    shown = bin_maps(result, scan)
    picture = figure(WIDTH, ROW * len(shown) + BELOW, layout=None)
    reach = _reach(np.concatenate([view.residual.ravel() for view in shown]))
    for row, view in enumerate(shown):
        bottom = BELOW + ROW * (len(shown) - 1 - row)
        last = row == len(shown) - 1
        _row(picture, bottom, view, f"{bin_name(scan, view.bin)}\ndata{_means(view)}", reach, last)
    return picture


def _means(view: BinMap) -> str:
    side = view.grid.side
    return f", means over {side}×{side} pairs" if side > 1 else ""


def _row(
    picture: "Figure", bottom: float, view: BinMap, title: str, reach: float, last: bool
) -> None:
    """Draw one bin; axes have fixed positions, which halves the time of automatic layout."""
    low, high = _range(view)
    parts = (
        (view.data, title, "cividis", low, high),
        (view.model, "model", "cividis", low, high),
        (view.residual, "residual", "RdBu_r", -reach, reach),
    )
    for left, (values, name, shades, *ends) in zip(LEFT, parts, strict=True):
        axis = _place(picture, left, bottom, PANEL)
        _map(axis, view.edges, values, shades, *ends)
        axis.set_title(name, fontsize=10, loc="left")
        axis.tick_params(labelleft=left == LEFT[0], labelbottom=last)
        axis.set_xlabel("t₁ [s]" if last else "")
        axis.set_ylabel("t₂ [s]" if left == LEFT[0] else "")
        if left != LEFT[0]:
            bar = _place(picture, left + PANEL + GAP, bottom, BAR)
            picture.colorbar(axis.images[0], cax=bar, extend="both")
            bar.ticklabel_format(useOffset=False)
            bar.set_ylabel("(data − model) / σ" if left == LEFT[2] else "")
            bar.set_title("c₂" if left == LEFT[1] else "", fontsize=10)


def _place(picture: "Figure", left: float, bottom: float, width: float) -> "Axes":
    """Return axes of the height of a panel; positions in inches."""
    w, h = picture.get_size_inches()
    return picture.add_axes((left / w, bottom / h, width / w, PANEL / h))


def _map(axis: "Axes", edges, values, shades: str, low: float, high: float) -> None:
    from matplotlib import colormaps

    shown = colormaps[shades].with_extremes(bad=UNKNOWN_COLOUR)
    axis.pcolorfast(edges, edges, values, cmap=shown, vmin=low, vmax=high)


def _range(view: BinMap) -> tuple[float, float]:
    """Return the colour range of data and model: the central 98 % of both."""
    known = np.concatenate([v[np.isfinite(v)] for v in (view.data, view.model)])
    if not len(known):
        return 0.0, 1.0
    low, high = np.quantile(known, (0.01, 0.99))
    return float(low), float(high) if high > low else float(low) + 1.0


def _reach(residual: np.ndarray) -> float:
    """Return the limit of |residual/σ| on the colour scale: at least 3."""
    known = np.abs(residual[np.isfinite(residual)])
    return max(3.0, float(np.quantile(known, 0.99))) if len(known) else 3.0


def draw_residuals(result: FitResult, scan: Scan) -> "Figure":
    """Draw the distribution of residual/σ of the blocks of the maps, and its dependence on lag."""
    pairs = [view.upper for view in bin_maps(result, scan)]
    lag, residual = (np.concatenate([pair[n] for pair in pairs]) for n in (0, 1))
    picture = figure(8.5, 3.6)
    histogram, by_lag = picture.subplots(1, 2)
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
    label += f", {format_count(beyond)} of them further out" if beyond else ""
    edges = np.linspace(-reach, reach, 61)
    axis.hist(residual, edges.tolist(), density=True, color=COLOURS[5], label=label)
    x = np.linspace(-reach, reach, 301)
    normal = np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)
    axis.plot(x, normal, "--", color=COLOURS[6], label="unit normal")
    logarithmic(axis, "y")
    axis.set_ylim(0.3 / len(residual), 10)
    axis.legend(frameon=False, fontsize=8, loc="upper left")


def _by_lag(axis: "Axes", lag: np.ndarray, residual: np.ndarray) -> None:
    label_axes(axis, "lag t₂ − t₁ [s]", "residual / σ", "residuals against lag")
    axis.axhline(0, color=UNKNOWN_COLOUR, zorder=0)
    axis.axhline(1, color=COLOURS[6], linestyle="--", linewidth=1, label="expected std. dev.")
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
