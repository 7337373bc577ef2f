"""Pictures of planned scans: errors against the quantity that is varied, pulls of toys."""

from functools import partial

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes

from homodyne_dask.apps.design.planned_errors import Design
from homodyne_dask.errors import OptionError
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


def draw_design(design: Design) -> draw.FitFigure:
    """Draw errors relative to the parameters, errors themselves of parameters that are 0."""
    if design.varied is None:
        raise OptionError(
            "a design of a single scan cannot be plotted: give vary, such as vary={'frames': [300, 3000]}"
        )
    return draw.page({"errors": partial(_errors, design=design)}, 1, 2.4)


def _errors(axes: Axes, design: Design) -> None:
    data = design.dataset
    lines = "dashed: --weighting pairs; solid: speckle"
    draw.label_axes(axes, AXIS[str(design.varied)], "standard error / value", lines, log="xy")
    for n, name in enumerate(map(str, data["parameter"].values)):
        value = abs(float(data["value"][n]))
        look = {"color": COLOURS[n % len(COLOURS)], "marker": MARKERS[n % len(MARKERS)], "ms": 3}
        known = data["stderr"].isel(parameter=n)
        for line, weighting in (("--", "pairs"), ("-", "speckle")):
            y = known.sel(weighting=weighting).values / (value or 1.0)
            axes.plot(data["varied"].values, np.where(y > 0, y, np.nan), line, lw=1.2, **look)
        words = "" if value else " (absolute)"
        words = words if np.isfinite(known).any() else " (undetermined)"
        axes.lines[-1].set_label(plain_label(f"{name}{words}"))


def draw_pulls(toys: Toys) -> draw.FitFigure:
    """Draw a histogram of (estimate - truth)/error of each parameter, with the expected curve."""
    names, pulls = toys.dataset["param"].values, toys.pulls
    shown = {
        str(name): partial(_pulls, name=str(name), values=values)
        for name, values in zip(names, pulls.T, strict=True)
    }
    return draw.page(shown, draw.columns_for(len(names)), 1.4)


def _pulls(axis: Axes, name: str, values: Float[np.ndarray, " toy"]) -> None:
    edges, x = np.linspace(-REACH, REACH, BINS + 1), np.linspace(-REACH, REACH, 161)
    draw.label_axes(axis, "(estimate − truth) / error", "toys", plain_label(name))
    known = np.clip(values[np.isfinite(values)], -REACH + 1e-9, REACH - 1e-9)
    axis.stairs(np.histogram(known, edges)[0], edges, fill=True, color=COLOURS[0], alpha=0.5)
    normal = np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi) * (2 * REACH / BINS)
    axis.plot(x, len(known) * normal, color=COLOURS[1], lw=1.2)
