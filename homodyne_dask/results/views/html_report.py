"""The report as one HTML file with its figures inside; it needs neither colour nor a mouse."""

import io
import os
import struct
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from markupsafe import Markup

from homodyne_dask.models.rate_forms import RATES
from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.fit_rows import (
    CONVERGED,
    FAILED,
    ONE_OF,
    PARTS,
    Fitted,
    constant_quantities,
    constants_sentence,
    methods_of,
    outcome_counts,
)
from homodyne_dask.results.data.posterior import Posterior
from homodyne_dask.results.data.series import FitSeries
from homodyne_dask.results.views.figures import DPI
from homodyne_dask.results.views.fits_report import agreement_sentences
from homodyne_dask.results.views.jinja_templates import RESULTS_PACKAGE, render
from homodyne_dask.results.views.posterior_section import (
    HEADING,
    posterior_rows,
    posterior_sentences,
    posterior_verdict,
)
from homodyne_dask.results.views.report_content import (
    bin_rows,
    datum,
    facts,
    influence_sentences,
    influence_title,
    mode_notes,
    mode_rows,
    parameter_rows,
    profile_rows,
    report_title,
    reservations,
    scaling_sentence,
)
from homodyne_dask.text import joined_with_and

if TYPE_CHECKING:
    from homodyne_dask.results.views.figures.picture import FitFigure

CSS_INCH = 96
MAX_OPEN_ROWS = 40
"""Longer tables of bins are collapsed at first."""


@dataclass(frozen=True)
class Picture:
    """A figure with its caption and a text alternative."""

    title: str
    alt: str
    """Text alternative: what the figure shows, with the main numbers."""
    png: bytes

    @property
    def source(self) -> str:
        """The PNG as a data URI."""
        return f"data:image/png;base64,{b64encode(self.png).decode()}"

    @property
    def width(self) -> int:
        """In CSS pixels, so that text has the same size in all figures."""
        return self._side(0)

    @property
    def height(self) -> int:
        """In CSS pixels."""
        return self._side(1)

    def _side(self, n: int) -> int:
        pixels: int = struct.unpack(">II", self.png[16:24])[n]  # of the header of a PNG file
        return round(pixels * CSS_INCH / DPI)


def drawn_picture(figure: "FitFigure", title: str, alt: str) -> Picture:
    """Return a figure that was drawn, as PNG."""
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return Picture(title, alt, png.getvalue())


def picture_in(path: Path) -> Picture:
    """Return a figure from its PNG file, which says what is drawn."""
    from PIL import Image

    with Image.open(path) as image:
        about = dict(image.info)
    return Picture(about.get("Title", path.stem), about.get("Description", ""), path.read_bytes())


def report_page(
    result: FitResult, pictures: Sequence[Picture], of_posterior: Sequence[Picture] = ()
) -> str:
    """Return the report of a fit as one self-contained HTML file; of_posterior: figures of its posterior."""
    content = _content(result)
    sensitivity = any(content[name] for name in ("influence", "modes", "mode_notes", "profiles"))
    headings = {
        "verdict": "Outcome",
        "parameters": "Parameters",
        "posterior": HEADING if result.errors.posterior else "",
        "pictures": "Figures" if pictures else "",
        "bins": "Contrast and offset",
        "what-if": "Sensitivity to single bins and scaling mode" if sensitivity else "",
        "facts": "Fit and data",
    }
    shown = {where: heading for where, heading in headings.items() if heading}
    figures = {"pictures": pictures, "posterior_pictures": of_posterior}
    return render(RESULTS_PACKAGE, "report.html", headings=shown, **figures, **content)


def report_fragment(result: FitResult) -> str:
    """Return outcome, parameters and facts as an HTML fragment for Jupyter."""
    return render(RESULTS_PACKAGE, "report_fragment.html", **_content(result))


def posterior_fragment(posterior: Posterior) -> str:
    """Return the table and the sentences on a posterior as an HTML fragment for Jupyter."""
    title = f"posterior of {report_title(posterior.result)}"
    values = _posterior(posterior.plain)
    return render(RESULTS_PACKAGE, "posterior_fragment.html", title=title, **values)


