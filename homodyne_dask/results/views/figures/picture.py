"""Figures of fits: they show themselves in notebooks, and are drawn with few artists."""

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import NullLocator

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.backend_bases import RendererBase

MAJOR, MINOR = (3.5, 0.8, 7.0), (2.0, 0.6, 5.4)
"""Of ticks, in points: length, width, distance of the label from the axis."""
OFFSET_PAD = 3.0
"""Points from tick labels to a power of ten that they leave out."""
_MARKERS: dict[str, Any] = {"bottom": 3, "left": 0, "right": 1}
"""Markers of matplotlib for ticks that point outwards: TICKDOWN, TICKLEFT, TICKRIGHT."""


class FitFigure(Figure):
    """A figure that notebooks show as a picture, though it belongs to no window of pyplot."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png")
        return content.getvalue()


def png_of(picture: Figure, about: Mapping[str, str]) -> bytes:
    """Return a figure as PNG, with texts about it by keyword.

    Its ticks are replaced, so that it is not to be changed afterwards.
    """
    replace_ticks(FigureCanvasAgg(picture))
    content = io.BytesIO()
    # at PIL's own level of compression files are an eighth smaller, and take twice as long to write
    picture.savefig(content, format="png", metadata=about, pil_kwargs={"compress_level": 1})
    return content.getvalue()


class _Ticks(NamedTuple):
    """The ticks of one axis, major or minor ones."""

    places: Float[np.ndarray, " n"]
    labels: list[str]
    size: float
    width: float
    pad: float


def replace_ticks(canvas: FigureCanvasAgg) -> None:
    """Replace the ticks of all rectangular axes of a figure by texts and one line of markers for each axis.

    A tick of matplotlib is five artists, of which most draw nothing; they take most of the time of a figure:
    the seven figures of a fit would take twice as long, a second more.
    """
    renderer = canvas.get_renderer()
    rectangular = [axes for axes in canvas.figure.axes if axes.name == "rectilinear"]
    found = [
        (axes, axis, _ticks(axis)) for axes in rectangular for axis in (axes.xaxis, axes.yaxis)
    ]
    for axes, axis, (ticks, offset) in found:
        axis.set_major_locator(NullLocator())
        axis.set_minor_locator(NullLocator())
        _draw(axes, axis, ticks, offset, renderer)


def _ticks(axis: "Axis") -> tuple[list[_Ticks], str]:
    """Return major and minor ticks inside the view, and the power of ten that their labels leave out."""
    transform = axis.get_transform()
    low, high = np.sort(transform.transform(np.asarray(axis.get_view_interval(), float)))
    found = []
    for places, formatter, look in (
        (axis.get_majorticklocs(), axis.get_major_formatter(), MAJOR),
        (axis.get_minorticklocs(), axis.get_minor_formatter(), MINOR),
    ):
        labels = formatter.format_ticks(list(places))
        at, margin = transform.transform(np.asarray(places, float)), 1e-10 * (high - low)
        inside = np.flatnonzero((at >= low - margin) & (at <= high + margin))
        found.append(_Ticks(np.asarray(places)[inside], [labels[n] for n in inside], *look))
    return found, axis.get_major_formatter().get_offset()


def _draw(
    axes: "Axes", axis: "Axis", ticks: list[_Ticks], offset: str, renderer: "RendererBase"
) -> None:
    """Add the ticks of one axis to its axes, and move the axis label to where their labels end."""
    along, look = axis is axes.xaxis, axis.get_tick_params()
    side = "bottom" if along else "left" if look["left"] else "right"
    name, number = ("xaxis" if along else "yaxis"), (2 if side == "right" else 1)
    marks = getattr(axes, f"get_{name}_transform")(f"tick{number}")
    reach, scale = MAJOR[0], float(axes.figure.dpi) / 72
    for one in ticks:
        edge = np.full(len(one.places), float(side == "right"))
        x, y = (one.places, edge) if along else (edge, one.places)
        line = Line2D(
            x, y, linestyle="none", marker=_MARKERS[side], markersize=one.size,
            markeredgewidth=one.width, color="black", transform=marks, clip_on=False,
        )  # fmt: skip
        axes.add_artist(line)
        beside, va, ha = getattr(axes, f"get_{name}_text{number}_transform")(one.pad)
        for n in np.flatnonzero(one.labels) if look[f"label{side}"] else ():
            label = Text(
                x[n], y[n], one.labels[n], transform=beside, va=va, ha=ha, clip_on=False,
                fontsize=look.get("labelsize"),
            )  # fmt: skip
            axes.add_artist(label)
            extent = label.get_window_extent(renderer).size[int(along)] / scale
            reach = max(reach, one.pad + extent)
    axis.labelpad += reach
    if offset and reach > MAJOR[0]:
        at = (1.0, -reach - OFFSET_PAD) if along else (0.0, OFFSET_PAD)
        corner = {"xycoords": ("axes fraction", "axes fraction"), "textcoords": "offset points"}
        axes.annotate(
            offset, (at[0], float(not along)), (0, at[1]), **corner,
            va="top" if along else "baseline", ha="right" if along else "left",
        )  # fmt: skip
