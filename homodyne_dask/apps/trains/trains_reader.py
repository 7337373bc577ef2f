"""Results of midtools (European XFEL): /train_resolved/correlation/ttc, one two-time matrix for each train.

A train is a burst of pulses, and each repeats the measurement on fresh sample or after a long pause. The
pulses are the frames. The matrices of a bin are averaged over groups of trains, each of which is a scan.
"""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
from jaxtyping import Float32

from homodyne_dask.errors import OptionError, SourceError
from homodyne_dask.request.ingest_options import IngestOptions
from ingest.readers import hdf5
from ingest.readers.detect import HDF5, first_bytes
from ingest.readers.hdf5 import numbers_in, pictures_in
from ingest.readers.source import Pictures, Source, check_frames, place, source_of
from ingest.repeats_and_copies import joined

GROUP = "/train_resolved/correlation"
MATRICES = f"{GROUP}/ttc"
IMAGE, PULSES = "/average/image_2d", "/pulse_resolved/azimuthal_intensity/I"
SLAB_BYTES = 64_000_000
"""Of the matrices that are read at once."""
NO_PIXELS = -100.0
"""What midtools writes for a bin of a train that has too few good pixels."""
SCANS = (8, 20)
"""The fewest and the most scans of which a file of trains becomes one store."""
TRAINS_PER_SCAN = 10
Trains = tuple[int, int]
"""The first train, counted from 0, and the one after the last."""


def open_trains(path: Path, options: IngestOptions) -> Source | None:
    """Return the bins of a file of trains, None of another one; each group of selected trains is a scan."""
    if not first_bytes(path).startswith(HDF5):
        return None
    with hdf5.open_hdf5(path) as file:
        if hdf5.dataset_at(file, MATRICES) is None:
            return None
        (n_trains, n_bins, n_frames), _ = _shape(file)
        check_frames(n_frames, path, n_bins)
        trains = _selected_trains(options, n_trains, path.name)
        q = hdf5.numbers(file, f"{GROUP}/q", count=n_bins) / 10
        time = hdf5.numbers(file, f"{GROUP}/t")  # of the pulses, or one less, of the lags
        time = np.append(0.0, time) if len(time) == n_frames - 1 else time - time[0]
        pictures = _pictures(file, n_trains, n_frames)
    first, end = trains
    number = end - first
    # of fewer than 16 trains one group, else 8 to 20
    scans = int(np.clip(number // TRAINS_PER_SCAN, *SCANS)) if number >= 2 * SCANS[0] else 1
    groups = list(pairwise(np.linspace(*trains, scans + 1).round().astype(int).tolist()))
    means = "mean" if len(groups) == 1 else f"{len(groups)} scans, each the mean of a group,"
    notes = [
        f"{means} of {number} of {n_trains} trains, {first} to {end - 1}",
        f"{GROUP}/q is assumed to be in 1/nm and was converted to 1/Å",
    ]
    if options.phi is None:
        notes.append("φ is unknown: the bins are rings")
    source = source_of(
        path,
        "midtools",
        options,
        partial(read_trains, trains=trains),
        [f"{MATRICES}[{n}]" for n in range(n_bins)],
        n_frames,
        q=q,
        phi=np.nan if options.phi is None else None,
        time=time,
        pictures=pictures,
        notes=notes,
    )
    if len(groups) == 1:
        return source
    sources = [replace(source, reader=partial(read_trains, trains=group)) for group in groups]
    return joined(sources, [f"trains {first} to {end - 1}" for first, end in groups])


def _selected_trains(options: IngestOptions, n_trains: int, file_name: str) -> Trains:
    first, end = options.trains or (0, n_trains)
    if not 0 <= first < end <= n_trains:
        raise OptionError(
            f"trains = {first}:{end}, but {file_name} has {n_trains} trains: give the first, counted "
            f"from 0, and the one after the last, such as 0:{n_trains}"
        )
    return first, end


def _pictures(file: h5py.File, n_trains: int, n_frames: int) -> Pictures:
    pictures = pictures_in(file, (), (IMAGE,), n_frames)
    intensities = hdf5.dataset_at(file, PULSES)
    if intensities is None or intensities.ndim != 2 or len(intensities) != n_trains * n_frames:
        return pictures
    values = numbers_in(file, (PULSES,))
    if values is None:
        return pictures
    by_pulse = values.reshape(n_trains, n_frames, -1)
    finite = np.isfinite(by_pulse)
    total = np.where(finite, by_pulse, 0).sum(axis=(0, 2))
    return pictures._replace(flux=total / np.maximum(finite.sum(axis=(0, 2)), 1))


def read_trains(path: Path, dataset_and_bin: str, trains: Trains) -> Float32[np.ndarray, "t t"]:
    """Return the mean matrix of one bin, NaN where no train knows a pair."""
    _, bin = place(dataset_and_bin)
    with hdf5.open_hdf5(path) as file:
        (_, _, n), within = _shape(file)
        total, count = np.zeros((n, n)), np.zeros((n, n), dtype=np.int64)
        step = max(1, SLAB_BYTES // (4 * n * n))
        for first in range(*trains, step):
            index = (slice(first, min(first + step, trains[1])), *within, bin)
            slab = hdf5.read_part(file, MATRICES, index)
            counted = np.isfinite(slab) & (slab != NO_PIXELS)
            # a train does not know the pairs of frames without a photon, which are 0 throughout
            alive = (counted & (slab != 0) & ~np.eye(n, dtype=bool)).any(axis=-1)
            counted &= alive[:, :, None] & alive[:, None, :]
            total += np.where(counted, slab, 0).sum(axis=0, dtype=np.float64)
            count += counted.sum(axis=0)
    with np.errstate(invalid="ignore"):
        return (total / count).astype(np.float32)


def _shape(file: h5py.File) -> tuple[tuple[int, int, int], tuple[int, ...]]:
    """Return trains, bins and frames, and the place of stride 0 (within a train), () without strides."""
    matrices = hdf5.dataset_at(file, MATRICES)
    shape = None if matrices is None else matrices.shape
    if matrices is None or shape is None or len(shape) not in (4, 5) or shape[-1] != shape[-2]:
        form = "it must be (train, q, t, t) or (train, stride, q, t, t)"
        raise hdf5.wrong(file, MATRICES, f"has shape {shape}: {form}")
    if matrices.dtype.kind not in "fiu":
        raise hdf5.wrong(file, MATRICES, f"contains {matrices.dtype}, not real numbers")
    size = shape[0], shape[-3], shape[-1]
    if len(shape) == 4:
        return size, ()
    strides = hdf5.numbers(file, f"{GROUP}/stride", whole=True).tolist()
    if len(strides) != shape[1] or 0 not in strides:
        raise SourceError(
            f"{GROUP}/stride of {hdf5.file_name(file)} is {strides}: it must be {shape[1]} distances "
            f"between trains, one of them 0, to match the second axis of {MATRICES}"
        )
    return size, (strides.index(0),)
