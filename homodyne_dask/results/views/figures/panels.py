"""The pieces of every figure: panels with labels, points with error bars, bands, logarithmic axes."""

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.ticker import LogFormatter, NullLocator

from homodyne_dask.document.blocks import DPI
from homodyne_dask.errors import OptionError
from homodyne_dask.results.data.plots import AXES
from homodyne_dask.results.views.figures.style import COLOURS, GREY, power_of_ten

MAX_MINOR_TICKS = 16
"""Of an axis, about two decades: more take most of the time of a figure, and label nothing."""
MAX_INTERVALS = 6
"""Most intervals between the ticks of a linear axis; each label takes time to draw."""
LEFT, RIGHT, ABOVE, BELOW = 1.15, 0.15, 0.35, 0.55
"""Inches around a panel, for its labels: those on the left have up to nine characters."""
FOOT = 0.3
"""Inches below all panels, for a legend or a line of text."""
LINE, LETTER = 0.17, 0.066
"""Inches of small text: height of a line, and width of a letter."""
NARROWEST = 0.2
"""Least range of a curve beside its band, as a share of its largest value."""


class FitFigure(Figure):
    """A figure that notebooks show as a picture, though it belongs to no window of pyplot."""

    def _repr_png_(self) -> bytes:
        return png_of(self, {})


def png_of(picture: Figure, about: Mapping[str, str]) -> bytes:
    """Return a figure as PNG, with texts about it by keyword."""
    for axis in (axis for axes in picture.axes for axis in (axes.xaxis, axes.yaxis)):
        if len(axis.get_minorticklocs()) > MAX_MINOR_TICKS:
            axis.set_minor_locator(NullLocator())
    content = io.BytesIO()
    # at PIL's own level of compression files are an eighth smaller, and take twice as long to write
    picture.savefig(content, format="png", metadata=about, pil_kwargs={"compress_level": 1})
    return content.getvalue()


def figure(width: float, height: float) -> FitFigure:
    """Return an empty figure; width and height in inches. No global state of matplotlib is changed.

    Where `AXES` are given it is a SubFigure in their place, of whatever size that is. Raises OptionError for
    axes that are in no grid.
    """
    axes: Any = AXES.get()
    if axes is None:
        return FitFigure(figsize=(width, height), dpi=DPI)
    cell = getattr(axes, "get_subplotspec", lambda: None)()
    if cell is None:
        raise OptionError("ax must belong to a grid of axes: make it with plt.subplots()")
    made = axes.figure.add_subfigure(cell)
    axes.remove()
    return made


