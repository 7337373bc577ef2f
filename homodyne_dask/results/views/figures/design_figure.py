"""Pictures of planned scans: errors against the quantity that is varied, pulls of toys."""

import numpy as np

from homodyne_dask.errors import OptionError
from homodyne_dask.results.data.planned_errors import Design
from homodyne_dask.results.data.toys import Toys
from homodyne_dask.results.views.figures import panels as draw
from homodyne_dask.results.views.figures.style import COLOURS, MARKERS, plain_label

AXIS = {
    "frames": "frames",
    "counts": "counts per pixel and frame",
    "pixels": "pixels per bin",
    "contrast": "contrast",
    "angles": "angles, with the same total number of pixels",
    "exposure": "frame time [s], with the same total time and dose",
}
REACH, BINS = 4.0, 16
COLUMNS = 3


def draw_design(design: Design) -> draw.FitFigure:
    """Draw errors relative to the parameters, errors themselves of parameters that are 0."""
    data, varied = design.dataset, design.varied
    if varied is None:
        raise OptionError(
            "a design of a single scan cannot be plotted: give vary, such as vary={'frames': [300, 3000]}"
        )
    picture, (axes,) = draw.panels(1, 1, 5.0, 3.6)
    lines = "dashed: --weighting pairs; solid: speckle"
    draw.label_axes(axes, AXIS[varied], "standard error / value", lines, log="xy")
    for n, name in enumerate(map(str, data["parameter"].values)):
        value = abs(float(data["value"][n]))
        look = {"color": COLOURS[n % len(COLOURS)], "marker": MARKERS[n % len(MARKERS)], "ms": 3.5}
        for line, weighting in (("--", "pairs"), ("-", "speckle")):
            y = data["stderr"].sel(weighting=weighting).isel(parameter=n).values / (value or 1.0)
            axes.plot(data["varied"].values, np.where(y > 0, y, np.nan), line, lw=1.2, **look)
        axes.lines[-1].set_label(plain_label(name if value else f"{name} (absolute)"))
    draw.legend(axes, ncols=2)
    return picture


def draw_pulls(toys: Toys) -> draw.FitFigure:
    """Draw a histogram of (estimate - truth)/error of each parameter, with the expected curve."""
    names, pulls = toys.dataset["param"].values, toys.pulls
    picture, axes = draw.panels(len(names), COLUMNS, 2.2, 1.7)
    edges, x = np.linspace(-REACH, REACH, BINS + 1), np.linspace(-REACH, REACH, 161)
    normal = np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi) * (2 * REACH / BINS)
    for axis, name, values in zip(axes, names, pulls.T, strict=True):
        draw.label_axes(axis, "(estimate - truth) / error", "toys", plain_label(str(name)))
        known = np.clip(values[np.isfinite(values)], -REACH + 1e-9, REACH - 1e-9)
        axis.hist(known, edges.tolist(), color=COLOURS[0], alpha=0.5)
        axis.plot(x, len(known) * normal, color=COLOURS[1])
    return picture