def _posterior(held: dict[str, Any] | None) -> dict[str, Any]:
    if held is None:
        return {"posterior": [], "posterior_verdict": [], "posterior_notes": []}
    return {
        "posterior": posterior_rows(held),
        "posterior_verdict": posterior_verdict(held),
        "posterior_notes": posterior_sentences(held),
    }


def _content(result: FitResult) -> dict[str, Any]:
    """Return the values that the templates show."""
    parameters, parameter_notes = parameter_rows(result)
    bold = Markup("<b>{}</b>: {}")
    head = ["value", "χ² − lowest χ²", "parabola"]
    profiles = result.errors.profiles.items()
    return {
        "title": report_title(result),
        "converged": result.converged and not result.misfit,
        "sentence": result.verdict,
        "reservations": [bold.format(label, text) for label, text in reservations(result)],
        "parameters": parameters,
        "parameter_notes": parameter_notes,
        **_posterior(result.errors.posterior),
        "scaling": scaling_sentence(result),
        "bins": bin_rows(result),
        "bins_caption": f"Contrast, offset, {datum(result)} and reduced χ² of each bin",
        "max_open_rows": MAX_OPEN_ROWS,
        "influence": [
            f"{influence_title(result)}: {sentence}" for sentence in influence_sentences(result)
        ],
        "modes": [] if result.diagnosis.scalings is None else mode_rows(result.diagnosis.scalings),
        "mode_notes": mode_notes(result),
        "profiles": {name: [head, *profile_rows(points)] for name, points in profiles},
        "facts": facts(result),
    }


def series_fragment(series: FitSeries) -> str:
    """Return the table of a series and the agreement of its fits as an HTML fragment for Jupyter."""
    return render(
        RESULTS_PACKAGE,
        "series_fragment.html",
        sentence=outcome_counts(series.entries, len(series.entries), PARTS),
        agreement=agreement_sentences(series),
        **fits_table(series.names, series.entries, None, ONE_OF[PARTS]),
    )


def fits_table(
    names: Sequence[str], entries: Sequence[Fitted], folder: Path | None, one: str
) -> dict[str, Any]:
    """Return rows, caption and notes of the table of fits."""
    found = next((entry.quantities for entry in entries if entry.quantities), {})
    constant = constant_quantities(names, [entry.quantities for entry in entries])
    names = [name for name in names if name not in constant]
    units = {name: found[name].unit if name in found else "" for name in names}
    head = [f"{name} [{units[name]}]" if units[name] else name for name in names]
    rows: list[list[object]] = [[one, "outcome", "χ²/N", *head]]
    for entry in entries:
        if entry.outcome == FAILED:
            rows.append([entry.name, "✗ failed", "-", *["-"] * len(names)])
            continue
        values = [str(entry.quantities[name]) for name in names]
        mark = "✓" if entry.outcome_words == CONVERGED else "✗"
        redchi = f"{entry.redchi:.4f}"
        rows.append([_linked(entry, folder), f"{mark} {entry.outcome_words}", redchi, *values])
    return {
        "rows": rows,
        "caption": f"Outcome and parameters of each {one}",
        "table_notes": [
            *filter(None, [constants_sentence(constant)]),
            _errors_in_tables(entries),
            *_of_middle(names, entries),
        ],
    }


def _errors_in_tables(entries: Sequence[Fitted]) -> str:
    known = methods_of(entries)
    return (
        f"± is the standard error{f' ({known})' * bool(known)}; values without ± have no standard error, but "
        f"the report of each fit says why and lists naive errors"
    )


def _of_middle(names: Sequence[str], entries: Sequence[Fitted]) -> list[str]:
    """Return the note on rates without a formula of whole scans."""
    rates = [name for name in names if name in RATES and not any("age" in e.at for e in entries)]
    return [f"values of {joined_with_and(rates)} are at the middle of each record"] if rates else []


def _linked(entry: Fitted, folder: Path | None) -> object:
    if entry.folder is None or folder is None:
        return entry.name
    link = Path(os.path.relpath(entry.folder, folder), "report.html").as_posix()
    return Markup('<a href="{}">{}</a>').format(quote(os.fsencode(link)), entry.name)
