"""The measurements of each program as a table, and what `make reproduce` leaves: tables and figures of all.

python -m tests.benchmarks.peers.gallery FOLDER, which holds record.json
"""

import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from tests.benchmarks.peers import data


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
    first = rows[0].estimate

    def apart(estimate: data.Estimate | None) -> str:
        if estimate is None or first is None or not first.covariance:
            return "-"
        return f"{data.distance(first, estimate):.2g}"

    return [
        (
            row.program,
            row.version or "-",
            row.ended,
            f"{row.chisqr - least:.2g}" if row.chisqr is not None else "-",
            apart(row.estimate),
            f"{row.cpu_seconds:.0f}",
            f"{row.fit_seconds:.1f}" if row.fit_seconds is not None else "-",
            f"{row.peak / 2**20:.0f}",
        )
        for row in rows
    ]


def markdown(lines: Sequence[tuple[str, ...]]) -> str:
    whole = [COLUMNS, ("---",) * len(COLUMNS), *lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in whole)


def freer(row: Row) -> bool:
    """Return whether contrast or offset differ between angles although the scaling is shared."""
    if row.scaling != "shared" or row.estimate is None or not row.estimate.contrast:
        return False
    return bool(np.ptp(row.estimate.contrast) > 1e-9 or np.ptp(row.estimate.offset) > 1e-9)


def costs(rows: list[Row], title: str) -> Figure:
    figure = Figure(figsize=(8, 0.5 * len(rows) + 1.2), layout="constrained")
    for axes, label, values in zip(
        figure.subplots(1, 2, sharey=True),
        ("CPU time of the whole process [s]", "peak memory [MiB]"),
        ([row.cpu_seconds for row in rows], [row.peak / 2**20 for row in rows]),
        strict=True,
    ):
        bars = axes.barh([row.program for row in rows], values)
        axes.bar_label(bars, [f"{value:.0f}" for value in values], padding=3)
        axes.set(xscale="log", xlabel=label, xlim=(min(values) / 3, max(values) * 3))
    axes.invert_yaxis()
    figure.suptitle(title)
    return figure


def main(folder: Path) -> None:
    """Write table.csv, table.md and a figure of the costs of every scaling into the folder of a record."""
    record = json.loads((folder / "record.json").read_text())
    rows = [
        Row(**row | {"estimate": data.Estimate(**row["estimate"]) if row["estimate"] else None})
        for row in record["rows"]
    ]
    words = [
        "# The same data, fitted by each program",
        f"{record['angles']} angles x {record['frames']} frames, {record['pairs']:,} pairs, on "
        f"{record['cores']} cores, {record['date']}",
    ]
    with (folder / "table.csv").open("w", newline="") as file:
        (lines := csv.writer(file)).writerow(("scaling", *COLUMNS))
        for scaling in dict.fromkeys(row.scaling for row in rows):
            these = [row for row in rows if row.scaling == scaling]
            words += [f"## {scaling} scaling", markdown(table(these)).rstrip()]
            words += [f"- {row.program}: {row.note}" for row in these if row.note]
            lines.writerows((scaling, *line) for line in table(these))
            figure = costs(these, f"{scaling} scaling, {record['pairs']:,} pairs")
            figure.savefig(folder / f"costs-{scaling}.png", dpi=110)
    (folder / "table.md").write_text("\n\n".join(words) + "\n")
    print(f"{folder}: table.md, table.csv and figures\n\n{'\n\n'.join(words)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
