"""The page /fit as HTML: words and numbers first, charts that say what they show, no colour needed."""

import math
import time
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

from homodyne_dask.live.dashboard.drawing import Mark, chart
from homodyne_dask.live.progress import Pass, Progress, pass_name
from homodyne_dask.results.markup import Html, element, items, joined, listed, table
from homodyne_dask.results.numbers import format_count, format_seconds, value_and_error
from homodyne_dask.results.palette import STYLE
from homodyne_dask.sweep.plan import size

if TYPE_CHECKING:
    from homodyne_dask.live.dashboard.plugin import WorkerRow

STYLE_OF_CELL = Html("""
.homodyne-dask progress { width: 100%; }
.homodyne-dask dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 0 1rem; }
.homodyne-dask dd { margin: 0; }
""")
MOST_ROWS = 200
"""Passes listed at most, the latest."""


class PageState(NamedTuple):
    """What the page shows."""

    fits: tuple[Progress, ...]
    """All that are kept, the latest first."""
    chosen: Progress | None
    workers: "tuple[WorkerRow, ...]" = ()
    lost: tuple[str, ...] = ()
    """Workers the chosen fit lost."""
    cost: float = 0.0
    """Seconds of a processor that events and pages took."""


def render_page(shown: PageState, pages: list[str]) -> str:
    """Return the whole page; `pages` are those of the dashboard."""
    asset = files("homodyne_dask.live.dashboard")
    tabs = [
        element("a", name.title(), href=name, aria_current="page" if name == "fit" else None)
        for name in pages
    ]
    head = [
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", "Fits"),
        element("style", STYLE, Html(asset.joinpath("fit.css").read_text())),
    ]
    body = [
        element("nav", *tabs, aria_label="pages of the dashboard", class_="tabs"),
        element("h1", "Fits"),
        element("main", render_sections(shown), id="live"),
        element("p", "", id="contact", role="status", class_="note"),
        element("script", Html(asset.joinpath("fit.js").read_text())),
    ]
    html = element("html", element("head", *head), element("body", *body), lang="en")
    return f"<!DOCTYPE html>\n{html}\n"


def render_sections(shown: PageState) -> Html:
    """Return the parts that change, each in a section of its own."""
    fit = shown.chosen
    if fit is None:
        return _part("fits", "No fit yet", element("p", "It appears here as soon as it begins."))
    return joined(
        _part("fits", None, _choice(shown, fit)),
        _part("verdict", fit.title, _verdict(fit)),
        _part("now", "Progress", _progress(fit)),
        _part("parameters", "Parameters", _parameters(fit)),
        _part("charts", "Passes", _charts(fit)),
        _part("workers", "Workers", _workers(shown)),
        _part("cost", None, element("p", _cost(shown), class_="note")),
    )


def render_cell(fit: Progress) -> Html:
    """Return verdict, progress and parameters alone, as a notebook shows them while a fit runs."""
    link = element("a", "the live page", href=fit.page) if fit.page else joined()
    return joined(
        element("strong", fit.title), _verdict(fit), _progress(fit), _parameters(fit), link
    )


def _part(name: str, heading: str | None, *inside: Html) -> Html:
    head = [element("h2", heading)] if heading else []
    return element("section", *head, *inside, id=name)


def _choice(shown: PageState, chosen: Progress) -> Html:
    links = [
        element(
            "a",
            f"{_mark_of(fit)} {fit.title}, {fit.fit}: {_told(fit)}",
            href=f"fit?id={fit.fit}",
            id=f"to-{fit.fit}",
            aria_current="true" if fit.fit == chosen.fit else None,
        )
        for fit in shown.fits
    ]
    return element("nav", listed(links), aria_label="fits")


def _told(fit: Progress) -> str:
    if fit.running:
        return f"running, {fit.passes} passes done"
    return f"{fit.outcome.lower().replace('_', ' ')} after {fit.passes} passes"


def _mark_of(fit: Progress) -> str:
    return "…" if fit.running else "✓" if fit.outcome == "CONVERGED" else "✗"


def _verdict(fit: Progress) -> Html:
    kind = "verdict running" if fit.running else "verdict"
    kind += " converged" if fit.outcome == "CONVERGED" else ""
    sentence = element("p", f"{_mark_of(fit)} {fit.sentence}", id="outcome")
    return element("div", sentence, listed(fit.said), class_=kind, role="status")


def _progress(fit: Progress) -> Html:
    ended = time.time() if fit.running else fit.at
    rows = [("doing", fit.doing), ("time", format_seconds(ended - fit.began))]
    bar = joined()
    if fit.now is not None:
        left = fit.seconds_left(ended)
        eta = f", about {format_seconds(left)} left" if math.isfinite(left) else ""
        words = f"{fit.now.done} of {fit.now.tiles} tiles{eta}"
        rows.append(("this pass", words))
        bar = element("progress", words, value=fit.now.done, max=fit.now.tiles, aria_label=words)
    rows += [
        ("pairs per second", _of(fit.rate, fit.target, 1e6, "M")),
        ("bytes per second", _of(fit.byte_rate, fit.byte_target, 1e9, "GB")),
        ("pairs", f"{format_count(fit.pairs)} of {fit.bins} bins, {fit.where}"),
        ("worked so far", f"{format_count(fit.pairs_total)} pairs in all passes"),
        (
            "tiles skipped",
            f"{format_count(fit.tiles_skipped)} of {format_count(fit.tiles_total)}, where f has decayed to 0",
        ),
    ]
    return joined(bar, items(rows))


