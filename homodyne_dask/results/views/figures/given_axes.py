"""Axes that a user gives, and the panel to draw in them: what figures ask before they make their own."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Place(NamedTuple):
    """Where and what is drawn: a figure of its own, or in axes; all panels, or the one of this name."""

    ax: "Axes | None" = None
    panel: str | None = None


_ALL = Place()
PLACE: ContextVar[Place] = ContextVar("PLACE", default=_ALL)


@contextmanager
def in_place_of(ax: "Axes | None", panel: str | None = None) -> Iterator[None]:
    """Let one panel be drawn in axes, or a figure in their place, where they become a SubFigure."""
    token = PLACE.set(Place(ax, panel))
    try:
        yield
    finally:
        PLACE.reset(token)
