"""Parameters of many fits, scan by scan."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from homodyne_dask.report.pictures_style import COLOURS, figure, finish, log_scale_if_wide
from homodyne_dask.result import FitResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 3
MOST_NAMES = 12
"""Scans that are named one by one; beyond, only some are."""


def scans(names: Sequence[str], results: Sequence[FitResult]) -> "Figure":
    """Draw each parameter with its error, and the reduced χ², by scan."""
    parameters = [str(name) for name in results[0].parameters["param"].values]
    panels = len(parameters) + 1
    rows = -(-panels // COLUMNS)
    picture = figure(12.3, 2.4 * rows + 1.2)
    axes = np.ravel(np.asarray(picture.subplots(rows, COLUMNS, sharex=True), dtype=object))
    at = np.arange(len(results))
    for n, (axis, name) in enumerate(zip(axes, parameters, strict=False)):
        value, robust, naive = (
            np.array([result.parameters[column].values[n] for result in results])
            for column in ("value", "stderr", "stderr_naive")
        )
        unit = str(results[0].parameters["unit"].values[n])
        finish(axis, "", f"{name} [{unit}]" if unit else name)
        for some, error, face in (
            (np.isfinite(robust), robust, COLOURS[0]),
            (~np.isfinite(robust), naive, "none"),
        ):
            if some.any():
                axis.errorbar(
                    at[some], value[some], np.nan_to_num(error[some]), fmt="o", ms=5,
                    color=COLOURS[0], markerfacecolor=face, elinewidth=1,
                )  # fmt: skip
        log_scale_if_wide(axis, "y", value)
    finish(axes[panels - 1], "", "reduced χ²")
    axes[panels - 1].plot(at, [result.redchi for result in results], "o", ms=5, color=COLOURS[1])
    for axis in axes[panels:]:
        axis.set_visible(False)
    shown = at[:: -(-len(at) // MOST_NAMES)]
    labels = [names[int(n)].removesuffix(".zarr") for n in shown]
    for axis in axes[:panels]:
        axis.set_xticks(shown, labels, rotation=90, fontsize=8)
        axis.tick_params(labelbottom=axis in axes[panels - COLUMNS : panels])
        axis.set_xlim(-0.5, len(at) - 0.5)
    return picture
