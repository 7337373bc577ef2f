"""A scan of a given size without data, for the plan of a measurement that does not exist yet."""

import numpy as np

from homodyne_dask.errors import OptionError, shown
from homodyne_dask.store.manifest import Manifest
from homodyne_dask.store.scan import Scan

MOST_FRAMES, MOST_BINS = 1_000_000, 100_000


def scan_of_size(bins: int | None, frames: str | None, repeats: int) -> Scan:
    """Return a scan of bins of one q, all frames in use; raises OptionError for a size that is missing.

    frames: their number, as it was typed.
    """
    number = int(frames) if frames and frames.isdecimal() and len(frames) < 8 else 0
    if bins is None or not 3 <= number <= MOST_FRAMES:
        raise OptionError(
            f"without SOURCE, a plan needs the size of the measurement: give a store, or --bins 23 --frames "
            f"3000 (3 to {MOST_FRAMES:,} frames; given: {shown(frames)})"
        )
    if (total := bins * repeats) > MOST_BINS:
        raise OptionError(
            f"{bins} bins × {repeats} repeats are more than {MOST_BINS:,} bins: plan for fewer"
        )
    names = [f"scan {n + 1}" for n in range(repeats)]
    attrs = {
        "source_file": "",
        "frame_time": 1.0,
        "gap_angstrom": None,
        "sigma_source": "constant",
    } | ({"scans": names} if repeats > 1 else {})
    per_bin = {"q": np.ones(total), "phi": np.zeros(total), "label": np.arange(total) % bins}
    return Scan(
        path="planned", attrs=attrs, manifest=Manifest({}, np.zeros((total, 1, 1), int), {}),
        time=np.arange(float(number)), frame_mask=np.ones(number, bool), bins=tuple(range(total)),
        frames=(0, number), all_bins=per_bin,
    )  # fmt: skip
