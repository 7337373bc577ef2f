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


HEADER = (
    "program", "version", "ended", "cpu s", "ratio", "process s", "fit s", "ratio", "peak MiB", "ratio",
    "chisqr/N", "above least", "distance",
)  # fmt: skip

LEGEND = (
    "cpu s, process s: from the same .npz to the end, with imports and start-up; fit s: the call alone.",
    "cpu s is of all threads and hardly depends on other work on the machine, the other times do.",
    "ready: the call begins when the workers run; peak: PSS of the process and its children.",
    "chisqr: of the returned parameters, each pair once, in NumPy; 1 above least is about one std. error.",
    "distance: of the seven parameters from those of the first row, in standard errors, (JᵀWJ)⁻¹.",
)


def text(rows: Sequence[Row], angles: int, frames: int, what: str = "") -> str:
    """Return the tables of one scaling; ratios are to the first row."""
    pairs = angles * frames * (frames - 1) // 2
    head = (
        f"{rows[0].scaling} scaling{what}: {angles} angles x {frames} frames, N = {pairs:,} pairs"
    )
    # a program that fitted more parameters than required is not a reference for the others
    comparable = [r.chisqr for r in rows if r.chisqr is not None and not freer(r)]
    least = min(comparable, default=np.nan)
    lines = [HEADER, *(_cells(row, rows[0], pairs, least) for row in rows)]
    found = [row for row in rows if row.estimate is not None]
    parameters = [("", "truth", "start", *(row.program for row in found))]
    for at, name in enumerate(data.NAMES):
        values = (data.TRUTH[at], data.START[at], *(row.estimate.theta[at] for row in found))
        parameters.append((name, *(f"{v:.5g}" for v in values)))
    notes = [f"{row.program}: {note}" for row in rows if (note := "; ".join(remarks(row)))]
    return "\n".join(
        [head, "", *_aligned(lines, 3), "", *LEGEND, *notes, "", *_aligned(parameters, 1)]
    )


def remarks(row: Row) -> list[str]:
    """Return remarks on a row, the note of the program first."""
    notes = [row.note] if row.note else []
    if row.estimate is not None:
        if freer(row):
            notes.append("it fitted one contrast and offset per angle, more than required")
        if np.allclose(row.estimate.theta, data.START, rtol=1e-6, atol=1e-9):
            notes.append("the seven parameters are the initial values")
    return notes


def freer(row: Row) -> bool:
    """Return whether contrast or offset differ between angles although the scaling is shared."""
    if row.scaling != "shared" or row.estimate is None or not row.estimate.contrast:
        return False
    return bool(np.ptp(row.estimate.contrast) > 1e-9 or np.ptp(row.estimate.offset) > 1e-9)


def _cells(row: Row, first: Row, pairs: int, least: float) -> tuple[str, ...]:
    def ratio(mine: float | None, base: float | None) -> str:
        return f"{mine / base:.1f}" if mine is not None and base else "-"

    known = row.chisqr is not None
    return (
        row.program,
        row.version or "-",
        row.ended,
        f"{row.cpu_seconds:.1f}",
        ratio(row.cpu_seconds, first.cpu_seconds),
        f"{row.process_seconds:.1f}",
        f"{row.fit_seconds:.1f}" if row.fit_seconds is not None else "-",
        ratio(row.fit_seconds, first.fit_seconds),
        f"{row.peak / 2**20:.0f}",
        ratio(row.peak, first.peak),
        f"{row.chisqr / pairs:.5f}" if known else "-",
        f"{row.chisqr - least:.3g}" if known else "-",
        _distance(row, first),
    )


def _distance(row: Row, first: Row) -> str:
    """Return the distance of the parameters from those of the first row, where its errors are known."""
    if row.estimate is None or first.estimate is None or first.estimate.covariance is None:
        return "-"
    return f"{data.distance(first.estimate, row.estimate):.2g}"


def _aligned(lines: Sequence[Sequence[str]], left: int) -> list[str]:
    """Return lines with columns of equal width, the first `left` of them to the left."""
    widths = [max(len(line[c]) for line in lines) for c in range(len(lines[0]))]
    return [
        "  ".join(
            cell.ljust(width) if c < left else cell.rjust(width)
            for c, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
