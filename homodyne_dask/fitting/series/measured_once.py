"""Scans whose data count twice: of one store, copies of it, or windows of one measurement."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress

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
    held = defaultdict[bytes, list[Scan]](list)
    for scan in scans:
        for data in {scan.manifest.checksums[1][b].tobytes() for b in scan.bins}:
            for one in held[data]:
                if (scan.use & one.use).any():
                    _refuse(scan, one, 0)
            held[data].append(scan)
    if len(scans) > 1:
        places = [_places(scan) for scan in scans]
        common = Counter(place for of in places for place in of)
        read = [sorted(of, key=lambda place: -common[place])[:BINS_READ] for of in places]
        each = zip(scans, places, read, strict=True)
        signs = [{place: _signs(scan, of[place]) for place in some} for scan, of, some in each]
        for n, first, shift in measured_twice(signs):
            _refuse(scans[n], scans[first], shift)


def _refuse(scan: Scan, one: Scan, shift: int) -> None:
    raise OptionError(
        f"{scan.path} holds data of {one.path}{from_frame(shift)}, too, but a measurement counts only once: "
        f"leave out one of them"
    )


def _places(scan: Scan) -> dict[Place, int]:
    """Return the position in the store of a bin at each q and φ, as they are rounded; -1 where unknown."""
    each = zip(*(np.nan_to_num(of, nan=-1.0) for of in (scan.q, scan.phi % 360)), strict=True)
    rounded = [(float(f"{q:.4g}"), float(f"{phi:.4g}")) for q, phi in each]
    return dict(zip(rounded, scan.bins, strict=True))


def _signs(scan: Scan, b: int) -> Signs:
    """Return the signs of the noise of a bin at the frames in use; 0 where chunks cannot be read.

    Of tables, which have few points, those of several bins.
    """
    if scan.is_table:
        return signs_of_curves(scan.table[:BINS_READ, 1:])
    n, side, rows = scan.n_frames, tile_side(scan.n_frames), []
    for i in range(-(-n // side)):
        chunk = np.full((side, side), np.nan, np.float32)
        with suppress(StoreError):  # the fit says what is damaged
            scan.read_chunk(Chunk(1, b, i, i), chunk)
        rows.append(signs_of_noise(chunk, n))
    signs = np.concatenate(rows)[:n]
    signs[~scan.use] = 0
    return signs
