"""The table of a scan's bins, as text and as HTML: what `print(scan)` and Jupyter show."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from homodyne_dask.errors import printable

if TYPE_CHECKING:
    from homodyne_dask.store.scan import Scan

_HEAD = ("label", "q [1/Å]", "phi [deg]", "pixels", "sigma")
_WIDTHS = (6, 10, 10, 7, 9)


def bin_table_text(scan: "Scan") -> str:
    """Return the table as `homodyne-dask info` prints it."""
    lines = [
        " ".join(f"{cell:>{width}}" for cell, width in zip(row, _WIDTHS, strict=True))
        for row in (_HEAD, *_rows(scan))
    ]
    notes = [f"note: {note}" for note in scan.attrs["notes"]]
    return printable("\n".join([_caption(scan), *lines, *notes]))


def bin_table_html(scan: "Scan") -> Markup:
    """Return the table as Jupyter shows it."""
    return Markup("<table><caption>{}</caption>{}{}</table><ul>{}</ul>").format(
        printable(_caption(scan)),
        _html_row("th", _HEAD),
        Markup("").join(_html_row("td", row) for row in _rows(scan)),
        Markup("").join(
            Markup("<li>{}</li>").format(printable(note)) for note in scan.attrs["notes"]
        ),
    )


def _caption(scan: "Scan") -> str:
    first, stop = scan.frames
    return (
        f"{Path(scan.path).name}: {len(scan.bins)} of {len(scan.all_bins['q'])} bins, "
        f"frames {first} to {stop - 1} of {scan.n_frames}, "
        f"{scan.time[first]:g} to {scan.time[stop - 1]:g} s, "
        f"sigma from {scan.attrs['sigma_source']}"
    )


def _rows(scan: "Scan") -> list[list[str]]:
    sigma = np.median(scan.sigma_row[:, slice(*scan.frames)], axis=1) ** 2
    pixels = scan.all_bins["n_pixels"][list(scan.bins)]
    return [
        [str(label), f"{q:.6g}" if np.isfinite(q) else "unknown", f"{phi:.2f}", str(n or "-"), f"{s:.4g}"]
        for label, q, phi, n, s in zip(scan.label, scan.q, scan.phi, pixels, sigma, strict=True)
    ]  # fmt: skip


def _html_row(tag: str, cells: Sequence[str]) -> Markup:
    """Return a row of an HTML table, every cell escaped."""
    each = (Markup("<{0}>{1}</{0}>").format(Markup(tag), cell) for cell in cells)
    return Markup("<tr>{}</tr>").format(Markup("").join(each))
