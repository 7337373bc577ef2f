"""The pieces of every figure: panels with labels, points with error bars, bands, logarithmic axes."""

import io
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch
from matplotlib.path import Path
from matplotlib.ticker import LogFormatter, NullLocator

from homodyne_dask.document.blocks import DPI
from homodyne_dask.errors import OptionError, require_known
from homodyne_dask.errors import shown as shown_value
from homodyne_dask.results.views.style import COLOURS, GREY, with_powers

if TYPE_CHECKING:
    import pandas


MAX_MINOR_TICKS = 16
"""Of an axis, about two decades: more take most of the time of a figure, and label nothing."""
MAX_INTERVALS = 5
"""Most intervals between the ticks of a linear axis; each label takes time to draw."""
PAGE, COLUMN = 7.0, 3.4
"""Inches: width of a page of a journal, and of one of its two columns."""
LEFT, RIGHT, ABOVE, BELOW = 0.78, 0.1, 0.27, 0.45
"""Inches around a panel, for its labels: those on the left have up to nine characters."""
FONT, SMALL = 8, 7
"""Points: of labels and titles, and of ticks, legends and lines of text."""
LINE, LETTER = 0.14, 0.058
"""Inches of small text: height of a line, and width of a letter."""
NARROWEST = 0.2
"""Least range of a curve beside its band, as a share of its largest value."""
_CORNERS = np.array([(-1, 0), (1, 0), (0, 0), (0, 4), (-1, 3), (0, 4), (1, 3)])
UP, DOWN = (Path(_CORNERS * (1, sign), [1, 2, 1, 2, 1, 2, 2]) for sign in (1, -1))
"""Markers of a lower and of an upper limit: arrows that begin with a bar at the limit."""
ARROW = 14
"""Points: twice the length of an arrow."""

Panels = Mapping[str, Callable[[Axes], None]]
"""The parts of a figure: what draws each, by the name by which it is drawn alone."""


class FitFigure(Figure):
    """A figure that notebooks show as a picture, though it belongs to no window of pyplot."""

    def _repr_png_(self) -> bytes:
        return png_of(self, {})

    @property
    def tables(self) -> "dict[str, pandas.DataFrame]":
        """What each panel shows, by its name: x, y and errors, by `series` in the legend."""
        return {str(axes.get_label()): _table_of_panel(axes) for axes in self.axes}


def png_of(picture: Figure, about: Mapping[str, str]) -> bytes:
    for axis in (axis for axes in picture.axes for axis in (axes.xaxis, axes.yaxis)):
        if len(axis.get_minorticklocs()) > MAX_MINOR_TICKS:
            axis.set_minor_locator(NullLocator())
    content = io.BytesIO()
    # at PIL's own level of compression files are an eighth smaller, and take twice as long to write
    picture.savefig(content, format="png", metadata=about, pil_kwargs={"compress_level": 1})
    return content.getvalue()


def vector_of(picture: Figure, suffix: str) -> bytes:
    """Return a figure as PDF or SVG, whose text stays text."""
    content = io.BytesIO()
    with rc_context({"pdf.fonttype": 42, "svg.fonttype": "none"}):
        picture.savefig(content, format=suffix)
    return content.getvalue()


def figure(width: float, ax: Axes | None = None) -> FitFigure:
    """Return an empty figure of a width [inches], or a SubFigure in the place of axes."""
    axes: Any = ax
    if axes is None:
        return FitFigure(figsize=(width, width), dpi=DPI)
    cell = getattr(axes, "get_subplotspec", lambda: None)()
    if cell is None:
        raise OptionError("ax must belong to a grid of axes: make it with plt.subplots()")
    subfigure = axes.figure.add_subfigure(cell)
    axes.remove()
    return subfigure


