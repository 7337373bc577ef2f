"""Pictures of planned scans: errors against the quantity that is varied."""

from functools import partial

import numpy as np
import xarray
from matplotlib.axes import Axes

from homodyne_dask.errors import OptionError
from homodyne_dask.results.views import panels as draw
from homodyne_dask.results.views.style import COLOURS, MARKERS, plain_label, symbol


def page_of_design(data: xarray.Dataset) -> draw.Page:
    """Return a panel of errors relative to the parameters, errors themselves of parameters that are 0."""
    if "varied" not in data.attrs:
        raise OptionError(
            "a design of a single scan cannot be plotted: give vary, such as vary={'frames': [300, 3000]}"
        )
    return draw.Page({"errors": partial(_errors, data=data)}, 1, 2.4)


def _errors(axes: Axes, data: xarray.Dataset) -> None:
    varied, lines = data["varied"], "dashed: --weighting pairs; solid: speckle"
    label = varied.attrs["long_name"]
    draw.label_axes(axes, label, "standard error / value", lines, log="xy")
    for n, name in enumerate(map(str, data["parameter"].values)):
        value = abs(float(data["value"][n]))
        look = {"color": COLOURS[n % len(COLOURS)], "marker": MARKERS[n % len(MARKERS)], "ms": 3}
        stderr = data["stderr"].isel(parameter=n)
        for line, weighting in (("--", "pairs"), ("-", "speckle")):
            y = stderr.sel(weighting=weighting).values / (value or 1.0)
            axes.plot(varied.values, np.where(y > 0, y, np.nan), line, lw=1.2, **look)
        words = "" if value else " (absolute)"
        words = words if np.isfinite(stderr).any() else " (undetermined)"
        axes.lines[-1].set_label(plain_label(f"{symbol(name)}{words}"))
