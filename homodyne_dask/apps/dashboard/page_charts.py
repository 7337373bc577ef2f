"""Charts of values against passes, as SVG with a text alternative."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from homodyne_dask.results.views.jinja_templates import render

PACKAGE = "homodyne_dask.apps.dashboard"
WIDTH, HEIGHT = 320, 190
LEFT, RIGHT, TOP, BOTTOM = 66, 10, 10, 36
MAX_TICKS = 5
TEXT_HEIGHT = 12
"""Height of a text."""
SPACE_FOR_ZERO = 0.15
"""Below the lowest power of ten on a log axis, of its length."""


class Mark(NamedTuple):
    """One pass in a chart."""

    x: int
    y: float
    coarse: bool
    accepted: bool
    error: float = math.nan
    """Half the length of the error bar."""


class Scale(NamedTuple):
    """The vertical axis; on a log axis values of 0 and less are at the bottom."""

    low: float
    high: float
    log: bool

    def at(self, value: float) -> float:
        """Return the vertical position of a value."""
        if self.log:
            value = math.log10(value) if value > 0 else self.low
        share = (value - self.low) / (self.high - self.low)
        return TOP + (1 - min(max(share, 0.0), 1.0)) * (HEIGHT - TOP - BOTTOM)


class Drawn(NamedTuple):
    """Position and label of a pass in a chart."""

    x: float
    y: float
    bar: tuple[float, float] | None
    """Lower and upper end of the error bar."""
    coarse: bool
    accepted: bool
    words: str


def chart(name: str, marks: Sequence[Mark], log: bool = True) -> Markup:
    """Return a chart of values against passes: coarse passes are squares, rejected ones crosses."""
    known = [mark for mark in marks if math.isfinite(mark.y)]
    if not known:
        return Markup(render(PACKAGE, "chart.html", name=name, marks=()))
    scale = scale_of(known, log)
    first, last = min(mark.x for mark in marks), max(mark.x for mark in marks)
    step = max(1, math.ceil((last - first) / 6))
    drawn = render(
        PACKAGE,
        "chart.html",
        name=name,
        words=_words(name, known),
        marks=[_drawn(mark, _across(mark.x, first, last), scale) for mark in known],
        ticks=[(scale.at(value), text) for value, text in ticks(scale)],
        passes=_pass_labels(first, last, step),
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        right=WIDTH - RIGHT,
        bottom=HEIGHT - BOTTOM,
    )
    return Markup(drawn)


def _pass_labels(first: int, last: int, step: int) -> list[tuple[float, str]]:
    """Return positions and labels: numbers of passes over all data, and where those over means are."""
    full = [
        (_across(x, first, last), str(x))
        for x in range(first, last + 1)
        if x > 0 and (x - 1) % step == 0
    ]
    middle = (first + min(last, 0)) / 2
    return [(_across(middle, first, last), "means"), *full] if first < 1 else full


def _across(x: float, first: int, last: int) -> float:
    share = (x - first) / (last - first) if last > first else 0.5
    return LEFT + 8 + share * (WIDTH - LEFT - RIGHT - 16)


def _drawn(mark: Mark, x: float, scale: Scale) -> Drawn:
    bar = None
    if math.isfinite(mark.error):
        bar = scale.at(mark.y - mark.error), scale.at(mark.y + mark.error)
    words = f"{mark.y:.6g}" + ("" if mark.accepted else ", rejected")
    return Drawn(x, scale.at(mark.y), bar, mark.coarse, mark.accepted, words)


def scale_of(marks: Sequence[Mark], log: bool) -> Scale:
    """Return an axis for all values, and for error bars up to twice their range."""
    if log:
        tens = [math.log10(mark.y) for mark in marks if mark.y > 0] or [0.0]
        low, high = math.floor(min(tens)), math.ceil(max(tens) + 1e-9)
        return Scale(low - SPACE_FOR_ZERO * (high - low), high + 0.1, True)
    values = [mark.y for mark in marks]
    span = max(values) - min(values) or abs(values[0]) or 1.0
    for mark in marks:
        if math.isfinite(mark.error):
            reach = min(mark.error, 2 * span)
            values += [mark.y - reach, mark.y + reach]
    margin = 0.06 * (max(values) - min(values) or span)
    return Scale(min(values) - margin, max(values) + margin, False)


def _words(name: str, known: Sequence[Mark]) -> str:
    last = known[-1]
    error = f" ± {last.error:.2g}" if math.isfinite(last.error) else ""
    return (
        f"{name}, by pass: from {known[0].y:.4g} to {last.y:.4g}{error} after {len(known)} passes"
    )


def ticks(scale: Scale) -> list[tuple[float, str]]:
    """Return about MAX_TICKS values with their labels."""
    if scale.log:
        tens = range(math.ceil(scale.low), math.floor(scale.high) + 1)
        step = max(1, math.ceil(len(tens) / MAX_TICKS))
        found = [(10.0**n, _power(n)) for n in tens if (n - tens[0]) % step == 0]
        apart = scale.at(0.0) - TEXT_HEIGHT
        return [(0.0, "0"), *(tick for tick in found if scale.at(tick[0]) < apart)]
    raw = (scale.high - scale.low) / (MAX_TICKS - 1)
    ten = 10.0 ** math.floor(math.log10(raw))
    step = next(n * ten for n in (1, 2, 5, 10) if n * ten >= raw)
    first = math.ceil(scale.low / step)
    values = [n * step for n in range(first, math.floor(scale.high / step) + 1)]
    return [(value, f"{value:.6g}") for value in values]


def _power(n: int) -> str:
    if -3 <= n <= 3:
        return f"{10.0**n:g}"
    return "10" + str(n).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
