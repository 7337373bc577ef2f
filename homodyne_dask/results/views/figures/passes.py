"""The convergence of the fit: χ², distance to the minimum and time of each pass."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.data.number_format import level_name
from homodyne_dask.results.views.figures.picture import FitFigure
from homodyne_dask.results.views.figures.style import (
    COLOURS,
    FOOT,
    MARKERS,
    UNKNOWN_COLOUR,
    label_axes,
    logarithmic,
    panels,
)
from homodyne_dask.solver import levenberg_marquardt as lm

ROOM_FOR_ZERO = 0.5
"""Length of the axis between 0 and the smallest difference of χ², in decades."""


def draw_passes(view: FitView) -> FitFigure:
    """Draw χ² above its lowest, the estimated distance to the minimum, and the time of each pass."""
    result = view.result
    picture, (above, distance, duration) = panels(3, 3, 3.0, 2.7, FOOT, left=0.95)
    history = [entry for entry in result.run.history if "pass" in entry]
    number = np.array([entry["pass"] for entry in history], float)
    chisqr, decrement = (
        np.array([np.nan if e[key] is None else e[key] for e in history], float)
        for key in ("chisqr", "decrement")
    )
    accepted = np.array([entry["accepted"] for entry in history], bool)
    _difference(above, number, chisqr, accepted)
    _distance(distance, number, decrement, accepted)
    margin = max(0.5, 0.03 * result.passes)
    marks = {}
    begins = _durations(duration, result)
    for axis in (above, distance, duration):
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set_xlim((begins if axis is duration else 1) - margin, result.passes + margin)
        handles, names = axis.get_legend_handles_labels()
        marks |= dict(zip(names, handles, strict=True))
    picture.legend(marks.values(), marks, loc="lower center", ncols=6, frameon=False, fontsize=8)
    return picture


def _durations(axis: Axes, result: FitResult) -> int:
    """Draw the time of each pass, coarse passes left of the first pass over all data.

    Return the position of the first coarse pass.
    """
    label_axes(axis, "pass over all data", "time of one pass [s]", "coarse and full passes")
    levels = [entry for entry in result.run.history if "level" in entry]
    begins = at = 1 - sum(entry["passes"] for entry in levels)
    for entry, colour, marker in zip(levels, COLOURS[2:], MARKERS[1:], strict=False):
        n = entry["passes"]
        each = np.full(n, entry["seconds"] / max(n, 1))
        look = {"color": colour, "ms": 6, "markerfacecolor": "none"}
        label = level_name(entry["level"])
        axis.plot(np.arange(at, at + n), each, marker, label=label, **look)
        at += n
    full = [entry for entry in result.run.history if "pass" in entry and "seconds" in entry]
    seconds = [entry["seconds"] for entry in full]
    axis.plot([entry["pass"] for entry in full], seconds, "o", color=COLOURS[0], ms=6)
    logarithmic(axis, "y")
    if levels:
        axis.axvline(0.5, color=UNKNOWN_COLOUR, zorder=0)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.0f}" if x >= 1 else ""))
    return begins


def _distance(axis: Axes, number, decrement, accepted) -> None:
    label_axes(axis, "pass", "distance [standard errors]", "estimated distance to the minimum")
    logarithmic(axis, "y")
    enough = lm.Options().decrement
    known = decrement[decrement > 0]
    axis.set_ylim(known.min(initial=enough) / 3, known.max(initial=enough) * 3)
    axis.axhline(enough, color="#555555", linestyle=":", label="convergence limit")
    _by_pass(axis, number, np.where(decrement > 0, decrement, np.nan), accepted)


def _difference(axis: Axes, number, chisqr, accepted) -> None:
    """Draw χ² - lowest χ² on a logarithmic axis that includes 0."""
    label_axes(axis, "pass", "χ² − lowest χ²", "χ² above its lowest value")
    known = chisqr[np.isfinite(chisqr)]
    above = chisqr - known.min() if len(known) else chisqr
    positive = above[above > 0]
    if len(positive):
        smallest = 10.0 ** np.floor(np.log10(positive.min()))
        logarithmic(axis, "y", "symlog", linthresh=smallest, linscale=ROOM_FOR_ZERO)
        axis.set_ylim(-0.3 * smallest, 3 * positive.max())
    _by_pass(axis, number, above, accepted)


def _by_pass(axis: Axes, number, values, accepted) -> None:
    axis.plot(number, values, color=UNKNOWN_COLOUR, zorder=1)
    known = np.isfinite(values)
    for some, marker, colour, label in (
        (known & accepted, "o", COLOURS[0], "accepted"),
        (known & ~accepted, "X", COLOURS[1], "rejected"),
    ):
        if some.any():
            axis.plot(number[some], values[some], marker, ms=7, color=colour, label=label)