class Page(NamedTuple):
    """Panels in rows, to be drawn as wide as a page, or as a column if it is one panel."""

    panels: Panels
    columns: int
    height: float
    """Of each panel [inches], as the following lengths."""
    words: str = ""
    """Below all, under one legend."""
    left: float = LEFT
    """Beside each panel."""
    right: float = RIGHT
    below: float = 0.0
    """More under the last row, the only one whose panels then have labels of the axis that all share."""

    def figure(self, ax: Axes | None = None, panel: str | None = None) -> FitFigure:
        """Draw all panels, or the one of a name, in a new figure or in the place of axes."""
        panels = self.panels
        if panel is not None:
            require_known(panel, panels, f"panel = {shown_value(panel)} is unknown")
            panels = {panel: panels[panel]}
        if ax is None or len(panels) != 1:
            return self._replace(panels=panels)._arranged(ax)
        for draw in panels.values():
            draw(ax)
        if ax.get_legend_handles_labels()[0]:
            legend(ax)
        picture: Any = ax.figure
        return picture

    def _arranged(self, ax: Axes | None) -> FitFigure:
        """Positions are fixed: a constrained layout takes long."""
        columns = min(self.columns, len(self.panels))
        width = PAGE if columns > 1 else COLUMN
        picture: Any = figure(width, ax)
        grid = picture.add_gridspec(-(-len(self.panels) // columns), columns)
        for n, (name, draw) in enumerate(self.panels.items()):
            draw(picture.add_subplot(grid[divmod(n, columns)], label=name))
        row, column = ABOVE + self.height + BELOW, width / columns
        foot, total = footer(picture, width, grid.nrows * row + self.below, self.words)
        foot += self.below
        for n, axes in enumerate(picture.axes):
            down, along = divmod(n, columns)
            left, bottom = along * column + self.left, foot + (grid.nrows - 1 - down) * row + BELOW
            size = (column - self.left - self.right) / width, self.height / total
            axes.set_position((left / width, bottom / total, *size))
        for axes, lower in zip(picture.axes, picture.axes[columns:], strict=False):
            alike = axes.get_xscale() == lower.get_xscale()
            axes.xaxis.label.set_visible(not alike or axes.get_xlabel() != lower.get_xlabel())
        for axes in picture.axes[:-columns] if self.below else ():
            axes.tick_params(labelbottom=False)
        return picture


def footer(
    picture: Any, width: float, height_of_panels: float, words: str, has_corner: bool = False
) -> tuple[float, float]:
    """Add one legend of all panels, and words below it; return their height and that of the figure.

    has_corner: the upper right of the figure is empty, and takes the legend.
    """
    lines = textwrap.wrap(words, int((width - 0.3) / LETTER))
    labelled = [axes.get_legend_handles_labels() for axes in picture.axes]
    marks = {
        name: mark for handles, names in labelled for mark, name in zip(handles, names, strict=True)
    }
    across = max(1, int(width / (0.45 + LETTER * max(map(len, marks), default=1))))
    rows = 0 if has_corner else -(-len(marks) // across)
    text, key = (LINE * n + 0.1 * (n > 0) for n in (len(lines), rows))
    total = height_of_panels + text + key
    if isinstance(picture, Figure):  # not a part of another one
        picture.set_size_inches(width, total)
    if marks:
        look: dict[str, Any] = {"loc": "upper right", "bbox_to_anchor": (1.0, 1.0)}
        if not has_corner:
            below = (0.5, text / total)
            look = {"loc": "lower center", "bbox_to_anchor": below, "ncols": across}
        legend(picture, *marks.values(), labels=list(marks), borderaxespad=0.2, **look)
    if lines:
        picture.supxlabel("\n".join(lines), fontsize=SMALL, color=GREY)
    return text + key, total


def label_axes(axes: Axes, x: str, y: str, title: str = "", log: str = "") -> None:
    """Set labels and title of axes without an upper and right spine; log: 'x', 'y' or 'xy'."""
    axes.set_xlabel(x, fontsize=FONT)
    axes.set_ylabel(y, fontsize=FONT)
    axes.set_title(title, fontsize=FONT, y=1.0)  # at a place that need not be looked for
    axes.tick_params(which="both", labelsize=SMALL)
    axes.ticklabel_format(axis="both", useOffset=False)
    axes.locator_params(nbins=MAX_INTERVALS)
    axes.spines[["top", "right"]].set_visible(False)
    for direction in log:
        logarithmic(axes, direction)


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
    look = {"fmt": "o", "ms": 4, "color": COLOURS[0], "elinewidth": 0.8} | look
    look |= {"markerfacecolor": "none"} if hollow else {}
    axes.errorbar(x, y, error, across, **look)


def band(axes: Axes, x: np.ndarray, ends: np.ndarray, percent: int) -> None:
    strength = {95: 0.18, 68: 0.35}[percent]
    axes.fill_between(x, *ends, color=COLOURS[0], alpha=strength, linewidth=0)


def legend(where: Axes | Figure, *handles: Any, fontsize: float = SMALL, **look: Any) -> None:
    """Add a legend without a frame; handles: by default all that have labels."""
    look |= {"handles": handles} if handles else {}
    where.legend(frameon=False, fontsize=fontsize, **look)


class _BetweenDecades(LogFormatter):
    """Labels between decades where the axis has less than one decade, far enough apart to be read."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        assert self.axis is not None
        low, high = self.axis.get_view_interval()
        far_enough = high < 2 * low or f"{x:e}"[0] in "12357"
        return log_tick(x) if far_enough and super().__call__(x, pos) else ""


def logarithmic(axes: Axes, direction: str, scale: str = "log", **options: float) -> None:
    """Make the x or y axis logarithmic, with plain-text tick labels: math text takes long to draw."""
    set_scale = axes.set_xscale if direction == "x" else axes.set_yscale
    set_scale(scale, **options)
    axis = axes.xaxis if direction == "x" else axes.yaxis
    axis.set_major_formatter(lambda value, _: log_tick(value))
    if scale == "log":
        axis.set_minor_formatter(_BetweenDecades(labelOnlyBase=False))


def log_tick(value: float) -> str:
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:g}"
    return with_powers(f"{value:.0e}").removeprefix("1·")


def log_scale_if_wide(axes: Axes, direction: str, values: np.ndarray) -> None:
    finite = values[np.isfinite(values)]
    if len(finite) and finite.min() > 0 and finite.max() > 10 * finite.min():
        logarithmic(axes, direction)


def limits(axes: Axes, values: Float[np.ndarray, "..."], ends: Float[np.ndarray, "..."]) -> None:
    """Set the y range to the values and their band, but to at most three times the range of the values."""
    log = axes.get_yscale() == "log"
    with np.errstate(invalid="ignore", divide="ignore"):
        values, ends = (np.log10(v) if log else v for v in (values, ends))
    finite = values[np.isfinite(values)]
    if not len(finite):
        return
    widths = np.ptp(ends[:, np.isfinite(ends).all(0)], axis=0)
    narrow = widths.min() if widths.size else 0.0  # the band is seen where it is narrowest
    smallest_span = NARROWEST * np.abs(finite).max()
    span = max(np.ptp(finite), 0.0 if log else max(smallest_span, narrow)) or 1.0
    inside = np.clip(ends[np.isfinite(ends)], finite.min() - span, finite.max() + span)
    drawn_values = np.concatenate([finite, inside])
    low, high = drawn_values.min(), drawn_values.max()
    margin = 0.06 * ((high - low) or span)
    edges = np.array([low - margin, high + margin])
    axes.set_ylim(*(10.0**edges if log else edges))


def _table_of_panel(axes: Axes) -> "pandas.DataFrame":
    import pandas  # loads for half a second

    x, y = axes.get_xlabel() or "x", axes.get_ylabel() or "y"
    rows = [pandas.DataFrame({"series": label} | columns) for label, columns in _drawn(axes, x, y)]
    return pandas.concat(rows, ignore_index=True) if rows else pandas.DataFrame(columns=[x, y])


Drawn = Iterator[tuple[object, dict[str, Any]]]
"""Label and columns of each thing that is drawn."""


def _drawn(axes: Axes, x: str, y: str) -> Drawn:
    yield from _drawn_lines(axes, x, y)
    yield from _drawn_areas(axes, x, y)
    for steps in (steps for steps in axes.patches if isinstance(steps, StepPatch)):
        values, edges, _ = steps.get_data()
        yield steps.get_label(), {x: edges[:-1], y: values}


def _drawn_lines(axes: Axes, x: str, y: str) -> Drawn:
    """Yield lines, with errors if they have bars, but none across all axes."""
    bars = {bar.lines[0]: bar for bar in axes.containers if isinstance(bar, ErrorbarContainer)}
    for line in (line for line in axes.lines if line.get_transform() == axes.transData):
        columns, bar = {x: line.get_xdata(), y: np.asarray(line.get_ydata())}, bars.get(line)
        if bar is not None and bar.has_yerr:
            # of segments, matplotlib leaves out the ends that are NaN
            ends = (np.asarray(path.vertices) for path in bar.lines[2][-1].get_paths())
            columns["stderr"] = [np.ptp(segment[:, 1]) / 2 for segment in ends]
        yield (bar or line).get_label(), columns


def _drawn_areas(axes: Axes, x: str, y: str) -> Drawn:
    for area in (area for area in axes.collections if isinstance(area, PolyCollection)):
        for path in area.get_paths():  # there along one edge, and back along the other
            corners = np.asarray(path.vertices)
            low, high = np.split(np.delete(corners, [0, len(corners) // 2, -1], 0), 2)
            yield area.get_label(), {x: low[:, 0], "low": low[:, 1], "high": high[::-1, 1]}
    for image in axes.get_images():
        values = np.ma.filled(np.ma.asarray(image.get_array()), np.nan)
        left, right, bottom, top = image.get_extent()
        up, along = (
            first + (np.arange(n) + 0.5) / n * (last - first)
            for n, first, last in zip(values.shape, (bottom, left), (top, right), strict=True)
        )
        along, up = (grid.ravel() for grid in np.meshgrid(along, up))
        yield axes.get_title(loc="left"), {x: along, y: up, "value": values.ravel()}
