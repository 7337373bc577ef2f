"""The measurements of each program as a table, and what `make reproduce` leaves: tables and figures of all.

python -m tests.benchmarks.peers.gallery FOLDER, which holds record.json
"""

import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from tests.benchmarks.peers import data

NOT_COMPARED = (
    "scikit-beam computes two-time correlations and fits no model to them: nothing to compare."
)


@dataclass(frozen=True)
class Row:
    """One program's fit; None where there is no number."""

    program: str
    scaling: str
    ended: str
    """The outcome as the program states it, or 'failed' or 'stopped'."""
    process_seconds: float
    """Of the whole process: imports, reading, start-up and fit."""
    cpu_seconds: float
    """Of the whole process and its descendants, user and system."""
    peak: int
    """Peak memory in bytes, PSS of the process and its descendants."""
    version: str | None = None
    note: str = ""
    fit_seconds: float | None = None
    """Of the call of the fit alone."""
    chisqr: float | None = None
    """Of the returned parameters, by the reference in NumPy, each pair counted once."""
    estimate: data.Estimate | None = None


COLUMNS = (
    "program", "version", "ended", "χ² above the least", "distance in standard errors", "CPU s", "fit s",
    "peak MiB",
)  # fmt: skip


def table(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Return the lines of a table below its head; χ² is above that of the best with as many parameters."""
    least = min((r.chisqr for r in rows if r.chisqr is not None and not freer(r)), default=np.nan)
    return [_cells(row, rows[0], least) for row in rows]


def _cells(row: Row, first: Row, least: float) -> tuple[str, ...]:
    """Return one line of the table; what is not known is a dash."""
    known = row.estimate is not None and first.estimate is not None and first.estimate.covariance
    return (
        row.program,
        row.version or "-",
        row.ended,
        f"{row.chisqr - least:.2g}" if row.chisqr is not None else "-",
        f"{data.distance(first.estimate, row.estimate):.2g}" if known else "-",
        f"{row.cpu_seconds:.0f}",
        f"{row.fit_seconds:.1f}" if row.fit_seconds is not None else "-",
        f"{row.peak / 2**20:.0f}",
    )


def markdown(lines: Sequence[tuple[str, ...]]) -> str:
    """Return a table in Markdown."""
    whole = [COLUMNS, ("---",) * len(COLUMNS), *lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in whole)


def freer(row: Row) -> bool:
    """Return whether contrast or offset differ between angles although the scaling is shared."""
    if row.scaling != "shared" or row.estimate is None or not row.estimate.contrast:
        return False
    return bool(np.ptp(row.estimate.contrast) > 1e-9 or np.ptp(row.estimate.offset) > 1e-9)


def rows_of(record: dict[str, Any], scaling: str) -> list[Row]:
    """Return the rows of one scaling."""
    of_scaling = (dict(row) for row in record["rows"] if row["scaling"] == scaling)
    return [
        Row(**{**row, "estimate": data.Estimate(**row["estimate"]) if row["estimate"] else None})
        for row in of_scaling
    ]


def costs(rows: list[Row], title: str) -> Figure:
    """Draw processor time and memory of each program."""
    figure = Figure(figsize=(8, 0.5 * len(rows) + 1.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    names = [row.program for row in rows]
    for axes, label, values in (
        (left, "CPU time of the whole process [s]", [row.cpu_seconds for row in rows]),
        (right, "peak memory [MiB]", [row.peak / 2**20 for row in rows]),
    ):
        axes.bar_label(axes.barh(names, values), [f"{value:.0f}" for value in values], padding=3)
        axes.set(xscale="log", xlabel=label, xlim=(min(values) / 3, max(values) * 3))
    left.invert_yaxis()
    figure.suptitle(title)
    return figure


def estimates(rows: list[Row], title: str) -> Figure | None:
    """Draw each parameter's distance from the truth, in standard errors; None where these are not known."""
    found = [row for row in rows if row.estimate is not None]
    if not found or found[0].estimate is None or found[0].estimate.covariance is None:
        return None
    error = np.sqrt(np.diag(found[0].estimate.covariance))
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(data.NAMES))
    for at, row in enumerate(found):
        off = np.subtract(row.estimate.theta, data.TRUTH) / error
        axes.plot(
            places + 0.15 * (at - (len(found) - 1) / 2), off, "os^Dv"[at % 5], label=row.program
        )
    axes.axhspan(-2, 2, color="gray", alpha=0.2)
    axes.set_xticks(places, data.NAMES, rotation=20)
    axes.set(yscale="symlog", ylabel="(estimate - truth) / standard error", title=title)
    axes.legend()
    return figure


def main(name: str) -> None:
    """Write table.csv, table.md and the figures of every scaling into the folder of a record."""
    folder = Path(name)
    record = json.loads((folder / "record.json").read_text())
    head = (
        f"{record['angles']} angles x {record['frames']} frames, {record['pairs']:,} pairs, on "
        f"{record['cores']} cores, {record['date']}"
    )
    words = ["# The same data, fitted by each program", head]
    lines: list[tuple[str, ...]] = []
    for scaling in dict.fromkeys(row["scaling"] for row in record["rows"]):
        rows = rows_of(record, scaling)
        title = f"{scaling} scaling, {record['pairs']:,} pairs"
        words += [f"## {scaling} scaling", markdown(table(rows)).rstrip()]
        words += [f"- {row.program}: {row.note}" for row in rows if row.note]
        lines += [(scaling, *line) for line in table(rows)]
        for what, figure in (("costs", costs(rows, title)), ("estimates", estimates(rows, title))):
            if figure is not None:
                figure.savefig(folder / f"{what}-{scaling}.png", dpi=110)
    with (folder / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("scaling", *COLUMNS), *lines])
    (folder / "table.md").write_text("\n\n".join([*words, NOT_COMPARED]) + "\n")
    print(f"{folder}: table.md, table.csv and figures\n\n{'\n\n'.join(words)}")


if __name__ == "__main__":
    main(sys.argv[1])
