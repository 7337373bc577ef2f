"""Style of the figures: colours for colour-blind readers, axes, labels with units."""

from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from homodyne_dask.document.blocks import DPI
from homodyne_dask.errors import OptionError, printable
from homodyne_dask.results.data.plots import AXES
from homodyne_dask.store.scan import Scan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.gridspec import GridSpec
    from matplotlib.typing import ColorType

    from homodyne_dask.results.views.figures.picture import FitFigure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito (2008), in an order that also differs in lightness between neighbours."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#555555"
UNKNOWN_COLOUR = "#d9d9d9"
"""Colour of unknown values."""
MAX_INTERVALS = 6
"""Most intervals between the ticks of a linear axis; each label takes time to draw."""


LEFT, RIGHT, ABOVE, BELOW = 1.15, 0.15, 0.35, 0.55
"""Inches around a panel, for its labels: those on the left have up to nine characters."""
FOOT = 0.3
"""Inches below all panels, for a legend or a line of text."""


def figure(width: float, height: float) -> "FitFigure":
    """Return an empty figure; width and height in inches. No global state of matplotlib is changed.

    Where `AXES` are given it is a SubFigure in their place, of whatever size that is. Raises OptionError for
    axes that are in no grid.
    """
    from homodyne_dask.results.views.figures.picture import FitFigure

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
) -> "tuple[FitFigure, list[Axes]]":
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
) -> "tuple[FitFigure, GridSpec]":
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


def label_axes(axes: "Axes", x: str, y: str, title: str = "") -> None:
    """Set labels and title of an axes; remove its upper and right spine."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, fontsize=10)
    axes.ticklabel_format(axis="both", useOffset=False)
    axes.locator_params(nbins=MAX_INTERVALS)
    axes.spines[["top", "right"]].set_visible(False)


def logarithmic(axes: "Axes", which: str, scale: str = "log", **options: float) -> None:
    """Make the x or y axis logarithmic, with plain-text tick labels: 0.1, 1, 10, or 10⁻⁵.

    Labels in math text take longer to draw than the rest of a figure.
    """
    from matplotlib.ticker import LogFormatter

    class Between(LogFormatter):
        """Labels between decades where the axis has less than one decade."""

        def __call__(self, x: float, pos: int | None = None) -> str:
            return log_tick(x) if super().__call__(x, pos) else ""

    set_scale = axes.set_xscale if which == "x" else axes.set_yscale
    set_scale(scale, **options)
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(lambda value, _: log_tick(value))
    if scale == "log":
        axis.set_minor_formatter(Between(labelOnlyBase=False))


def log_tick(value: float) -> str:
    """Return a tick label of a logarithmic axis."""
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:g}"
    mantissa, _, power = f"{value:.0e}".partition("e")
    ten = power_of_ten(int(power))
    return ten if mantissa == "1" else f"{mantissa}·{ten}"


def power_of_ten(exponent: int) -> str:
    """Return 10⁻⁵, without math text."""
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def foot_line(picture: "FitFigure", text: str) -> None:
    """Add a small line of text below all panels."""
    picture.supxlabel(text, fontsize=8, color=GREY)


def plain_label(text: str) -> str:
    """Return a text as matplotlib draws it letter by letter: a $ begins no formula."""
    return printable(text).replace("$", r"\$")


def bin_name(scan: Scan, bin: int) -> str:
    """Return q, φ and label of a bin, for titles."""
    q, phi = scan.q[bin], scan.phi[bin]
    parts = [f"q = {q:.4g} Å⁻¹" if np.isfinite(q) else "q unknown"]
    parts += [f"φ = {phi:.4g}°".replace("-", "−") if np.isfinite(phi) else "φ unknown"]
    parts += [f"bin {scan.label[bin]}"]
    return ", ".join(parts + [f"scan {scan.scan_number[bin]}"] * ("scans" in scan.attrs))


LARGEST = 1e100
"""Of a number that is drawn; the smallest is its inverse."""


def drawable(values: np.ndarray) -> np.ndarray:
    """Return values with NaN for those that no axis can hold."""
    size = np.abs(values)
    return np.where((size == 0) | ((size > 1 / LARGEST) & (size < LARGEST)), values, np.nan)


def log_scale_if_wide(axes: "Axes", which: str, values: np.ndarray) -> None:
    """Make the x or y axis logarithmic where the values are positive and span more than a decade."""
    known = values[np.isfinite(values)]
    if len(known) and known.min() > 0 and known.max() > 10 * known.min():
        logarithmic(axes, which)


NARROWEST = 0.2
"""Least range of a curve beside its band, as a share of its largest value."""


def limits(axes: "Axes", values: np.ndarray, band: np.ndarray) -> None:
    """Set the y range to the values and their band, but to at most three times the range of the values.

    The range of a nearly constant curve counts as NARROWEST of its size: its band is seen, too.
    """
    log = axes.get_yscale() == "log"
    with np.errstate(invalid="ignore", divide="ignore"):
        values, band = (np.log10(v) if log else v for v in (values, band))
    known = values[np.isfinite(values)]
    if not len(known):
        return
    span = max(np.ptp(known), 0.0 if log else NARROWEST * np.abs(known).max()) or 1.0
    inside = np.clip(band[np.isfinite(band)], known.min() - span, known.max() + span)
    shown = np.concatenate([known, inside])
    low, high = shown.min(), shown.max()
    margin = 0.06 * ((high - low) or span)
    edges = np.array([low - margin, high + margin])
    axes.set_ylim(*(10.0**edges if log else edges))


def ring_colours(q: np.ndarray) -> "list[tuple[float, ColorType, str]]":
    """Return q, colour and marker of each ring; beyond seven rings the colour follows q."""
    from matplotlib import colormaps

    rings = [float(value) for value in dict.fromkeys(np.sort(q))] if np.isfinite(q).all() else []
    if not rings:
        return [(np.nan, COLOURS[0], MARKERS[0])]
    if len(rings) <= len(COLOURS):
        return list(zip(rings, COLOURS, MARKERS, strict=False))
    shades = colormaps["viridis"](np.linspace(0, 0.9, len(rings)))
    return list(zip(rings, map(tuple, shades), cycle(MARKERS), strict=False))
