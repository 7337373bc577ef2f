"""The report as one HTML file with its figures inside; it needs neither colour nor a mouse."""

import struct
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.views.figures import DPI
from homodyne_dask.results.views.html_template import RESULTS_PACKAGE, render
from homodyne_dask.results.views.posterior_section import (
    HEADING,
    posterior_rows,
    posterior_sentences,
)
from homodyne_dask.results.views.report_content import (
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
from homodyne_dask.results.views.report_facts import facts

CSS_INCH = 96
MAX_OPEN_ROWS = 40
"""Longer tables of bins are collapsed at first."""


@dataclass(frozen=True)
class Picture:
    """A figure with its caption and a text alternative."""

    title: str
    alt: str
    """Text alternative: what is drawn, with the main numbers."""
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
        "posterior": HEADING if result.posterior else "",
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


def posterior_fragment(result: FitResult, held: dict[str, Any]) -> str:
    """Return the table and the sentences on a posterior as an HTML fragment for Jupyter."""
    title = f"posterior of {report_title(result)}"
    return render(RESULTS_PACKAGE, "posterior_fragment.html", title=title, **_posterior(held))


def _posterior(held: dict[str, Any] | None) -> dict[str, Any]:
    if held is None:
        return {"posterior": [], "posterior_notes": []}
    return {"posterior": posterior_rows(held), "posterior_notes": posterior_sentences(held)}


def _content(result: FitResult) -> dict[str, Any]:
    """Return the values that the templates show."""
    parameters, parameter_notes = parameter_rows(result)
    bold = Markup("<b>{}</b>: {}")
    head = ["value", "χ² − lowest χ²", "parabola"]
    profiles = result.profiles.items()
    return {
        "title": report_title(result),
        "converged": result.converged and not result.misfit,
        "sentence": result.verdict,
        "reservations": [bold.format(label, text) for label, text in reservations(result)],
        "parameters": parameters,
        "parameter_notes": parameter_notes,
        **_posterior(result.posterior),
        "scaling": scaling_sentence(result),
        "bins": bin_rows(result),
        "bins_caption": "Contrast, offset, pairs and reduced χ² of each bin",
        "max_open_rows": MAX_OPEN_ROWS,
        "influence": [f"{INFLUENCE}: {sentence}" for sentence in influence_sentences(result)],
        "modes": [] if result.scalings is None else mode_rows(result.scalings),
        "mode_notes": mode_notes(result),
        "profiles": {name: [head, *profile_rows(points)] for name, points in profiles},
        "facts": facts(result),
    }
