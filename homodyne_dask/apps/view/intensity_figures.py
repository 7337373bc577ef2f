"""The intensity of a measurement: of each frame, and averaged over the frames, where the store has them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from bokeh.models import ColorBar, LogColorMapper, Range1d, Title
from bokeh.palettes import Cividis256
from bokeh.plotting import figure
from jaxtyping import Float

from homodyne_dask.apps.view.view_figures import BAR, SIDE, TOOLS, plain
from homodyne_dask.apps.view.viewed_data import ShownScan
from homodyne_dask.results.views.figures.style import COLOURS, UNKNOWN_COLOUR
from homodyne_dask.store.scan import Scan

MAX_POINTS = 4000
"""Frames of a curve; longer ones are means over groups of frames."""
REACH = 1e4
"""The largest over the smallest intensity that colours tell apart."""


def intensity_figures(shown: Sequence[ShownScan], x: Range1d) -> list[figure]:
    """Return intensity against time, with the time axis of the maps, and the mean image of each store."""
    curves = [
        (n, one.scan, found) for n, one in enumerate(shown) if (found := frame_intensity(one.scan))
    ]
    made = [_against_time(curves, x)] if curves else []
    for n, one in enumerate(shown):
        image = one.scan.optional_array("mean_image")
        if image is not None and np.nanmax(image) > 0:
            made.append(_image(n, one.name, image))
    return made


def frame_intensity(scan: Scan) -> tuple[str, Float[np.ndarray, " t"]] | None:
    """Return the intensity of each frame and its unit: counts of the selected bins, else any unit."""
    counts = scan.all_bins["intensity"][list(scan.bins)]
    known = counts[np.isfinite(counts).all(axis=1)]
    if len(known):
        return "counts per pixel", known.mean(axis=0)
    flux = scan.optional_array("flux")
    return None if flux is None else ("intensity [arb. units]", flux)


def _against_time(
    curves: Sequence[tuple[int, Scan, tuple[str, Float[np.ndarray, " t"]]]], x: Range1d
) -> figure:
    units = dict.fromkeys(unit for _, _, (unit, _) in curves)
    fig = figure(
        width=SIDE + 60, height=SIDE, tools=TOOLS, active_scroll="wheel_zoom", name="intensity", x_range=x,
        x_axis_label="t [s]", y_axis_label=" or ".join(units), toolbar_location="below",
    )  # fmt: skip
    for n, scan, (_, values) in curves:
        side = -(-len(values) // MAX_POINTS)
        whole = len(values) // side * side
        time, means = (of[:whole].reshape(-1, side).mean(axis=1) for of in (scan.time, values))
        fig.line(time, means, color=COLOURS[n], name=f"intensity-{n}")
        out = ~scan.frame_mask
        fig.scatter(scan.time[out], values[out], marker="x", color="black", name=f"masked-{n}")
    masked = any(not scan.frame_mask.all() for _, scan, _ in curves)
    title = "intensity" + "; ×: frames masked by ingest" * masked
    fig.add_layout(Title(text=title, text_font_style="normal"), "above")
    return fig


def _image(n: int, name: str, image: Float[np.ndarray, "y x"]) -> figure:
    """Return the mean over the frames with logarithmic colours; row 0 of the detector is at the top."""
    high = float(np.nanquantile(image, 0.999)) or float(np.nanmax(image))
    low = max(float(np.nanmin(image[image > 0])), high / REACH)
    mapper = LogColorMapper(
        palette=Cividis256, low=min(low, 0.99 * high), high=high, nan_color=UNKNOWN_COLOUR
    )
    rows, columns = image.shape
    fig = figure(
        width=SIDE + BAR, height=SIDE, tools="pan,wheel_zoom,box_zoom,reset,save", match_aspect=True,
        name=f"mean-image-{n}", x_range=Range1d(start=0, end=columns), y_range=Range1d(start=rows, end=0),
        toolbar_location="below",
    )  # fmt: skip
    drawn: Any = fig.image  # takes a mapper, too
    drawn([image], x=0, y=0, dw=columns, dh=rows, color_mapper=mapper)
    fig.axis.visible = False
    fig.grid.visible = False
    fig.add_layout(ColorBar(color_mapper=mapper, width=12), "right")
    fig.add_layout(Title(text="mean over frames", text_font_style="normal"), "above")
    fig.add_layout(Title(text=plain(name), text_color=COLOURS[n]), "above")
    return fig
