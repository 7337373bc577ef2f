"""The report of an ingest, read back from the finished store."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from homodyne_dask.errors import printable
from homodyne_dask.store.arrays import read_array
from homodyne_dask.store.manifest import read_manifest
from ingest import store_writer


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


@dataclass(frozen=True)
class IngestReport:
    """What is in a store after ingest."""

    store: Path
    source_file: str
    source_format: str
    bins: tuple[BinRow, ...]
    n_frames: int
    frame_time: float
    """s."""
    n_pairs: int
    """Known pairs over all bins."""
    sigma_source: str
    notes: tuple[str, ...]
    skipped: bool = False
    """True when the store was already complete and nothing was done."""

    def __str__(self) -> str:
        bins = "1 bin" if len(self.bins) == 1 else f"{len(self.bins)} bins"
        title = (
            f"{self.source_file} ({self.source_format}) → {self.store}: {bins} × "
            f"{self.n_frames} frames of {self.frame_time:g} s, {self.n_pairs} pairs"
        )
        if self.skipped:
            title += "\nalready complete, nothing to do"
        head = f"{'label':>6} {'q [1/Å]':>10} {'φ [°]':>8} {'pixels':>7} {'frames':>7} {'σ':>9}"
        rows = [
            f"{row.label:6d} {row.q:10.5g} {row.phi:8.2f} {row.pixels or '?':>7} {row.frames:7d} "
            f"{row.sigma:9.3g}"
            for row in self.bins
        ]
        notes = [f"note: {note}" for note in self.notes]
        return printable("\n".join([title, head, *rows, f"σ from {self.sigma_source}", *notes]))


def read_report(target: Path, *, skipped: bool = False) -> IngestReport:
    """Return the report of a complete store; raises StoreError for one that is damaged."""
    attrs: dict[str, Any] = store_writer.root_attributes(target)
    sizes = (len(read_array(target, name)) for name in ("label", "time"))
    manifest = read_manifest(target, attrs["store_sha256"], *sizes)
    manifest.check_attributes(target, attrs)
    names = ("label", "q", "phi", "n_pixels", "sigma_row", "frame_mask")
    label, q, phi, pixels, rows, mask = (manifest.read_array(target, name) for name in names)
    frames = int(np.count_nonzero(mask))
    sigma = np.median(rows[:, mask], axis=1) ** 2
    return IngestReport(
        store=target,
        source_file=attrs["source_file"],
        source_format=attrs["source_format"],
        bins=tuple(
            BinRow(int(a), float(b), float(c), int(d), frames, float(e))
            for a, b, c, d, e in zip(label, q, phi, pixels, sigma, strict=True)
        ),
        n_frames=len(mask),
        frame_time=attrs["frame_time"],
        n_pairs=int(manifest.pairs.sum()),
        sigma_source=attrs["sigma_source"],
        notes=tuple(attrs["notes"]),
        skipped=skipped,
    )
