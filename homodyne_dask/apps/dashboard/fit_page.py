"""The page /fit as HTML: numbers first, then charts with text alternatives."""

import math
import shlex
import time
from typing import Any, NamedTuple

from markupsafe import Markup

from homodyne_dask import events
from homodyne_dask.apps.dashboard.page_charts import PACKAGE, Mark, chart
from homodyne_dask.results.data.number_format import format_count, format_seconds, value_and_error
from homodyne_dask.results.views.jinja_templates import render
from homodyne_dask.text import size

MAX_ROWS = 200
"""Most passes in the table, the latest ones."""


class WorkerRow(NamedTuple):
    """A worker in the table of the page."""

    name: str
    threads: int
    memory: int
    """Memory of the process [bytes]."""
    limit: int
    """Memory limit [bytes]; 0 for none."""


class PageState(NamedTuple):
    """The state that the page shows."""

    fits: tuple[events.Progress, ...]
    """All fits that are kept, the latest first."""
    chosen: events.Progress | None
    workers: tuple[WorkerRow, ...] = ()
    lost: tuple[str, ...] = ()
    """Workers lost during the chosen fit."""
    cost: float = 0.0
    """Processor time spent on events and pages [s]."""


def render_page(shown: PageState, pages: list[str]) -> str:
    """Return the whole page; `pages` are those of the dashboard."""
    return render(PACKAGE, "page.html", pages=pages, **_content(shown))


def render_sections(shown: PageState) -> str:
    """Return the sections, which change while a fit runs."""
    return render(PACKAGE, "sections.html", **_content(shown))


def render_cell(fit: events.Progress) -> str:
    """Return outcome and progress for the output of a notebook cell, and parameters while the fit runs."""
    return render(PACKAGE, "cell.html", **_fit_content(fit))


def _content(shown: PageState) -> dict[str, Any]:
    """Return the values that the templates of the page show."""
    fit = shown.chosen
    if fit is None:
        return {"fit": None}
    return _fit_content(fit) | {
        "fits": shown.fits,
        "states": {one.fit: _state(one) for one in shown.fits},
        "charts": _charts(fit),
        "pass_rows": _pass_rows(fit),
        "lost": shown.lost,
        "look": f"homodyne-dask view {shlex.quote(fit.store)}" if fit.store else "",
        "refused": [f"refused: {words}" for words in fit.refused],
        "worker_rows": _worker_rows(shown),
        "cost": _cost(shown),
    }


def _fit_content(fit: events.Progress) -> dict[str, Any]:
    """Return the values of one fit, for the page and for a notebook."""
    until = fit.at + (time.monotonic() - fit.seen if fit.running else 0.0)
    return {
        "fit": fit,
        "bar": _bar(fit, until),
        "progress_rows": _progress_rows(fit, until),
        "parameter_rows": _parameter_rows(fit),
    }


def _state(fit: events.Progress) -> str:
    passes = f"{fit.passes} pass{'es' * (fit.passes != 1)}"
    if fit.running:
        return f"running, {passes} completed"
    return f"{fit.outcome.lower().replace('_', ' ')} after {passes}"


def _bar(fit: events.Progress, at: float) -> str:
    """Return the progress of the current pass, "" between passes."""
    if fit.now is None:
        return ""
    left = fit.seconds_left(at)
    eta = f", about {format_seconds(left)} left" if math.isfinite(left) else ""
    return f"{fit.now.done} of {fit.now.tiles} tiles{eta}"


def _progress_rows(fit: events.Progress, at: float) -> list[tuple[str, str]]:
    bar = _bar(fit, at)
    skipped, tiles = format_count(fit.tiles_skipped), format_count(fit.tiles_total)
    return [
        ("current step", fit.doing),
        ("elapsed time", format_seconds(at - fit.began)),
        *([("this pass", bar)] if bar else []),
        ("pairs per second", _of(fit.rate, fit.target, 1e6, "M")),
        ("bytes per second", _of(fit.byte_rate, fit.byte_target, 1e9, "GB")),
        ("pairs", f"{format_count(fit.pairs)} of {fit.bins} bins, {fit.where}"),
        ("processed so far", f"{format_count(fit.pairs_total)} pairs in all passes"),
        ("tiles skipped", f"{skipped} of {tiles}: f has decayed to zero there"),
    ]


