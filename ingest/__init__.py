"""Files of measured two-time matrices → one Zarr store: the only code that reads HDF5.

report = ingest.ingest("A0123_results.hdf")     # → A0123_c2.zarr
print(report)                                   # bins: label, q, φ, pixels, frames, σ
"""

from ingest.readers.detect import g2_dataset, is_table
from ingest.readers.numpy_arrays import saved_arrays
from ingest.simulate import COUNTED_PIXELS, NOISE, SCENARIOS, Scenario, angles, simulate
from ingest.write import BinRow, IngestReport, ingest

__all__ = [
    "COUNTED_PIXELS",
    "NOISE",
    "SCENARIOS",
    "BinRow",
    "IngestReport",
    "Scenario",
    "angles",
    "g2_dataset",
    "ingest",
    "is_table",
    "saved_arrays",
    "simulate",
]
