"""APS results of before the upgrade: /exchange/C2T_all/g2_00001 and flat lists of q and φ."""

from pathlib import Path

import h5py
import numpy as np

from homodyne_dask.errors import SourceError
from ingest.readers import hdf5
from ingest.readers.source import Source, check_frames, degrees, inverse_angstrom, spacing

MATRICES = "/exchange/C2T_all"
PROCESSED = "/xpcs/qphi_bin_to_process"
EXPOSURE = "/measurement/instrument/detector/exposure_period"
STRIDE, AVG = "/xpcs/stride_frames", "/xpcs/avg_frames"
DQLIST, DPHILIST = "/xpcs/dqlist", "/xpcs/dphilist"


def open_aps_legacy(path: Path) -> Source:
    """Return the bins of a legacy result file; it has no counts in absolute units."""
    with hdf5.open_hdf5(path) as file:
        names = hdf5.matrix_names(file, MATRICES, "g2_")
        label = _labels(file, names)
        order = np.argsort(label)
        label = label[order]
        n_frames = hdf5.common_side(file, list(names.values()))
        check_frames(n_frames, path)
        stride = hdf5.positive_integer(file, STRIDE, default=1)
        avg = hdf5.positive_integer(file, AVG, default=1)
        frame_time = spacing(hdf5.seconds(file, EXPOSURE), stride * avg)
        q, phi, notes = _q_phi(file, label)
        for name in (STRIDE, AVG):
            if hdf5.dataset(file, name) is None:
                notes.append(f"{name} is missing: taken as 1")
        pixels = _pixels(file, label)
        truth = hdf5.truth(file)
    return Source(
        path=path,
        format="aps-legacy",
        reader=hdf5.read_matrix,
        matrices=tuple(list(names.values())[number] for number in order),
        label=label,
        q=q,
        phi=phi,
        n_pixels=pixels,
        n_frames=n_frames,
        frame_time=frame_time,
        time=np.arange(n_frames) * frame_time,
        stride=stride,
        avg=avg,
        truth=truth,
        gap=truth.get("gap_angstrom") if truth else None,
        notes=tuple(notes),
    )


def _labels(file: h5py.File, names: dict[int, str]) -> np.ndarray:
    """Return the bin of each matrix: its name, or the entry its running number points to."""
    numbers = np.array(list(names))
    if hdf5.dataset(file, PROCESSED) is None:
        return numbers
    bins = hdf5.integers(file, PROCESSED)
    if len(set(bins.tolist())) != len(bins) or (bins < 1).any():
        raise SourceError(f"{PROCESSED} must hold different bin numbers from 1 on, not {bins[:8]}")
    named = set(names) == set(bins.tolist())
    running = list(names) == list(range(1, len(bins) + 1))
    if named and running and not np.array_equal(bins, numbers):
        raise SourceError(
            f"{MATRICES} of {hdf5.file_name(file)} is ambiguous: g2_00001 may be bin 1 or, by "
            f"{PROCESSED}, bin {bins[0]}; sort the one or rename the other"
        )
    if named:
        return numbers
    if running:
        return bins
    raise _mismatch(file, set(names), bins)


def _mismatch(file: h5py.File, numbers: set[int], bins: np.ndarray) -> SourceError:
    name = hdf5.file_name(file)
    for expected in (set(bins.tolist()), set(range(1, len(bins) + 1))):
        if numbers < expected:
            missing = min(expected - numbers)
            return SourceError(
                f"{MATRICES}/g2_{missing:05d} of {name} is missing: {PROCESSED} lists {len(bins)} "
                f"bins but there are {len(numbers)} matrices"
            )
    return SourceError(
        f"the {len(numbers)} matrices of {name} (g2_{min(numbers):05d} … g2_{max(numbers):05d}) "
        f"are named neither after the {len(bins)} bins of {PROCESSED} nor 1 … {len(bins)}"
    )


def _q_phi(file: h5py.File, label: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[str]]:
    q, notes_q = inverse_angstrom(
        hdf5.finite_numbers(file, DQLIST), hdf5.unit(file, DQLIST), DQLIST
    )
    phi, notes_phi = degrees(
        hdf5.finite_numbers(file, DPHILIST), hdf5.unit(file, DPHILIST), DPHILIST
    )
    if len(q) != len(phi):
        raise SourceError(
            f"{DQLIST} has {len(q)} entries but {DPHILIST} of {hdf5.file_name(file)} has {len(phi)}"
        )
    if label.max() > len(q):
        raise SourceError(
            f"{DQLIST} of {hdf5.file_name(file)} has {len(q)} entries: there is bin {label.max()}"
        )
    return q[label - 1], phi[label - 1], notes_q + notes_phi


def _pixels(file: h5py.File, label: np.ndarray) -> np.ndarray:
    regions = hdf5.regions(file, "/xpcs/dqmap")
    if regions is None:
        return np.zeros(len(label), dtype=np.int64)
    last = int(label.max())
    return np.bincount(np.minimum(regions, last + 1), minlength=last + 1)[label]
