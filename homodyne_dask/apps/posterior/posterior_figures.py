"""Figures of a posterior: densities of each parameter and of each pair, and rates beside those of the fit."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from scipy.ndimage import gaussian_filter
from xarray import DataTree

from homodyne_dask.apps.posterior.arviz_tree import QUANTILES, free_names, theta_in
from homodyne_dask.errors import OptionError
from homodyne_dask.results.data.fitted_parameters import truth_of
from homodyne_dask.results.result_classes import FitResult
from homodyne_dask.results.views import panels as draw
from homodyne_dask.results.views.fit_figures import AXES, HEIGHT
from homodyne_dask.results.views.style import COLOURS, plain_label, power_of_ten, symbol

MOST = 10
"""Most parameters that are drawn, the first ones."""
SIDE, GAP, LEFT, RIGHT, BELOW, ABOVE = 1.2, 0.08, 0.85, 0.1, 0.65, 0.15
"""Inches: of a panel at most, between two, and around all."""
WITH_CORNER = 4
"""Parameters from which the corner above the panels has room for the legend."""
CELLS = 40
"""Cells of a density along one axis."""
MARGIN = 0.12
"""Share of an axis at both ends without ticks."""
SHARES = (0.95, 0.68)
FIT, TRUTH = COLOURS[1], COLOURS[2]


@dataclass
class PosteriorPlots:
    """The figures of a posterior, `posterior.plot`, as matplotlib Figures; ax: as in `Plots`."""

    result: FitResult
    tree: DataTree

    def corner(self, ax: Axes | None = None) -> draw.FitFigure:
        """Densities of each parameter and each pair, with 68 and 95 % contours and the fit's Gaussian."""
        return draw_corner(self.result, self.tree, ax)

    def rates(self, ax: Axes | None = None, panel: str | None = None) -> draw.FitFigure:
        """J(t), shear rate and strain with 68 and 95 % bands; below, their differences from the fit."""
        group = self.tree["posterior"].dataset
        if "J" not in group:
            raise OptionError(f"{self.result.config['model']} has no rates J and γ̇ to draw")
        rates = {
            name: partial(_draw_rate, tree=self.tree, name=name) for name in AXES if name in group
        }
        away = {f"{name} difference": partial(rate, away=True) for name, rate in rates.items()}
        words = "bands: 68 % and 95 % of the draws; dotted: 95 % band of the fit; "
        words = plain_label(words + self.tree.attrs["adjust_note"])
        return draw.Page(rates | away, len(rates), HEIGHT, words).figure(ax, panel)


class _Drawn(NamedTuple):
    """One parameter, divided by the power of ten in its label."""

    label: str
    draws: Float[np.ndarray, " draw"]
    edges: Float[np.ndarray, " edge"]
    value: float
    stderr: float
    truth: float
    """NaN where it is not known."""

    @property
    def middles(self) -> Float[np.ndarray, " cell"]:
        return 0.5 * (self.edges[1:] + self.edges[:-1])


def draw_corner(result: FitResult, tree: DataTree, ax: Axes | None = None) -> draw.FitFigure:
    """Draw densities; lines are the values of the fit, and true ones if known."""
    theta = theta_in(result, tree["posterior"].dataset)
    places = [*free_names(result).values()][:MOST]
    panels = [_drawn(result, theta[:, place], place) for place in places]
    n, width = len(panels), draw.PAGE
    side = min(SIDE, (width - LEFT - RIGHT - (n - 1) * GAP) / n)
    inside, space = n * side + (n - 1) * GAP, GAP / side
    picture = draw.figure(width, ax)
    grid = picture.add_gridspec(n, n, wspace=space, hspace=space)
    for row, column in np.argwhere(np.tri(n)).tolist():
        axes, across, up = picture.add_subplot(grid[row, column]), panels[column], panels[row]
        axes.tick_params(labelsize=7, labelbottom=row == n - 1, labelleft=column == 0 < row)
        if row == column:
            _marginal(axes, up)
        else:
            _pair(axes, across, up)
        axes.set_xticks(_ticks(across.edges))
        axes.set_xlim(*across.edges[[0, -1]])
        _lines(axes.axvline, across)
        if row == n - 1:
            axes.set_xlabel(across.label, fontsize=draw.SMALL)
        if column == 0 < row:
            axes.set_ylabel(up.label, fontsize=draw.SMALL, va="center")
            axes.yaxis.set_label_coords(-(LEFT - 0.25) / side, 0.5)
    note = plain_label(tree.attrs["adjust_note"])
    height_of_panels, has_corner = BELOW + inside + ABOVE, n >= WITH_CORNER
    foot, height = draw.footer(picture, width, height_of_panels, note, has_corner)
    ends = {"left": LEFT / width, "right": (LEFT + inside) / width}
    grid.update(**ends, bottom=(BELOW + foot) / height, top=1 - ABOVE / height)
    for axes in picture.axes:
        if (place := axes.get_subplotspec()) is not None:
            axes.set_position(place.get_position(picture))
    return picture


