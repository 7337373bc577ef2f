"""The convergence of the fit: χ², distance to the minimum and time of each pass."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.data.number_format import level_name
from homodyne_dask.results.views.figures import panels as draw
from homodyne_dask.results.views.figures.style import COLOURS, GREY, MARKERS, UNKNOWN_COLOUR
from homodyne_dask.solver import levenberg_marquardt as lm

History = Sequence[Mapping[str, Any]]
"""An entry for each pass."""
ROOM_FOR_ZERO = 0.5
"""Length of the axis between 0 and the smallest difference of χ², in decades."""


def draw_passes(view: FitView) -> draw.FitFigure:
    """Draw χ² above its lowest, the estimated distance to the minimum, and the time of each pass."""
    history = view.result.run.history
    full = [entry for entry in history if "pass" in entry]
    shown = {
        "chisqr": partial(_difference, full=full),
        "distance": partial(_distance, full=full),
        "seconds": partial(_durations, history=history),
    }
    return draw.page(shown, 3, 1.6)


def _difference(axis: Axes, full: History) -> None:
    draw.label_axes(axis, "pass", "χ² − lowest χ²", "χ² above its lowest")
    chisqr = np.array([entry["chisqr"] for entry in full], float)
    above = chisqr - np.fmin.reduce(chisqr, initial=np.inf)
    positive = above[above > 0]
    if len(positive):
        smallest = 10.0 ** np.floor(np.log10(positive.min()))
        draw.logarithmic(axis, "y", "symlog", linthresh=smallest, linscale=ROOM_FOR_ZERO)
        axis.set_ylim(-0.3 * smallest, 3 * positive.max())
    _by_pass(axis, full, above)


def _distance(axis: Axes, full: History) -> None:
    title = "distance to the minimum"
    draw.label_axes(axis, "pass", "distance [stderr]", title, log="y")
    enough = lm.Options().decrement
    decrement = np.array([entry["decrement"] for entry in full], float)
    known = decrement[decrement > 0]
    axis.set_ylim(known.min(initial=enough) / 3, known.max(initial=enough) * 3)
    axis.axhline(enough, color=GREY, linestyle=":", label="convergence limit")
    _by_pass(axis, full, np.where(decrement > 0, decrement, np.nan))


def _by_pass(axis: Axes, full: History, values: np.ndarray) -> None:
    number, accepted = (np.array([entry[key] for entry in full]) for key in ("pass", "accepted"))
    axis.plot(number, values, color=UNKNOWN_COLOUR, zorder=1)
    for wanted, marker, label in ((True, "o", "accepted"), (False, "X", "rejected")):
        some = np.isfinite(values) & (accepted == wanted)
        if some.any():
            look = {"ms": 4.5, "color": COLOURS[not wanted], "label": label}
            axis.plot(number[some], values[some], marker, **look)
    axis.xaxis.set_major_locator(MaxNLocator(draw.MAX_INTERVALS, integer=True))


def _durations(axis: Axes, history: History) -> None:
    draw.label_axes(axis, "pass", "time of one pass [s]", "coarse and full passes", log="y")
    levels = [entry for entry in history if "level" in entry]
    at = 1 - sum(entry["passes"] for entry in levels)
    for entry, colour, marker in zip(levels, COLOURS[2:], MARKERS[1:], strict=False):
        n = entry["passes"]
        look = {"color": colour, "ms": 4, "markerfacecolor": "none"}
        label = level_name(entry["level"])
        each = [entry["seconds"] / max(n, 1)] * n
        axis.plot(range(at, at + n), each, marker, label=label, **look)
        at += n
    full = [entry for entry in history if "pass" in entry and "seconds" in entry]
    number, seconds = ([entry[key] for entry in full] for key in ("pass", "seconds"))
    axis.plot(number, seconds, "o", color=COLOURS[0], ms=4)
    if levels:
        axis.axvline(0.5, color=UNKNOWN_COLOUR, zorder=0)
    axis.xaxis.set_major_locator(MaxNLocator(draw.MAX_INTERVALS, integer=True))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.0f}" if x >= 1 else ""))
