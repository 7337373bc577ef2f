"""What a NeXus file says of the measurement beside the correlations, for files of results."""

from typing import Any

import h5py
import numpy as np

from ingest.readers import hdf5
from ingest.readers.source import decimal

ENTRY = ("entry_identifier", "scan_number", "start_time", "end_time")
BEAM = ("incident_energy",)
DETECTOR = (
    "description", "count_time", "distance", "beam_center_x", "beam_center_y", "x_pixel_size", "y_pixel_size",
)  # fmt: skip
SAMPLE = ("temperature", "temperature_set")
"""Fields of NXxpcs in its groups."""


def experiment(file: h5py.File, entry: str, detector: str) -> dict[str, dict[str, Any]]:
    """Return by name what the entry says: value, a number or text, and units where it has them.

    detector: path of its group. What is absent, or is not one value, is left out: no fit needs it.
    """
    groups = {
        entry: ENTRY,
        f"{entry}/instrument/incident_beam": BEAM,
        detector: DETECTOR,
        f"{entry}/sample": SAMPLE,
    }
    found = {
        name: _value(file, f"{group}/{name}") for group, names in groups.items() for name in names
    }
    return {name: held for name, held in found.items() if held is not None}


def _value(file: h5py.File, name: str) -> dict[str, Any] | None:
    held = hdf5.dataset(file, name)
    if held is None or held.size != 1:
        return None
    if held.dtype.kind not in "fiu":
        words = hdf5.strings(file, name) if held.dtype.kind in "SO" else [""]
        return {"value": words[0]} if words[0].strip() else None
    number = decimal(hdf5.array(file, name).ravel()[0])
    if not np.isfinite(number):
        return None
    units = hdf5.unit(file, name)
    return {"value": int(number) if held.dtype.kind in "iu" else number} | (
        {"units": units} if units else {}
    )