def _drawn(result: FitResult, draws: Float[np.ndarray, " draw"], place: int) -> _Drawn:
    row = result.parameters.isel(param=place)
    low, high = np.quantile(draws, (0.005, 0.995))
    margin = 0.15 * (high - low) or 1.0
    ends = np.array([max(low - margin, draws.min()), min(high + margin, draws.max())])
    if ends[0] == ends[1]:
        ends += [-margin, margin]
    largest = np.abs(ends).max()
    exponent = int(np.floor(np.log10(largest))) if largest > 0 else 0
    scale = 1.0 if -2 <= exponent < 4 else 10.0**exponent
    unit = [power_of_ten(exponent)] * (scale != 1) + [row["unit"].item()]
    name = row["param"].item()
    numbers = row["value"].item(), row["stderr"].item(), (truth_of(result) or {}).get(name, np.nan)
    return _Drawn(
        plain_label(f"{symbol(name)}\n", " ".join(filter(None, unit))),
        draws / scale,
        np.linspace(ends[0], ends[1], CELLS + 1) / scale,
        *(number / scale for number in numbers),
    )


def _marginal(axes: Axes, param: _Drawn) -> None:
    counts, _ = np.histogram(param.draws, param.edges)
    density = gaussian_filter(counts.astype(float), 1.0, mode="nearest")
    density, look = density / density.max(), {"color": COLOURS[0], "lw": 1.2}
    axes.fill_between(param.middles, density, color=COLOURS[0], alpha=0.35, lw=0)
    axes.plot(param.middles, density, label="posterior: density, regions of 68 % and 95 %", **look)
    if np.isfinite(param.stderr) and param.stderr > 0:
        x = np.linspace(param.edges[0], param.edges[-1], 200)
        axes.plot(x, np.exp(-0.5 * ((x - param.value) / param.stderr) ** 2), color=FIT, lw=1.2)
    axes.set_ylim(0, 1.08)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_yticks([])


def _pair(axes: Axes, x: _Drawn, y: _Drawn) -> None:
    counts, _, _ = np.histogram2d(x.draws, y.draws, [x.edges, y.edges])
    density = gaussian_filter(counts, 2.0, mode="nearest").T
    levels = levels_holding(density, SHARES)
    if 0 < levels[0] < levels[1] < density.max():
        filled = [*levels, density.max()]
        axes.contourf(x.middles, y.middles, density, filled, colors=["#b8d4e8", "#6fa8d0"])
        axes.contour(x.middles, y.middles, density, levels, colors=COLOURS[0], linewidths=0.8)
    _lines(axes.axhline, y)
    axes.set_ylim(*y.edges[[0, -1]])
    axes.set_yticks(_ticks(y.edges))


def levels_holding(density: Float[np.ndarray, "n m"], shares: tuple[float, ...]) -> list[float]:
    """Return the densities above which these shares of all lie."""
    falling = np.sort(density, axis=None)[::-1]
    share_above = np.cumsum(falling) / falling.sum()
    return [float(falling[np.searchsorted(share_above, share)]) for share in shares]


def _lines(line: Callable[..., object], param: _Drawn) -> None:
    line(param.value, color=FIT, linewidth=0.8, label="fit")
    if np.isfinite(param.truth):
        line(
            param.truth, color=TRUTH, linewidth=1.0, linestyle="--", label="truth of simulated data"
        )


def _ticks(edges: Float[np.ndarray, " edge"]) -> Float[np.ndarray, " tick"]:
    """Return one or two round numbers, far enough from the ends for their labels."""
    low, high = edges[0] + MARGIN * np.ptp(edges), edges[-1] - MARGIN * np.ptp(edges)
    ticks = MaxNLocator(2, steps=[1, 2, 5, 10]).tick_values(low, high)
    return np.unique(ticks[(ticks >= low) & (ticks <= high)][[0, -1]])


def _draw_rate(axis: Axes, tree: DataTree, name: str, away: bool = False) -> None:
    """Draw a rate, or its difference from the fit, in per cent where no value is 0."""
    rate, constant = tree["posterior"].dataset[name], tree["constant_data"].dataset
    t, unit, (y, title) = rate["age"].values, rate.attrs["units"], AXES[name]
    ends = [constant[f"{name}_fit{end}"].values for end in ("", "_low_95", "_high_95")]
    curves = np.vstack([np.quantile(rate.values.reshape(-1, len(t)), QUANTILES, axis=0), *ends])
    if name == "strain":  # it begins at 0
        t, curves = t[1:], curves[:, 1:]
    fit, words = curves[5], (y.replace("Å²/s", unit), title)
    if away:
        relative = bool((fit > 0).all() or (fit < 0).all())
        curves = (curves - fit) * (100 / np.abs(fit) if relative else 1.0)
        words = "difference [%]" if relative else f"difference [{unit}]", ""
    draw.label_axes(axis, "t [s]", *words)
    low_95, low_68, median, high_68, high_95, fit, low, high = curves
    draw.band(axis, t, np.stack([low_95, high_95]), 95)
    draw.band(axis, t, np.stack([low_68, high_68]), 68)
    axis.plot(t, median, color=COLOURS[0], label="posterior")
    axis.plot(t, fit, "--", color=COLOURS[1], linewidth=1.2, label="fit")
    axis.plot(t, np.stack([low, high], 1), ":", color=COLOURS[1], linewidth=1.0)
    if name != "strain":
        draw.log_scale_if_wide(axis, "x", t)
        if not away:
            draw.log_scale_if_wide(axis, "y", median)