def _of(rate: float, target: float, unit: float, name: str) -> str:
    """Return a rate and the rate with all threads busy; - before the first tile is done."""
    if not (math.isfinite(rate) and math.isfinite(target)):
        return "-"
    return f"{rate / unit:.3g} {name} ({target / unit:.3g} {name} with all threads busy)"


def _parameter_rows(fit: events.Progress) -> list[list[str]]:
    if not fit.theta:
        return []
    ended = len(fit.low) == len(fit.theta)
    rows = [["parameter", "value ± stderr", "unit", *["95 % from", "to"] * ended]]
    for n, (name, unit, value) in enumerate(zip(fit.names, fit.units, fit.theta, strict=True)):
        ends = (fit.low[n], fit.high[n]) if ended else ()
        band = [f"{end:.5g}" if math.isfinite(end) else "-" for end in ends]
        rows.append([name, value_and_error(value, fit.stderr[n]), unit, *band])
    return rows


def _charts(fit: events.Progress) -> list[Markup]:
    if not fit.done:
        return []
    lowest = {
        factor: min(one.chisqr for one in fit.done if one.factor == factor)
        for factor in {one.factor for one in fit.done}
    }
    above = [one.chisqr - lowest[one.factor] for one in fit.done]
    distance, damping = (
        [getattr(one, name) for one in fit.done] for name in ("distance", "damping")
    )
    drawn = [
        _chart(fit, "χ² − lowest χ² at the same resolution", above),
        _chart(fit, "Estimated distance to the minimum [σ]", distance),
        _chart(fit, "Damping", damping),
    ]
    for n, (name, unit) in enumerate(zip(fit.names, fit.units, strict=True)):
        values = [one.theta[n] for one in fit.done]
        errors = [one.stderr[n] for one in fit.done]
        drawn.append(_chart(fit, f"{name} ± 1σ" + (f" [{unit}]" if unit else ""), values, errors))
    return drawn


def _chart(
    fit: events.Progress, name: str, values: list[float], errors: list[float] | None = None
) -> Markup:
    first = 1 - sum(one.factor > 1 for one in fit.done)
    error = errors or [math.nan] * len(values)
    marks = [
        Mark(first + n, value, one.factor > 1, one.accepted, half)
        for n, (one, value, half) in enumerate(zip(fit.done, values, error, strict=True))
    ]
    return chart(name, marks, log=errors is None)


def _pass_rows(fit: events.Progress) -> list[list[str]]:
    head = ["pass", "χ²", "χ²/N", "distance [σ]", "damping", "", "time"]
    return [head, *map(_pass_row, fit.done[-MAX_ROWS:])]


def _pass_row(one: events.Pass) -> list[str]:
    distance = f"{one.distance:.2g}" if math.isfinite(one.distance) else "-"
    return [
        events.pass_name(one.factor, one.number), f"{one.chisqr:.8g}", f"{one.per_pair:.6g}", distance,
        f"{one.damping:.1e}", "accepted" if one.accepted else "rejected", format_seconds(one.seconds),
    ]  # fmt: skip


def _worker_rows(shown: PageState) -> list[list[str]]:
    return [["worker", "threads", "memory", "limit"]] + [
        [worker.name, str(worker.threads), size(worker.memory), size(worker.limit) if worker.limit else "-"]
        for worker in shown.workers
    ]  # fmt: skip


def _cost(shown: PageState) -> str:
    busy = sum(fit.busy for fit in shown.fits)
    share = f", {100 * shown.cost / busy:.2g} % of the processor time of the fits" if busy else ""
    return f"Events and this page used {shown.cost:.2g} s of processor time{share}."