def panels(
    number: int, columns: int, width: float, height: float, foot: float = 0.0, left: float = LEFT
) -> tuple[FitFigure, list[Axes]]:
    """Return a figure with so many panels in rows, each of this width and height in inches.

    foot: inches below all; left: inches for the labels left of each panel.
    Their positions are fixed: a constrained layout of all labels takes longer than drawing.
    """
    columns = min(columns, number)
    rows = -(-number // columns)
    margins = (left, RIGHT, foot + BELOW, ABOVE)
    picture, grid = grid_of(rows, columns, width, height, margins, (left + RIGHT, ABOVE + BELOW))
    return picture, [picture.add_subplot(grid[divmod(n, columns)]) for n in range(number)]


def grid_of(
    rows: int,
    columns: int,
    width: float,
    height: float,
    margins: tuple[float, float, float, float],
    gaps: tuple[float, float],
) -> tuple[FitFigure, GridSpec]:
    """Return a figure and its grid of cells of this width and height; all lengths in inches.

    margins: left, right, below and above. gaps: between columns, and between rows.
    """
    left, right, below, above = margins
    w = left + columns * width + (columns - 1) * gaps[0] + right
    h = below + rows * height + (rows - 1) * gaps[1] + above
    picture = figure(w, h)
    ends = {"left": left / w, "right": 1 - right / w, "bottom": below / h, "top": 1 - above / h}
    spaces = {"wspace": gaps[0] / width, "hspace": gaps[1] / height}
    return picture, picture.add_gridspec(rows, columns, **ends, **spaces)


def label_axes(axes: Axes, x: str, y: str, title: str = "", log: str = "") -> None:
    """Set labels and title of axes without an upper and right spine; log: 'x', 'y' or 'xy'."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, fontsize=10)
    axes.ticklabel_format(axis="both", useOffset=False)
    axes.locator_params(nbins=MAX_INTERVALS)
    axes.spines[["top", "right"]].set_visible(False)
    for which in log:
        logarithmic(axes, which)


def points(
    axes: Axes,
    x: np.ndarray,
    y: np.ndarray,
    error: np.ndarray | None = None,
    *,
    across: np.ndarray | None = None,
    hollow: bool = False,
    **look: Any,
) -> None:
    """Draw symbols with error bars, along x too if `across` is given; look: fmt, ms, color, label."""
    look = {"fmt": "o", "ms": 5, "color": COLOURS[0], "elinewidth": 0.8} | look
    look |= {"markerfacecolor": "none"} if hollow else {}
    axes.errorbar(x, y, error, across, **look)


def band(axes: Axes, x: np.ndarray, ends: np.ndarray, percent: int) -> None:
    """Shade what lies between two curves, a band of 68 or 95 %."""
    strength = {95: 0.18, 68: 0.35}[percent]
    axes.fill_between(x, *ends, color=COLOURS[0], alpha=strength, linewidth=0)


def legend(where: Axes | Figure, *handles: Any, fontsize: float = 8, **look: Any) -> None:
    """Add a legend without a frame; handles: by default all that have labels."""
    look |= {"handles": handles} if handles else {}
    where.legend(frameon=False, fontsize=fontsize, **look)


def foot_line(picture: Figure, text: str) -> None:
    """Add a small line of text below all panels."""
    picture.supxlabel(text, fontsize=8, color=GREY)


class _BetweenDecades(LogFormatter):
    """Labels between decades where the axis has less than one decade."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return log_tick(x) if super().__call__(x, pos) else ""


def logarithmic(axes: Axes, which: str, scale: str = "log", **options: float) -> None:
    """Make the x or y axis logarithmic, with plain-text tick labels: 0.1, 1, 10, or 10⁻⁵.

    Labels in math text take longer to draw than the rest of a figure.
    """
    set_scale = axes.set_xscale if which == "x" else axes.set_yscale
    set_scale(scale, **options)
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(lambda value, _: log_tick(value))
    if scale == "log":
        axis.set_minor_formatter(_BetweenDecades(labelOnlyBase=False))


def log_tick(value: float) -> str:
    """Return a tick label of a logarithmic axis."""
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:g}"
    mantissa, _, power = f"{value:.0e}".partition("e")
    ten = power_of_ten(int(power))
    return ten if mantissa == "1" else f"{mantissa}·{ten}"


def log_scale_if_wide(axes: Axes, which: str, values: np.ndarray) -> None:
    """Make the x or y axis logarithmic where the values are positive and span more than a decade."""
    known = values[np.isfinite(values)]
    if len(known) and known.min() > 0 and known.max() > 10 * known.min():
        logarithmic(axes, which)


def limits(axes: Axes, values: Float[np.ndarray, "..."], ends: Float[np.ndarray, "..."]) -> None:
    """Set the y range to the values and their band, but to at most three times the range of the values.

    The range of a nearly constant curve counts as NARROWEST of its size: its band is seen, too.
    """
    log = axes.get_yscale() == "log"
    with np.errstate(invalid="ignore", divide="ignore"):
        values, ends = (np.log10(v) if log else v for v in (values, ends))
    known = values[np.isfinite(values)]
    if not len(known):
        return
    span = max(np.ptp(known), 0.0 if log else NARROWEST * np.abs(known).max()) or 1.0
    inside = np.clip(ends[np.isfinite(ends)], known.min() - span, known.max() + span)
    shown = np.concatenate([known, inside])
    low, high = shown.min(), shown.max()
    margin = 0.06 * ((high - low) or span)
    edges = np.array([low - margin, high + margin])
    axes.set_ylim(*(10.0**edges if log else edges))
