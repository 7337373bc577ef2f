"""Pictures of planned scans: errors against the quantity that is varied, pulls of toys."""

import numpy as np

from homodyne_dask.errors import OptionError
from homodyne_dask.results.data.planned_errors import Design
from homodyne_dask.results.data.toys import Toys
from homodyne_dask.results.views.figures.picture import FitFigure
from homodyne_dask.results.views.figures.style import (
    COLOURS,
    MARKERS,
    label_axes,
    logarithmic,
    panels,
    plain_label,
)

AXIS = {
    "frames": "frames",
    "counts": "counts per pixel and frame",
    "pixels": "pixels per bin",
    "contrast": "contrast",
    "angles": "angles, with the same total number of pixels",
    "exposure": "frame time [s], with the same total time and dose",
}
LINES = ("--", "-")
"""By weighting: pairs, speckle."""
REACH, BINS = 4.0, 16
COLUMNS = 3


def draw_design(design: Design) -> FitFigure:
    """Draw errors relative to the parameters, errors themselves of parameters that are 0."""
    data, varied = design.dataset, design.varied
    if varied is None:
        raise OptionError(
            "a design of a single scan cannot be plotted: give vary, such as vary={'frames': [300, 3000]}"
        )
    picture, (axes,) = panels(1, 1, 5.0, 3.6)
    x = data["varied"].values
    for n, name in enumerate(map(str, data["parameter"].values)):
        value = abs(float(data["value"][n]))
        label = f"{name}" if value else f"{name} (absolute)"
        for line, weighting in zip(LINES, data["weighting"].values, strict=True):
            y = data["stderr"].sel(weighting=weighting).isel(parameter=n).values / (value or 1.0)
            shown = plain_label(label) if weighting == "speckle" else None
            colour, marker = COLOURS[n % len(COLOURS)], MARKERS[n % len(MARKERS)]
            look = {"color": colour, "marker": marker, "markersize": 3.5, "linewidth": 1.2}
            axes.plot(x, np.where(y > 0, y, np.nan), line, label=shown, **look)
    label_axes(
        axes, AXIS[varied], "standard error / value", "dashed: --weighting pairs; solid: speckle"
    )
    logarithmic(axes, "x")
    logarithmic(axes, "y")
    axes.legend(frameon=False, fontsize=8, ncols=2)
    return picture


def draw_pulls(toys: Toys) -> FitFigure:
    """Draw a histogram of (estimate - truth)/error of each parameter, with the expected curve."""
    names, pulls = toys.dataset["param"].values, toys.pulls
    picture, axes = panels(len(names), COLUMNS, 2.2, 1.7)
    edges = np.linspace(-REACH, REACH, BINS + 1)
    x = np.linspace(-REACH, REACH, 161)
    for axis, name, values in zip(axes, names, pulls.T, strict=True):
        known = np.clip(values[np.isfinite(values)], -REACH + 1e-9, REACH - 1e-9)
        axis.hist(known, edges.tolist(), color=COLOURS[0], alpha=0.5)
        width = edges[1] - edges[0]
        axis.plot(
            x, len(known) * width * np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi), color=COLOURS[1]
        )
        label_axes(axis, "(estimate - truth) / error", "toys", plain_label(str(name)))
    return picture
