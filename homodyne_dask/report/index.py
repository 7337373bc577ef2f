"""An index of many fits: scans.csv for programs, scans.html for people."""

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from homodyne_dask.errors import OptionError
from homodyne_dask.markup import Html, element, joined, listed, table
from homodyne_dask.report import numbers
from homodyne_dask.report.folder import cell
from homodyne_dask.report.html import Picture, document, figure_of
from homodyne_dask.report.pictures_scans import scans as picture_of
from homodyne_dask.result import FitResult, write_whole

CSV, HTML = "scans.csv", "scans.html"
FAILED = "FAILED"


@dataclass(frozen=True)
class Ended:
    """How it went with one store."""

    scan: str
    """Name of the store."""
    folder: Path
    """Of its result."""
    result: FitResult | None
    """None where it failed."""
    message: str = ""
    """Why it failed."""

    @property
    def outcome(self) -> str:
        """CONVERGED, another outcome's name, or FAILED."""
        return FAILED if self.result is None else self.result.outcome.name


def claim(folder: Path, replace: bool) -> None:
    """Raise OptionError where an index would be lost."""
    if (folder / CSV).exists() and not replace:
        raise OptionError(
            f"{folder / CSV} exists: give --resume to fit what has no result yet, --overwrite to "
            f"replace it and all results, or another --output"
        )


def write(folder: Path, names: Sequence[str], ended: Sequence[Ended], of: int) -> None:
    """Write the index of the scans done so far, `of` how many in all; pictures when all are done.

    names: parameters of the model, one column each in scans.csv, one for its robust and one for its naive
    error, an unknown number an empty cell.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = [_row(names, entry, folder) for entry in ended]
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(folder / CSV, text.getvalue())
    write_whole(folder / HTML, _page(folder, names, ended, of))


def in_short(ended: Sequence[Ended], of: int) -> str:
    """Return how many scans ended how, as a sentence."""
    outcomes = [entry.outcome for entry in ended]
    converged, failed = outcomes.count("CONVERGED"), outcomes.count(FAILED)
    others = len(ended) - converged - failed
    words = [f"{converged} of {len(ended)} scans converged"]
    words += [f"{others} ended without converging"] * (others > 0)
    words += [f"{failed} failed"] * (failed > 0)
    words += [f"{of - len(ended)} still to do"] * (of > len(ended))
    return ", ".join(words)


def _row(names: Sequence[str], entry: Ended, folder: Path) -> dict[str, Any]:
    result = entry.result
    row: dict[str, Any] = {"scan": entry.scan, "outcome": entry.outcome}
    for key in ("redchi", "ndata", "passes"):
        row[key] = None if result is None else getattr(result, key)
    for name in names:
        for suffix, column in (
            ("", "value"),
            ("_stderr", "stderr"),
            ("_stderr_naive", "stderr_naive"),
        ):
            row[name + suffix] = None if result is None else _number(result, name, column)
    row |= {"folder": os.path.relpath(entry.folder, folder), "message": entry.message}
    return {key: cell(value) for key, value in row.items()}


def _number(result: FitResult, name: str, column: str) -> float:
    return float(result.parameters[column].sel(param=name))


def _page(folder: Path, names: Sequence[str], ended: Sequence[Ended], of: int) -> str:
    good = [entry.result for entry in ended if entry.result is not None]
    all_well = all(entry.outcome == "CONVERGED" for entry in ended) and len(ended) == of
    mark = "✓" if all_well else "✗"
    failures = [f"{entry.scan}: {entry.message}" for entry in ended if entry.result is None]
    verdict = element(
        "div",
        element("p", f"{mark} {in_short(ended, of)}"),
        listed(failures),
        class_="verdict converged" if all_well else "verdict",
    )
    sections = [("verdict", "Verdict", verdict), ("scans", "Scans", _table(folder, names, ended))]
    if len(good) > 1 and len(ended) == of:
        done = [entry for entry in ended if entry.result is not None]
        sections.append(("pictures", "Pictures", figure_of(_picture(names, done))))
    return document(f"{good[0].config['model'] if good else 'no fit'}, {of} scans", sections)


def _table(folder: Path, names: Sequence[str], ended: Sequence[Ended]) -> Html:
    results = [entry.result for entry in ended if entry.result is not None]
    units = dict(zip(names, results[0].parameters["unit"].values, strict=True)) if results else {}
    head = [f"{name} [{units[name]}]" if units.get(name) else name for name in names]
    rows: list[list[object]] = [["scan", "outcome", "χ²/N", *head]]
    for entry in ended:
        if entry.result is None:
            rows.append([entry.scan, "✗ failed", "-", *["-"] * len(names)])
            continue
        values = [_value(entry.result, name) for name in names]
        link = Path(os.path.relpath(entry.folder, folder), "report.html").as_posix()
        mark = "✓" if entry.result.converged else "✗"
        outcome = entry.result.outcome.name.lower().replace("_", " ")
        linked = element("a", entry.scan, href=quote(link))
        rows.append([linked, f"{mark} {outcome}", f"{entry.result.redchi:.4f}", *values])
    note = "± is the cluster-robust error; in brackets: the naive error, where no other is known"
    return joined(
        table("Each scan and its parameters", rows, left=2), element("p", note, class_="note")
    )


def _value(result: FitResult, name: str) -> str:
    value, robust, naive = (_number(result, name, c) for c in ("value", "stderr", "stderr_naive"))
    if np.isfinite(robust):
        return numbers.value_and_error(value, robust)
    if np.isfinite(naive):
        return f"{value:.6g} ({numbers.error(naive)})"
    return f"{value:.6g}"


def _picture(names: Sequence[str], done: Sequence[Ended]) -> Picture:
    results = [entry.result for entry in done if entry.result is not None]
    shown = [entry.scan for entry in done]
    png = io.BytesIO()
    picture_of(shown, results).savefig(png, format="png")
    spans = [
        f"{name} {numbers.listed_range(np.array([_number(r, name, 'value') for r in results]), '.4g')}"
        for name in names
    ]
    alt = f"Each parameter with its error by scan, {shown[0]} to {shown[-1]}: {'; '.join(spans)}."
    return Picture(
        "Parameters by scan: bars are robust errors, open marks with naive ones",
        alt,
        png.getvalue(),
    )
