"""The report as text: outcome, parameters with errors, sensitivity, details of fit and data."""

from typing import Any

import numpy as np
import xarray

from homodyne_dask.errors import in_line
from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.fitted_parameters import confidence_intervals
from homodyne_dask.results.data.posterior import Posterior
from homodyne_dask.results.data.series import FitSeries
from homodyne_dask.results.views.posterior_section import (
    HEADING,
    posterior_rows,
    posterior_sentences,
    posterior_verdict,
)
from homodyne_dask.results.views.report_content import (
    bin_rows,
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
from homodyne_dask.text import aligned_columns, printed_lines, wrapped

MAX_BINS = 40
"""Most bins listed one by one."""


def report_text(result: FitResult) -> str:
    """Return the report of a fit as text."""
    parts = [
        _verdict(result), _parameters(result), _posterior(result.errors.posterior), _scaling(result),
        sensitivity_lines(result),
        [line for name, text in facts(result) for line in wrapped(f"{name:<14}", (text,))],
    ]  # fmt: skip
    return "\n\n".join(printed_lines(part) for part in parts if part)


def _verdict(result: FitResult) -> list[str]:
    lines = [report_title(result), "", *wrapped("", (result.verdict,))]
    for label, sentence in reservations(result):
        lines += wrapped(f"{label}: ", (sentence,))
    return lines


def _parameters(result: FitResult) -> list[str]:
    rows, notes = parameter_rows(result)
    return aligned_columns(rows, left=3) + wrapped("", notes)


def posterior_text(posterior: Posterior) -> str:
    """Return a posterior as text."""
    title = f"posterior of {report_title(posterior.result)}"
    lines = [title, "", *_posterior_lines(posterior.plain)]
    return printed_lines(lines)


def _posterior(held: dict[str, Any] | None) -> list[str]:
    return [] if held is None else [HEADING, *_posterior_lines(held)]


def _posterior_lines(held: dict[str, Any]) -> list[str]:
    rows = posterior_rows(held)
    return [
        *wrapped("", tuple(posterior_verdict(held))),
        *(aligned_columns(rows, left=3) if rows else []),
        *wrapped("", tuple(posterior_sentences(held))),
    ]


def _scaling(result: FitResult) -> list[str]:
    n = len(result.scaling["ndata"])
    if n > MAX_BINS:
        return [scaling_sentence(result), f"scaling.csv lists all {n} bins"]
    return [scaling_sentence(result), *aligned_columns(bin_rows(result), left=0)]


def sensitivity_lines(result: FitResult) -> list[str]:
    """Return lines on the influence of single bins, the scaling modes and the profiles."""
    lines = wrapped(f"{influence_title(result)}: ", influence_sentences(result))
    if result.diagnosis.scalings is not None:
        lines += aligned_columns(mode_rows(result.diagnosis.scalings), left=1)
    lines += wrapped("", mode_notes(result))
    for name, table in result.errors.profiles.items():
        lines += wrapped("", (_profile(name, table),))
    return lines


def _profile(name: str, table: xarray.Dataset) -> str:
    words = [f"{above} ({parabola}) at {value}" for value, above, parabola in profile_rows(table)]
    return f"profile of {name}: χ² − lowest χ² (in brackets, of a parabola) is {', '.join(words)}"


def intervals_text(found: FitResult | FitSeries, percent: float) -> str:
    """Return a table of the intervals of a fit, or of each fit of a series."""
    if isinstance(found, FitResult):
        return _intervals(found, percent)
    parts = [
        f"{in_line(entry.name)}\n{_intervals(entry.result, percent)}"
        for entry in found.entries
        if entry.result is not None
    ]
    return "\n\n".join(parts)


def _intervals(result: FitResult, percent: float) -> str:
    ends = confidence_intervals(result.parameters, percent)
    rows = [["parameter", f"{percent:g} % from", "to", "unit", "dof"]]
    for name, low, high, unit, dof in zip(
        *(ends[key].values for key in ("param", "low", "high", "unit")),
        result.parameters["dof"].values,
        strict=True,
    ):
        known = bool(np.isfinite(low))
        shown = (
            [f"{low:.6g}", f"{high:.6g}", str(unit), f"{dof:.1f}"]
            if known
            else ["-", "-", str(unit), "-"]
        )
        rows.append([str(name), *shown])
    lines = aligned_columns(rows, left=1)
    if method := result.parameters.attrs["method"]:
        lines.append(f"from standard errors ({method}) and Student's t distribution for their dof")
    else:
        lines.append(
            "no standard error is known, and other errors give no interval (`homodyne-dask explain errors`)"
        )
    return "\n".join(lines)