def _of(rate: float, target: float, unit: float, name: str) -> str:
    """Return a rate and what it were if no thread ever waited; - before a tile is done."""
    if not (math.isfinite(rate) and math.isfinite(target)):
        return "-"
    return f"{rate / unit:.3g} {name} of {target / unit:.3g} {name} if no thread waited"


def _parameters(fit: Progress) -> Html:
    if not fit.theta:
        return element("p", "No pass is done yet.")
    rows = [["parameter", "value ± 1σ", "unit", "95 % from", "to"]]
    for name, unit, value, error in zip(fit.names, fit.units, fit.theta, fit.stderr, strict=True):
        band = [f"{value + sign * 1.96 * error:.5g}" for sign in (-1, 1)]
        known = math.isfinite(error)
        rows.append([name, value_and_error(value, error), unit, *(band if known else ("-", "-"))])
    caption = "The best known errors as of now" if fit.running else "As the fit ended"
    return table(caption, rows, left=3)


def _charts(fit: Progress) -> Html:
    if not fit.done:
        return element("p", "None is done yet.")
    lowest = {
        factor: min(one.chisqr for one in fit.done if one.factor == factor)
        for factor in {one.factor for one in fit.done}
    }
    above = [one.chisqr - lowest[one.factor] for one in fit.done]
    distance, damping = (
        [getattr(one, name) for one in fit.done] for name in ("distance", "damping")
    )
    drawn = [
        _chart(fit, "χ² above the lowest of its resolution", above),
        _chart(fit, "Scaled gradient [σ to the optimum]", distance),
        _chart(fit, "Damping", damping),
    ]
    for n, (name, unit) in enumerate(zip(fit.names, fit.units, strict=True)):
        values = [one.theta[n] for one in fit.done]
        errors = [one.stderr[n] for one in fit.done]
        drawn.append(_chart(fit, f"{name} ± 1σ" + (f" [{unit}]" if unit else ""), values, errors))
    key = "● pass over all data   ■ coarse pass over block means, up to number 0   ✕ not accepted"
    bars = "Bars are the best known 1σ after each pass; those of coarse passes are of their means."
    return joined(
        element("p", key, class_="note"),
        element("p", bars, class_="note"),
        element("div", *drawn, class_="charts"),
        table("Every pass that is done", _pass_rows(fit), left=1),
    )


def _chart(
    fit: Progress, name: str, values: list[float], errors: list[float] | None = None
) -> Html:
    first = 1 - sum(one.factor > 1 for one in fit.done)
    error = errors or [math.nan] * len(values)
    marks = [
        Mark(first + n, value, one.factor > 1, one.accepted, half)
        for n, (one, value, half) in enumerate(zip(fit.done, values, error, strict=True))
    ]
    return chart(name, marks, log=errors is None)


def _pass_rows(fit: Progress) -> list[list[str]]:
    rows = [["pass", "χ²", "χ²/N", "distance [σ]", "damping", "", "time"]]
    return rows + [_pass_row(one) for one in fit.done[-MOST_ROWS:]]


def _pass_row(one: Pass) -> list[str]:
    distance = f"{one.distance:.2g}" if math.isfinite(one.distance) else "-"
    return [
        pass_name(one.factor, one.number), f"{one.chisqr:.8g}", f"{one.per_pair:.6g}", distance,
        f"{one.damping:.1e}", "accepted" if one.accepted else "not accepted", format_seconds(one.seconds),
    ]  # fmt: skip


def _workers(shown: PageState) -> Html:
    rows = [["worker", "threads", "memory", "of"]]
    rows += [
        [worker.name, str(worker.threads), size(worker.memory), size(worker.limit) if worker.limit else "-"]
        for worker in shown.workers
    ]  # fmt: skip
    lost = f"{len(shown.lost)} lost during this fit: {', '.join(shown.lost)}"
    said = element("p", lost if shown.lost else "None was lost during this fit.")
    against = [] if shown.chosen is None else shown.chosen.refused
    refused = listed([f"refused as it joined: {words}" for words in against])
    return joined(said, refused, table("Workers there are now", rows, left=1))


def _cost(shown: PageState) -> str:
    busy = sum(fit.busy for fit in shown.fits)
    share = f", {100 * shown.cost / busy:.2g} % of what the fits' threads computed" if busy else ""
    return f"Events and this page took {shown.cost:.2g} s of a processor{share}."
