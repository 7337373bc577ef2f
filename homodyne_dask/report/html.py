"""The report as one HTML file: the verdict first, pictures inside, readable without colour or mouse."""

import struct
from base64 import b64encode
from collections.abc import Sequence
from typing import NamedTuple

from homodyne_dask.lm import Outcome
from homodyne_dask.markup import Html, element, items, joined, listed, table
from homodyne_dask.report.pictures_style import DPI
from homodyne_dask.report.text import (
    bin_rows,
    facts,
    parameter_rows,
    reservations,
    scaling_in_short,
    title,
    what_if,
)
from homodyne_dask.result import FitResult

CSS_INCH = 96
MAX_OPEN_ROWS = 40
"""Tables of bins longer than this are closed at first."""
STYLE = Html("""
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --faint: #5c5c5c; --line: #d0d0d0;
  --tint: #f4f4f2; --link: #0b57a4; --good: #00704f; --bad: #a63a00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e6; --paper: #16181a; --faint: #a8a8a4;
  --line: #44484c; --tint: #212427; --link: #8ec5ff; --good: #5fd3a8; --bad: #ffab6b; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem 1.25rem 3rem; max-width: 68rem; color: var(--ink);
  background: var(--paper); font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: .5rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; border-bottom: 1px solid var(--line); }
a { color: var(--link); }
nav a { margin-right: 1rem; display: inline-block; }
a:focus-visible, .wide:focus-visible, summary:focus-visible { outline: 3px solid var(--link);
  outline-offset: 2px; }
.verdict { border-left: .5rem solid var(--bad); background: var(--tint); padding: .5rem 1rem; }
.verdict.converged { border-color: var(--good); }
.verdict p { margin: .25rem 0; font-size: 1.1rem; font-weight: 600; }
.verdict ul { margin: .25rem 0; padding-left: 1.25rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--faint); padding: .25rem 0; }
th, td { padding: .2rem .8rem .2rem 0; text-align: left; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
.number { text-align: right; }
.note { color: var(--faint); margin: .25rem 0; }
figure { margin: 1.5rem 0; }
figure img { display: block; max-width: 100%; height: auto; background: #fff; padding: .5rem;
  border: 1px solid var(--line); }
figcaption { color: var(--faint); margin-top: .25rem; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .2rem 1.25rem; margin: 0; }
dt { color: var(--faint); }
dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; } dd { margin-bottom: .4rem; } }
@media print { nav { display: none; } figure { break-inside: avoid; } }
""")
FRAGMENT_STYLE = Html("""
.homodyne-dask table { border-collapse: collapse; }
.homodyne-dask th, .homodyne-dask td { padding: .1rem .8rem .1rem 0; text-align: left; }
.homodyne-dask .number { text-align: right; }
.homodyne-dask .wide { overflow-x: auto; }
.homodyne-dask caption { text-align: left; }
""")


class Picture(NamedTuple):
    """A picture and what it shows, in words."""

    title: str
    alt: str
    """For who cannot see it: what is drawn, and the numbers that matter."""
    png: bytes


def page(result: FitResult, pictures: Sequence[Picture]) -> str:
    """Return the report of a fit as a whole HTML file that needs no other."""
    sections = [
        ("verdict", "Verdict", _verdict(result)),
        ("parameters", "Parameters", _parameters(result)),
        ("pictures", "Pictures", joined(*map(figure_of, pictures))),
        ("bins", "Contrast and offset", _bins(result)),
        ("what-if", "What single bins and other scalings change", _what_if(result)),
        ("facts", "How it was found", items(facts(result))),
    ]
    return document(title(result), [section for section in sections if section[2]])


def fragment(result: FitResult) -> str:
    """Return verdict, parameters and facts as a piece of HTML, as Jupyter shows it."""
    return str(
        element(
            "div",
            element("style", FRAGMENT_STYLE),
            element("strong", title(result)),
            _verdict(result),
            _parameters(result),
            element("details", element("summary", scaling_in_short(result)), _bin_table(result)),
            element("details", element("summary", "how it was found"), items(facts(result))),
            class_="homodyne-dask",
        )
    )


def document(name: str, sections: Sequence[tuple[str, str, Html]]) -> str:
    """Return a page of (id, heading, content), with links to each."""
    links = [element("a", heading, href=f"#{where}") for where, heading, _ in sections]
    head = [
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", name),
        element("style", STYLE),
    ]
    body = [
        element("h1", name),
        element("nav", *links, aria_label="sections"),
        element(
            "main",
            *(
                element("section", element("h2", heading), content, id=where)
                for where, heading, content in sections
            ),
        ),
    ]
    html = element("html", element("head", *head), element("body", *body), lang="en")
    return f"<!DOCTYPE html>\n{html}\n"


def _verdict(result: FitResult) -> Html:
    mark = "✓" if result.outcome is Outcome.CONVERGED else "✗"
    against = [joined(element("b", kind), ": ", text) for kind, text in reservations(result)]
    kind = "verdict converged" if result.outcome is Outcome.CONVERGED else "verdict"
    return element(
        "div", element("p", f"{mark} {result.outcome.value}"), listed(against), class_=kind
    )


def _parameters(result: FitResult) -> Html:
    rows, notes = parameter_rows(result)
    said = [element("p", note, class_="note") for note in notes]
    return joined(table("Values with their standard errors", rows, left=3), *said)


def _what_if(result: FitResult) -> Html:
    lines = what_if(result)
    return element("pre", "\n".join(lines), tabindex="0") if lines else joined()


def figure_of(picture: Picture) -> Html:
    """Return a picture with its words, inside the page."""
    source = f"data:image/png;base64,{b64encode(picture.png).decode()}"
    # text of all pictures is then of one size
    width, height = (round(n * CSS_INCH / DPI) for n in struct.unpack(">II", picture.png[16:24]))
    return element(
        "figure",
        element("img", src=source, alt=picture.alt, width=width, height=height),
        element("figcaption", picture.title),
    )


def _bins(result: FitResult) -> Html:
    rows = len(result.scaling["ndata"])
    shown = _bin_table(result)
    if rows > MAX_OPEN_ROWS:
        shown = element("details", element("summary", f"all {rows} bins"), shown)
    return joined(element("p", scaling_in_short(result)), shown)


def _bin_table(result: FitResult) -> Html:
    return table("Each bin: its scaling, its pairs and its reduced χ²", bin_rows(result))
