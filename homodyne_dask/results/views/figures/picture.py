"""Figures that show themselves in notebooks, and as PNG files."""

import io
from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

MAX_MINOR_TICKS = 16
"""Of an axis, about two decades: more take most of the time of a figure, and label nothing."""


class FitFigure(Figure):
    """A figure that notebooks show as a picture, though it belongs to no window of pyplot."""

    def _repr_png_(self) -> bytes:
        return png_of(self, {})


def png_of(picture: Figure, about: Mapping[str, str]) -> bytes:
    """Return a figure as PNG, with texts about it by keyword."""
    for axis in (axis for axes in picture.axes for axis in (axes.xaxis, axes.yaxis)):
        if len(axis.get_minorticklocs()) > MAX_MINOR_TICKS:
            axis.set_minor_locator(NullLocator())
    content = io.BytesIO()
    # at PIL's own level of compression files are an eighth smaller, and take twice as long to write
    picture.savefig(content, format="png", metadata=about, pil_kwargs={"compress_level": 1})
    return content.getvalue()
