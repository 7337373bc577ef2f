"""The measurements of each program, and a table that compares them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
