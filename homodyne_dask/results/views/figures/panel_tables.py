"""What a panel of a figure shows, as a table."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.container import ErrorbarContainer
from matplotlib.patches import StepPatch


def table_of_panel(axes: Axes) -> pandas.DataFrame:
    """Return symbols, lines, bands, steps and maps in axes, whose labels are names of columns."""
    x, y = axes.get_xlabel() or "x", axes.get_ylabel() or "y"
    rows = [pandas.DataFrame({"series": label} | of) for label, of in _drawn(axes, x, y)]
    return pandas.concat(rows, ignore_index=True) if rows else pandas.DataFrame(columns=[x, y])


def _drawn(axes: Axes, x: str, y: str) -> Iterator[tuple[object, dict[str, Any]]]:
    """Yield label and columns of each thing that is drawn, but not of lines across all axes."""
    bars = {bar.lines[0]: bar for bar in axes.containers if isinstance(bar, ErrorbarContainer)}
    for line in (line for line in axes.lines if line.get_transform() == axes.transData):
        columns, bar = {x: line.get_xdata(), y: np.asarray(line.get_ydata())}, bars.get(line)
        if bar is not None and bar.has_yerr:
            columns["stderr"] = [
                np.ptp(np.asarray(end)[:, 1]) / 2 for end in bar.lines[2][-1].get_segments()
            ]
        yield (bar or line).get_label(), columns
    for part in (part for part in axes.collections if isinstance(part, PolyCollection)):
        for path in part.get_paths():  # there along one edge, and back along the other
            corners = np.asarray(path.vertices)
            low, high = np.split(np.delete(corners, [0, len(corners) // 2, -1], 0), 2)
            yield part.get_label(), {x: low[:, 0], "low": low[:, 1], "high": high[::-1, 1]}
    for steps in (steps for steps in axes.patches if isinstance(steps, StepPatch)):
        values, edges, _ = steps.get_data()
        yield steps.get_label(), {x: edges[:-1], y: values}
    for image in axes.get_images():
        values = np.ma.filled(np.ma.asarray(image.get_array()), np.nan)
        left, right, bottom, top = image.get_extent()
        up, along = (
            first + (np.arange(n) + 0.5) / n * (last - first)
            for n, first, last in zip(values.shape, (bottom, left), (top, right), strict=True)
        )
        along, up = (grid.ravel() for grid in np.meshgrid(along, up))
        yield axes.get_title(loc="left"), {x: along, y: up, "value": values.ravel()}
