"""Influence of single bins: change of each parameter when one bin is excluded."""

import numpy as np
from jaxtyping import Bool

from homodyne_dask.errors import OptionError
from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.views.figures.angles import (
    MARKS_PER_ROW,
    angle_axis,
    by_angle,
    legend,
    legend_height,
    legend_marks,
)
from homodyne_dask.results.views.figures.picture import FitFigure
from homodyne_dask.results.views.figures.style import UNKNOWN_COLOUR, label_axes, panels

PANELS_PER_ROW = 4
"""Panels per row."""


def draw_influence(view: FitView) -> FitFigure:
    """Draw the change of each parameter without each bin, in standard errors, against φ.

    Raises OptionError where the result does not hold it.
    """
    result, scan = view.result, view.scan
    if result.diagnosis.influence is None:
        raise OptionError("the result does not contain the influence of bins: it has no errors")
    moved = influential(result)
    names = result.diagnosis.influence["param"].values[moved]
    change = result.diagnosis.influence["change"].values[:, moved]
    across = min(len(names), PANELS_PER_ROW)
    marks, per_row = legend_marks(scan.q, hollow=False), min(2 * across, MARKS_PER_ROW)
    picture, axes = panels(len(names), across, 2.2, 1.85, legend_height(marks, per_row), 0.75)
    nothing = np.zeros(len(scan.q), bool)
    for n, (axis, name) in enumerate(zip(axes, names, strict=True)):
        axis.axhspan(-1, 1, color=UNKNOWN_COLOUR, alpha=0.5, linewidth=0)
        axis.axhline(0, color="#555555", linewidth=0.8)
        by_angle(axis, scan, change[:, n], nothing)
        label_axes(axis, "", "change / error" if n % across == 0 else "", str(name))
        angle_axis(axis, scan)
        if n + across < len(names):
            axis.set_xlabel("")
    legend(picture, marks, per_row)
    return picture


def influential(result: FitResult) -> Bool[np.ndarray, " p"]:
    """Return for which parameters the influence of any bin is known."""
    assert result.diagnosis.influence is not None
    return np.isfinite(result.diagnosis.influence["change"].values).any(axis=0)
