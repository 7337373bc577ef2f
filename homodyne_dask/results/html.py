"""The report as one HTML file: the verdict first, pictures inside, readable without colour or mouse."""

import struct
from base64 import b64encode
from collections.abc import Sequence
from typing import NamedTuple

from homodyne_dask.results.facts import facts
from homodyne_dask.results.figures.style import DPI
from homodyne_dask.results.fit_result import FitResult
from homodyne_dask.results.markup import Html, element, items, joined, listed, table
from homodyne_dask.results.palette import STYLE
from homodyne_dask.results.report_content import (
    INFLUENCE,
    bin_rows,
    influence_sentences,
    mode_notes,
    mode_rows,
    parameter_rows,
    profile_rows,
    report_title,
    reservations,
    scaling_sentence,
)
from homodyne_dask.solver.levenberg_marquardt import Outcome

CSS_INCH = 96
MAX_OPEN_ROWS = 40
"""Tables of bins longer than this are closed at first."""
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


def report_page(result: FitResult, pictures: Sequence[Picture]) -> str:
    """Return the report of a fit as a whole HTML file that needs no other."""
    sections = [
        ("verdict", "Verdict", _verdict(result)),
        ("parameters", "Parameters", _parameters(result)),
        ("pictures", "Pictures", joined(*map(figure_of, pictures))),
        ("bins", "Contrast and offset", _bins(result)),
        ("what-if", "What single bins and other scalings change", _what_if(result)),
        ("facts", "How it was found", items(facts(result))),
    ]
    return html_document(report_title(result), [section for section in sections if section[2]])


def report_fragment(result: FitResult) -> str:
    """Return verdict, parameters and facts as a piece of HTML, as Jupyter shows it."""
    return str(
        element(
            "div",
            element("style", FRAGMENT_STYLE),
            element("strong", report_title(result)),
            _verdict(result),
            _parameters(result),
            element("details", element("summary", scaling_sentence(result)), _bin_table(result)),
            element("details", element("summary", "how it was found"), items(facts(result))),
            class_="homodyne-dask",
        )
    )


def html_document(name: str, sections: Sequence[tuple[str, str, Html]]) -> str:
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
    parts = [element("p", f"{INFLUENCE}: {said}") for said in influence_sentences(result)]
    if result.scalings is not None:
        parts.append(table("Modes of scaling", mode_rows(result.scalings)))
    parts += [element("p", said, class_="note") for said in mode_notes(result)]
    head = ["value", "χ² above the least", "of a parabola"]
    for name, points in result.profiles.items():
        parts.append(table(f"Profile of {name}", [head, *profile_rows(points)], left=0))
    return joined(*parts)


def figure_of(picture: Picture) -> Html:
    """Return a picture with its words, inside the page."""
    source = f"data:image/png;base64,{b64encode(picture.png).decode()}"
    # text of all pictures is then of one size
    width, height = (round(n * CSS_INCH / DPI) for n in struct.unpack(">II", picture.png[16:24]))
    image = element("img", src=source, alt=picture.alt, width=width, height=height)
    name = f"picture: {picture.title}"
    return element(
        "figure",
        element("div", image, class_="wide", tabindex=0, role="region", aria_label=name),
        element("figcaption", picture.title),
    )


def _bins(result: FitResult) -> Html:
    rows = len(result.scaling["ndata"])
    shown = _bin_table(result)
    if rows > MAX_OPEN_ROWS:
        shown = element("details", element("summary", f"all {rows} bins"), shown)
    return joined(element("p", scaling_sentence(result)), shown)


def _bin_table(result: FitResult) -> Html:
    return table("Each bin: its scaling, its pairs and its reduced χ²", bin_rows(result))
