"""Small charts as SVG: they follow the page's colours, and each says in words what it shows."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from homodyne_dask.results.markup import Html, element, joined

WIDTH, HEIGHT = 320, 190
LEFT, RIGHT, TOP, BOTTOM = 66, 10, 10, 36
MOST_TICKS = 5
LINE = 12
"""Height of a text."""
ROOM_FOR_ZERO = 0.15
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
    """How values become heights: on a log axis 0 and less stand at the bottom."""

    low: float
    high: float
    log: bool

    def at(self, value: float) -> float:
        """Return the height of a value in the picture."""
        if self.log:
            value = math.log10(value) if value > 0 else self.low
        share = (value - self.low) / (self.high - self.low)
        return TOP + (1 - min(max(share, 0.0), 1.0)) * (HEIGHT - TOP - BOTTOM)


def chart(name: str, marks: Sequence[Mark], log: bool = True) -> Html:
    """Return a figure of values by pass; coarse passes are squares, rejected ones crosses."""
    known = [mark for mark in marks if math.isfinite(mark.y)]
    words = _words(name, known)
    if not known:
        return element("figure", element("figcaption", name), element("p", "not known yet"))
    scale = scale_of(known, log)
    first, last = min(mark.x for mark in marks), max(mark.x for mark in marks)

    def across(x: float) -> float:
        share = (x - first) / (last - first) if last > first else 0.5
        return LEFT + 8 + share * (WIDTH - LEFT - RIGHT - 16)

    inside = [_axes(scale, first, last, across)]
    path = " ".join(f"{across(m.x):.1f},{scale.at(m.y):.1f}" for m in known)
    inside.append(element("polyline", points=path, class_="way"))
    inside += [_mark(m, across(m.x), scale) for m in known]
    box = f"0 0 {WIDTH} {HEIGHT}"
    picture = element("svg", *inside, viewBox=box, role="img", aria_label=words)
    return element("figure", element("figcaption", name), picture)


def scale_of(marks: Sequence[Mark], log: bool) -> Scale:
    """Return an axis that holds all values, and their error bars where they are not longer than that."""
    if log:
        tens = [math.log10(mark.y) for mark in marks if mark.y > 0] or [0.0]
        low, high = math.floor(min(tens)), math.ceil(max(tens) + 1e-9)
        return Scale(low - ROOM_FOR_ZERO * (high - low), high + 0.1, True)
    values = [mark.y for mark in marks]
    span = max(values) - min(values) or abs(values[0]) or 1.0
    for mark in marks:
        if math.isfinite(mark.error):
            reach = min(mark.error, 2 * span)
            values += [mark.y - reach, mark.y + reach]
    margin = 0.06 * (max(values) - min(values) or span)
    return Scale(min(values) - margin, max(values) + margin, False)


def _words(name: str, known: Sequence[Mark]) -> str:
    if not known:
        return f"{name}: not known yet"
    last = known[-1]
    error = f" ± {last.error:.2g}" if math.isfinite(last.error) else ""
    return (
        f"{name}, by pass: from {known[0].y:.4g} to {last.y:.4g}{error} after {len(known)} passes"
    )


def _axes(scale: Scale, first: int, last: int, across: Callable[[float], float]) -> Html:
    bottom, parts = HEIGHT - BOTTOM, []
    for value, text in ticks(scale):
        height = f"{scale.at(value):.1f}"
        parts += [
            element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=height, y2=height, class_="grid"),
            element("text", text, x=LEFT - 6, y=height, class_="tick end"),
        ]
    step = max(1, math.ceil((last - first) / 6))
    parts += [
        element("text", x, x=f"{across(x):.1f}", y=bottom + 14, class_="tick middle")
        for x in range(first, last + 1, step)
    ]
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(element("text", "pass", x=middle, y=HEIGHT - 6, class_="tick middle"))
    return joined(*parts)


def ticks(scale: Scale) -> list[tuple[float, str]]:
    """Return at most about MOST_TICKS values with their texts."""
    if scale.log:
        tens = range(math.ceil(scale.low), math.floor(scale.high) + 1)
        step = max(1, math.ceil(len(tens) / MOST_TICKS))
        found = [(10.0**n, _power(n)) for n in tens if (n - tens[0]) % step == 0]
        apart = scale.at(0.0) - LINE
        return [(0.0, "0"), *(tick for tick in found if scale.at(tick[0]) < apart)]
    raw = (scale.high - scale.low) / (MOST_TICKS - 1)
    ten = 10.0 ** math.floor(math.log10(raw))
    step = next(n * ten for n in (1, 2, 5, 10) if n * ten >= raw)
    first = math.ceil(scale.low / step)
    values = [n * step for n in range(first, math.floor(scale.high / step) + 1)]
    return [(value, f"{value:.6g}") for value in values]


def _power(n: int) -> str:
    if -3 <= n <= 3:
        return f"{10.0**n:g}"
    return "10" + str(n).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _mark(mark: Mark, x: float, scale: Scale) -> Html:
    y = scale.at(mark.y)
    bar = joined()
    if math.isfinite(mark.error):
        ends = [f"{scale.at(mark.y + sign * mark.error):.1f}" for sign in (-1, 1)]
        bar = element("line", x1=f"{x:.1f}", x2=f"{x:.1f}", y1=ends[0], y2=ends[1], class_="error")
    said = element("title", f"{mark.y:.6g}" + ("" if mark.accepted else ", not accepted"))
    if not mark.accepted:
        cross = f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"
        return joined(bar, element("path", said, d=cross, class_="cross"))
    if mark.coarse:
        at = {"x": f"{x - 4:.1f}", "y": f"{y - 4:.1f}"}
        return joined(bar, element("rect", said, **at, width=8, height=8, class_="coarse"))
    return joined(bar, element("circle", said, cx=f"{x:.1f}", cy=f"{y:.1f}", r=4.5, class_="full"))
