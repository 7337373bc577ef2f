"""The picture of a design: relative errors against the quantity that is varied."""

from typing import TYPE_CHECKING

import numpy as np

from homodyne_dask.errors import OptionError
from homodyne_dask.results.views.figures.style import (
    COLOURS,
    MARKERS,
    label_axes,
    logarithmic,
    panels,
    plain_label,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from homodyne_dask.results.data.planned_errors import Design

AXIS = {
    "frames": "frames",
    "counts": "counts per pixel and frame",
    "pixels": "pixels per bin",
    "contrast": "contrast",
    "angles": "angles, of the same number of pixels in all",
    "exposure": "frame time [s], of the same total time and dose",
}
LINES = ("--", "-")
"""By weighting: pairs, speckle."""


def draw_design(design: "Design", axes: "Axes | None" = None) -> "Figure":
    """Draw errors relative to the parameters, errors themselves of parameters that are 0."""
    data, varied = design.dataset, design.varied
    if varied is None:
        raise OptionError(
            "a design of one scan has no picture: give vary, as vary={'frames': [300, 3000]}"
        )
    picture = None
    if axes is None:
        picture, (axes,) = panels(1, 1, 5.0, 3.6)
    x = data["varied"].values
    for n, name in enumerate(map(str, data["parameter"].values)):
        value = abs(float(data["value"][n]))
        label = f"{name}" if value else f"{name} (absolute)"
        for line, weighting in zip(LINES, data["weighting"].values, strict=True):
            y = data["stderr"].sel(weighting=weighting).isel(parameter=n).values / (value or 1.0)
            axes.plot(
                x, np.where(y > 0, y, np.nan), line, color=COLOURS[n % len(COLOURS)],
                marker=MARKERS[n % len(MARKERS)], markersize=3.5, linewidth=1.2,
                label=plain_label(label) if weighting == "speckle" else None,
            )  # fmt: skip
    label_axes(
        axes, AXIS[varied], "standard error / value", "dashed: pairs, solid: speckle weights"
    )
    logarithmic(axes, "x")
    logarithmic(axes, "y")
    axes.legend(frameon=False, fontsize=8, ncols=2)
    return picture if picture is not None else axes.figure  # type: ignore[return-value]
