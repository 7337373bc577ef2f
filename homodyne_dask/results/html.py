"""The report as one HTML file: the verdict first, pictures inside, readable without colour or mouse."""

import struct
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from homodyne_dask.results.facts import facts
from homodyne_dask.results.figures.style import DPI
from homodyne_dask.results.fit_result import FitResult
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
from homodyne_dask.results.template import HERE, render
from homodyne_dask.solver.levenberg_marquardt import Outcome

CSS_INCH = 96
MAX_OPEN_ROWS = 40
"""Tables of bins longer than this are closed at first."""


@dataclass(frozen=True)
class Picture:
    """A picture and what it shows, in words."""

    title: str
    alt: str
    """For who cannot see it: what is drawn, and the numbers that matter."""
    png: bytes

    @property
    def source(self) -> str:
        """The picture itself, as the address of an image."""
        return f"data:image/png;base64,{b64encode(self.png).decode()}"

    @property
    def width(self) -> int:
        """CSS pixels; text of all pictures is then of one size."""
        return self._side(0)

    @property
    def height(self) -> int:
        """CSS pixels."""
        return self._side(1)

    def _side(self, n: int) -> int:
        pixels: int = struct.unpack(">II", self.png[16:24])[n]  # of the header of a PNG file
        return round(pixels * CSS_INCH / DPI)


def report_page(result: FitResult, pictures: Sequence[Picture]) -> str:
    """Return the report of a fit as a whole HTML file that needs no other."""
    content = _content(result)
    sensitivity = any(content[name] for name in ("influence", "modes", "mode_notes", "profiles"))
    headings = {
        "verdict": "Verdict",
        "parameters": "Parameters",
        "pictures": "Pictures" if pictures else "",
        "bins": "Contrast and offset",
        "what-if": "What single bins and other scalings change" if sensitivity else "",
        "facts": "How it was found",
    }
    shown = {where: heading for where, heading in headings.items() if heading}
    return render(HERE, "report.html", headings=shown, pictures=pictures, **content)


def report_fragment(result: FitResult) -> str:
    """Return verdict, parameters and facts as a piece of HTML, as Jupyter shows it."""
    return render(HERE, "report_fragment.html", **_content(result))


def _content(result: FitResult) -> dict[str, Any]:
    """Return what the templates show of a fit."""
    parameters, parameter_notes = parameter_rows(result)
    bold = Markup("<b>{}</b>: {}")
    head = ["value", "χ² above the least", "of a parabola"]
    profiles = result.profiles.items()
    return {
        "title": report_title(result),
        "converged": result.outcome is Outcome.CONVERGED,
        "sentence": result.outcome.value,
        "reservations": [bold.format(kind, text) for kind, text in reservations(result)],
        "parameters": parameters,
        "parameter_notes": parameter_notes,
        "scaling": scaling_sentence(result),
        "bins": bin_rows(result),
        "bins_caption": "Each bin: its scaling, its pairs and its reduced χ²",
        "max_open_rows": MAX_OPEN_ROWS,
        "influence": [f"{INFLUENCE}: {sentence}" for sentence in influence_sentences(result)],
        "modes": [] if result.scalings is None else mode_rows(result.scalings),
        "mode_notes": mode_notes(result),
        "profiles": {name: [head, *profile_rows(points)] for name, points in profiles},
        "facts": facts(result),
    }
