"""Results of pyCHX (NSLS-II, CHX), uid=..._Res.h5: /g12b (t, t, bin).

Dictionaries are attributes of datasets: of /qval_dict each key is the number of a bin, each value (q,),
(q, φ) of sectors, or (q_r, q_z) of reflection; of /md what is known of the measurement. /tausb are lags in s.
"""

from pathlib import Path
from typing import Any

import h5py
import numpy as np

from homodyne_dask.errors import OptionError
from homodyne_dask.request.ingest_options import IngestOptions, decimals
from ingest.readers import hdf5
from ingest.readers.any_hdf5 import layout_in, read_slice
from ingest.readers.source import Source, source_of

MATRICES, BINS, LAGS, METADATA = "/g12b", "/qval_dict", "/tausb", "/md"
PERIODS = ("cam_acquire_period", "acquire period")
"""Names of the time between frames in s, newer and older."""
MAX_Q = 3.0
"""1/Å; if the second number of any bin is larger, it is an angle."""


def open_chx(path: Path, options: IngestOptions) -> Source:
    """Return the bins of a result of pyCHX; q, φ and the frame time may be given where it lacks them."""
    notes: list[str] = []
    with hdf5.open_hdf5(path) as file:
        layout = layout_in(file, MATRICES, options.axes or ("t", "t", "q"))
        q_phi = _bins(file, layout.n_bins, notes)
        dt = _frame_time(file)
        pictures = hdf5.pictures_in(file, ("/imgsum",), ("/avg_img",), layout.n_frames)
    if "phi" not in q_phi and options.phi is None:
        q_phi["phi"] = np.nan
        notes.append("φ is unknown: the bins are rings")
    return source_of(
        path,
        "chx",
        options,
        *layout.matrices(MATRICES, read_slice),
        dt=dt,
        pictures=pictures,
        notes=notes,
        **q_phi,
    )


def _frame_time(file: h5py.File) -> float | None:
    """Return the least of the lags, or else what the detector was set to, in s."""
    lags = hdf5.optional(file, LAGS)
    if lags is not None and (lags > 0).any():
        return decimals(lags[lags > 0].min()).item()
    metadata = hdf5.attributes_of(file, METADATA)
    return next((decimals(metadata[name])[0] for name in PERIODS if name in metadata), None)


def _bins(file: h5py.File, n_bins: int, notes: list[str]) -> dict[str, Any]:
    attributes = hdf5.attributes_of(file, BINS)
    values_of_bin = {
        int(key): np.ravel(value) for key, value in attributes.items() if key.isdigit()
    }
    if not values_of_bin:
        return {}
    lengths = {len(value) for value in values_of_bin.values()}
    if len(values_of_bin) != n_bins or len(lengths) != 1 or not lengths <= {1, 2}:
        raise OptionError(
            f"{BINS} of {hdf5.file_name(file)} describes {len(values_of_bin)} bins, but {MATRICES} has "
            f"{n_bins}: give --dataset {MATRICES} with --q, --phi and --dt"
        )
    q, *second = np.array([values_of_bin[key] for key in sorted(values_of_bin)]).T
    notes.append(f"{BINS} is assumed to be in 1/Å")
    if not second:
        return {"q": q}
    if np.abs(second[0]).max() > MAX_Q:
        return {"q": q, "phi": second[0]}
    notes.append(f"the second number of each bin in {BINS} is taken to be q_z and left out")
    return {"q": q}
