"""The report of an ingest, read back from the finished store."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from homodyne_dask.document.blocks import Document, table_document
from homodyne_dask.document.plain_text import Printed
from homodyne_dask.store.arrays import sigma_words, spacing_text
from homodyne_dask.store.files import AnyPath
from homodyne_dask.store.scan import open_dataset
from homodyne_dask.text import known_number

_HEAD = ("label", "q [1/Å]", "φ [°]", "pixels", "frames", "σ")
_MOST_ROWS = 40


class BinRow(NamedTuple):
    """One line of the table of bins."""

    label: int
    q: float
    """1/Å."""
    phi: float
    """degree."""
    pixels: int
    """0 where unknown."""
    frames: int
    """Frames to use."""
    sigma: float
    """Noise of a typical pair."""


@dataclass(frozen=True, repr=False)
class IngestReport(Printed):
    """What is in a store after ingest."""

    store: AnyPath
    source_file: str
    source_format: str
    bins: tuple[BinRow, ...]
    n_frames: int
    frame_time: float
    """s, median spacing."""
    spacing: str
    """Of the frames, as text."""
    n_pairs: int
    """Known pairs or points over all bins."""
    datum: str
    """What these are."""
    sigma_source: str
    notes: tuple[str, ...]
    skipped: bool = False
    """True when the store was already complete and nothing was done."""

    def _document(self) -> Document:
        bins = "1 bin" if len(self.bins) == 1 else f"{len(self.bins)} bins"
        title = (
            f"{self.source_file} ({self.source_format}) → {self.store}: {bins} × "
            f"{self.n_frames} frames {self.spacing}, {self.n_pairs:,} {self.datum}"
        )
        more = len(self.bins) - _MOST_ROWS
        notes = [
            *[f"and {more} more bins; `homodyne-dask info {self.store}` lists all"] * (more > 0),
            *["already complete, nothing to do"] * self.skipped,
            f"σ {sigma_words(self.sigma_source)}",
            *(f"note: {note}" for note in self.notes),
        ]
        return table_document(title, [_HEAD, *map(_of_bin, self.bins[:_MOST_ROWS])], 0, notes)


def _of_bin(row: BinRow) -> tuple[str, ...]:
    q, phi = known_number(row.q, ".5g"), known_number(row.phi, ".2f")
    return str(row.label), q, phi, str(row.pixels or "?"), str(row.frames), f"{row.sigma:.3g}"


def read_report(target: AnyPath, *, skipped: bool = False) -> IngestReport:
    """Return the report of a complete store; raises StoreError for one that is damaged."""
    scan = open_dataset(target)
    attrs, mask = scan.attrs, scan.frame_mask
    frames, sigma = int(np.count_nonzero(mask)), scan.median_sigma
    rows = zip(scan.label, scan.q, scan.phi, scan.n_pixels, sigma, strict=True)
    return IngestReport(
        store=target,
        source_file=attrs["source_file"],
        source_format=attrs["source_format"],
        bins=tuple(
            BinRow(int(a), float(b), float(c), int(d), frames, float(e)) for a, b, c, d, e in rows
        ),
        n_frames=len(mask),
        frame_time=attrs["frame_time"],
        spacing=spacing_text(scan.time, attrs["frame_time"]),
        n_pairs=int(scan.manifest.pairs.sum()),
        datum=scan.datum,
        sigma_source=attrs["sigma_source"],
        notes=tuple(attrs["notes"]),
        skipped=skipped,
    )
