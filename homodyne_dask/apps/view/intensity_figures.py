"""The intensity of a measurement: of each frame, and averaged over the frames, where the store has them."""

from typing import Any

import numpy as np
from bokeh.models import ColorBar, LogColorMapper, Range1d
from bokeh.palettes import Cividis256
from jaxtyping import Float

from homodyne_dask.apps.view.view_figures import new_figure
from homodyne_dask.results.views.figures.style import COLOURS, UNKNOWN_COLOUR
from homodyne_dask.store.scan import Scan

MAX_POINTS = 4000
"""Frames of a curve; longer ones are means over groups of frames."""
REACH = 1e4
"""The largest over the smallest intensity that colours tell apart."""


def intensity_figures(scan: Scan, x: Range1d) -> list[Any]:
    """Return intensity against time, with the time axis of the maps, and the mean image."""
    made = []
    counts = scan.all_bins["intensity"][list(scan.bins)]
    known = counts[np.isfinite(counts).all(axis=1)]
    flux = scan.optional_array("flux")
    if len(known):
        made.append(_against_time(scan, known.mean(axis=0), "counts per pixel", x))
    elif flux is not None:
        made.append(_against_time(scan, flux, "intensity [arb. units]", x))
    image = scan.optional_array("mean_image")
    if image is not None and np.nanmax(image) > 0:
        made.append(_image(image))
    return made


def _against_time(scan: Scan, values: Float[np.ndarray, " t"], unit: str, x: Range1d) -> Any:
    masked = ~scan.frame_mask
    title = "intensity" + "; ×: frames masked by ingest" * bool(masked.any())
    fig = new_figure("intensity", "t [s]", unit, x_range=x, title=title)
    side = -(-len(values) // MAX_POINTS)
    whole = len(values) // side * side
    time, means = (of[:whole].reshape(-1, side).mean(axis=1) for of in (scan.time, values))
    fig.line(time, means, color=COLOURS[0])
    fig.scatter(scan.time[masked], values[masked], marker="x", color="black", name="masked")
    return fig


def _image(image: Float[np.ndarray, "y x"]) -> Any:
    """Return the mean over the frames with logarithmic colours; row 0 of the detector is at the top."""
    high = float(np.nanquantile(image, 0.999)) or float(np.nanmax(image))
    low = max(float(np.nanmin(image[image > 0])), high / REACH)
    mapper = LogColorMapper(
        palette=Cividis256, low=min(low, 0.99 * high), high=high, nan_color=UNKNOWN_COLOUR
    )
    rows, columns = image.shape
    ranges = {"x_range": Range1d(start=0, end=columns), "y_range": Range1d(start=rows, end=0)}
    fig = new_figure(
        "mean-image", None, None, match_aspect=True, title="mean over frames", **ranges
    )
    fig.image([image], x=0, y=0, dw=columns, dh=rows, color_mapper=mapper)
    fig.axis.visible = False
    fig.grid.visible = False
    fig.add_layout(ColorBar(color_mapper=mapper, width=12), "right")
    return fig
