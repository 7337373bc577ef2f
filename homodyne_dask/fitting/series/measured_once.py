"""Scans whose data count twice: of one store, copies of it, or windows of one measurement."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain, combinations

import numpy as np

from homodyne_dask.errors import OptionError, StoreError
from homodyne_dask.store.same_noise import (
    Place,
    Signs,
    from_frame,
    measured_twice,
    signs_of_curves,
    signs_of_noise,
)
from homodyne_dask.store.scan import Chunk, Scan
from homodyne_dask.store.schema import tile_side

BINS_READ = 4
"""Bins of each scan whose noise is read, preferably those that other scans have, too."""


def check_measured_once(scans: Sequence[Scan]) -> None:
    """Raise OptionError where two scans hold the same data, whose errors would shrink for nothing."""
    if len(scans) < 2:
        return
    data = [{scan.manifest.checksums[1][b].tobytes() for b in scan.bins} for scan in scans]
    for n, m in combinations(range(len(scans)), 2):
        if data[n] & data[m] and (scans[n].use & scans[m].use).any():
            _refuse(scans[m], scans[n], 0)
    places = [_places(scan) for scan in scans]
    number = Counter(chain.from_iterable(places))
    signs = [
        {
            place: _signs(scan, bins[place])
            for place in sorted(bins, key=lambda place: -number[place])[:BINS_READ]
        }
        for scan, bins in zip(scans, places, strict=True)
    ]
    for m, n, shift in measured_twice(signs):
        _refuse(scans[m], scans[n], shift)


def _refuse(scan: Scan, first: Scan, shift: int) -> None:
    raise OptionError(
        f"{scan.path} holds data of {first.path}{from_frame(shift)}, too, but a measurement counts only "
        f"once: leave out one of them"
    )


def _places(scan: Scan) -> dict[Place, int]:
    """Return the position in the store of a bin at each q and φ, as they are rounded; -1 where unknown."""
    q, phi = (np.nan_to_num(values, nan=-1.0).tolist() for values in (scan.q, scan.phi % 360))
    rounded = [(float(f"{q:.4g}"), float(f"{phi:.4g}")) for q, phi in zip(q, phi, strict=True)]
    return dict(zip(rounded, scan.bins, strict=True))


def _signs(scan: Scan, b: int) -> Signs:
    """Return the signs of the noise of a bin at the frames in use; 0 where chunks cannot be read.

    Of tables, which have few points, those of several bins.
    """
    if scan.is_table:
        return signs_of_curves(scan.table[:BINS_READ, 1:])
    side, rows = tile_side(scan.n_frames), []
    for i in range(-(-scan.n_frames // side)):
        chunk = np.full((side, side), np.nan, np.float32)
        with suppress(StoreError):  # the fit says what is damaged
            scan.read_chunk(Chunk(1, b, i, i), chunk)
        rows.append(signs_of_noise(chunk, scan.n_frames))
    return np.concatenate(rows)[: scan.n_frames] * scan.use[:, None]
