"""Tables and figures of the record of a comparison: what `make reproduce` leaves beside it.

python -m tests.benchmarks.peers.gallery FOLDER, which holds record.json
"""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from tests.benchmarks.peers import data
from tests.benchmarks.peers.table import COLUMNS, Row, markdown, table

NOT_COMPARED = (
    "scikit-beam computes two-time correlations and fits no model to them: nothing to compare."
)


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
