"""Tables as text and as HTML for Jupyter, that of a scan's bins among them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from homodyne_dask.errors import printable

if TYPE_CHECKING:
    from homodyne_dask.store.scan import Scan

MAX_LINES = 20
"""Most lines of the representation of an object."""
_HEAD = ("label", "q [1/Å]", "phi [deg]", "pixels", "sigma")
_LEFT = Markup(' style="text-align: left; white-space: nowrap"')
_WIDTHS = (6, 10, 10, 7, 9)


def abridged(text: str, most: int = MAX_LINES) -> str:
    """Return a text of at most so many lines, the last of which says how many are missing."""
    lines = text.splitlines()
    if len(lines) <= most:
        return text
    return "\n".join(
        [*lines[: most - 1], f"... {len(lines) - most + 1} more lines: print it for all"]
    )


def lines_of(rows: Sequence[tuple[str, str]]) -> str:
    """Return names and what belongs to them, a line each."""
    return "\n".join(f"{name:<18} {value}" for name, value in rows)


def html_table(
    caption: str, rows: Sequence[Sequence[str]], notes: Sequence[str] = (), *, header: bool = True
) -> str:
    """Return rows as an HTML table, every cell escaped; header: whether the first row is one.

    Without it the rows are names with texts, which notebooks would align to the right as numbers.
    """
    lines = [
        _row("th" if header and n == 0 else "td", row, "" if header else _LEFT)
        for n, row in enumerate(rows)
    ]
    items = (Markup("<li>{}</li>").format(printable(note)) for note in notes)
    return Markup("<table><caption{}>{}</caption>{}</table>{}").format(
        _LEFT,
        printable(caption),
        Markup("").join(lines),
        Markup("<ul>{}</ul>").format(Markup("").join(items)) if notes else "",
    )


def _row(tag: str, cells: Sequence[str], style: str) -> Markup:
    each = (
        Markup("<{0}{1}>{2}</{0}>").format(Markup(tag), style, printable(cell)) for cell in cells
    )
    return Markup("<tr>{}</tr>").format(Markup("").join(each))


def bin_table_text(scan: "Scan") -> str:
    """Return the table as `homodyne-dask info` prints it."""
    lines = [
        " ".join(f"{cell:>{width}}" for cell, width in zip(row, _WIDTHS, strict=True))
        for row in (_HEAD, *_rows(scan))
    ]
    notes = [f"note: {note}" for note in scan.attrs["notes"]]
    return printable("\n".join([_caption(scan), *lines, *notes]))


def bin_table_html(scan: "Scan") -> str:
    """Return the table as Jupyter shows it."""
    return html_table(_caption(scan), [_HEAD, *_rows(scan)], scan.attrs["notes"])


def _caption(scan: "Scan") -> str:
    first, stop = scan.frames
    return (
        f"{Path(scan.path).name}: {len(scan.bins)} of {len(scan.all_bins['q'])} bins, "
        f"frames {first} to {stop - 1} of {scan.n_frames}, "
        f"{scan.time[first]:g} to {scan.time[stop - 1]:g} s, "
        f"sigma from {scan.attrs['sigma_source']}"
    )


def _rows(scan: "Scan") -> list[list[str]]:
    pixels = scan.n_pixels
    return [
        [str(label), f"{q:.6g}" if np.isfinite(q) else "unknown", f"{phi:.2f}", str(n or "-"), f"{s:.4g}"]
        for label, q, phi, n, s in zip(scan.label, scan.q, scan.phi, pixels, scan.median_sigma, strict=True)
    ]  # fmt: skip
