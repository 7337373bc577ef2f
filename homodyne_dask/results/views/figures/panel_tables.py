"""What a panel of a figure shows, as a table."""

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
    bars = {bar.lines[0]: bar for bar in axes.containers if isinstance(bar, ErrorbarContainer)}
    rows: list[pandas.DataFrame] = []
    for line in axes.lines:
        if line.get_transform() != axes.transData:
            continue  # across all axes
        columns: dict[str, Any] = {x: line.get_xdata(), y: line.get_ydata()}
        bar = bars.get(line)
        if bar is not None and bar.has_yerr:
            columns["stderr"] = [
                np.ptp(path.vertices[:, 1]) / 2 for path in bar.lines[2][-1].get_paths()
            ]
        name = (line if bar is None else bar).get_label()
        rows.append(pandas.DataFrame({"series": name} | columns))
    for part in axes.collections:
        for path in part.get_paths() if isinstance(part, PolyCollection) else ():
            ends = np.asarray(path.vertices)
            n = (len(ends) - 3) // 2  # there along one edge, and back along the other
            low, high = ends[1 : n + 1], ends[n + 2 : 2 * n + 2][::-1, 1]
            columns = {x: low[:, 0], "low": low[:, 1], "high": high}
            rows.append(pandas.DataFrame({"series": part.get_label()} | columns))
    for steps in axes.patches:
        if isinstance(steps, StepPatch):
            values, edges, _ = steps.get_data()
            rows.append(pandas.DataFrame({"series": steps.get_label(), x: edges[:-1], y: values}))
    for image in axes.get_images():
        values = np.ma.filled(image.get_array(), np.nan)
        left, right, bottom, top = image.get_extent()
        along, up = (
            first + (np.arange(n) + 0.5) / n * (last - first)
            for n, first, last in zip(values.shape[::-1], (left, bottom), (right, top), strict=True)
        )
        columns = {
            x: np.tile(along, len(up)),
            y: np.repeat(up, len(along)),
            "value": values.ravel(),
        }
        rows.append(pandas.DataFrame({"series": axes.get_title(loc="left")} | columns))
    return pandas.concat(rows, ignore_index=True) if rows else pandas.DataFrame(columns=[x, y])
