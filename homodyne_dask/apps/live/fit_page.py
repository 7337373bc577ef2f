"""The page /fit as HTML: the fits that run, in words and numbers."""

import math
import shlex
import time
from collections.abc import Iterable, Sequence
from typing import Any

from homodyne_dask import events
from homodyne_dask.document.blocks import render
from homodyne_dask.results.data import numbers_and_intervals as numbers

PACKAGE = "homodyne_dask.apps.live"
MAX_ROWS = 200  # passes in the table, the latest ones


def render_page(template: str, fits: Iterable[events.Progress], pages: Sequence[str]) -> str:
    """Return page.html, or sections.html, which change while a fit runs; `pages`: of the dashboard."""
    return render(PACKAGE, template, pages=pages, shown=[_content(fit) for fit in fits])


def render_cell(fit: events.Progress) -> str:
    """Return outcome and progress for the output of a notebook cell, and parameters while the fit runs."""
    return render(PACKAGE, "cell.html", **_content(fit))


def _content(fit: events.Progress) -> dict[str, Any]:
    until = fit.at + (time.monotonic() - fit.seen if fit.running else 0.0)
    bar = _bar(fit, until)
    head = ["pass", "χ²", "reduced χ²", "distance [σ]", "damping", "", "time", *fit.names]
    return {
        "fit": fit,
        "bar": bar,
        "progress_rows": _progress_rows(fit, until, bar),
        "parameter_rows": _parameter_rows(fit),
        "pass_rows": [head, *map(_pass_row, fit.done[-MAX_ROWS:])],
        "look": f"homodyne-dask view {shlex.quote(fit.store)}" if fit.store else "",
    }


def _bar(fit: events.Progress, now: float) -> str:
    if fit.now is None:
        return ""
    seconds = fit.seconds_left(now)
    eta = f", about {numbers.format_seconds(seconds)} left" if math.isfinite(seconds) else ""
    return f"{fit.now.done} of {fit.now.tiles} tiles{eta}"


def _progress_rows(fit: events.Progress, now: float, bar: str) -> list[tuple[str, str]]:
    skipped, tiles = numbers.format_count(fit.tiles_skipped), numbers.format_count(fit.tiles_total)
    rate = f"{fit.rate / 1e6:.3g} M {fit.datum}/s, {fit.byte_rate / 1e9:.3g} GB/s"
    return [
        ("current step", fit.doing),
        ("elapsed time", numbers.format_seconds(now - fit.began)),
        *([("this pass", bar)] if bar else []),
        ("rate", rate if math.isfinite(fit.rate) else "-"),
        (fit.datum, f"{numbers.format_count(fit.pairs)} of {fit.bins} bins, {fit.where}"),
        ("processed so far", f"{numbers.format_count(fit.pairs_total)} {fit.datum} in all passes"),
        ("tiles skipped", f"{skipped} of {tiles}: f has decayed to zero there"),
    ]


def _parameter_rows(fit: events.Progress) -> list[list[str]]:
    if not fit.theta:
        return []
    ended = len(fit.low) == len(fit.theta)
    rows = [["parameter", "value ± stderr", "unit", *["95 % from", "to"] * ended]]
    for n, (name, unit, value) in enumerate(zip(fit.names, fit.units, fit.theta, strict=True)):
        ends = (fit.low[n], fit.high[n]) if ended else ()
        band = [f"{end:.5g}" if math.isfinite(end) else "-" for end in ends]
        rows.append([name, numbers.value_and_error(value, fit.stderr[n]), unit, *band])
    return rows


def _pass_row(ended: events.Pass) -> list[str]:
    distance = f"{ended.distance:.2g}" if math.isfinite(ended.distance) else "-"
    cells = [f"{ended.chisqr:.8g}", f"{ended.redchi:.6g}", distance, f"{ended.damping:.1e}"]
    verdict = "accepted" if ended.accepted else "rejected"
    values = map(numbers.value_and_error, ended.theta, ended.stderr)
    name, took = events.pass_name(ended.factor, ended.number), numbers.format_seconds(ended.seconds)
    return [name, *cells, verdict, took, *values]
