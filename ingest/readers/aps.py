"""Results of APS: of boost_corr, since the upgrade to APS-U, and those of before (legacy).

The former have /xpcs/twotime/correlation_map/c2_00001 and /xpcs/qmap, the latter /exchange/C2T_all/g2_00001
and flat lists of q and φ.
"""

from pathlib import Path

import h5py
import numpy as np

from homodyne_dask.errors import SourceError
from ingest.readers import hdf5
from ingest.readers.hdf5 import experiment
from ingest.readers.pictures import pictures_in
from ingest.readers.source import Source, check_frames, degrees, inverse_angstrom, spacing

MATRICES = "/xpcs/twotime/correlation_map"
PROCESSED = "/xpcs/twotime/processed_bins"
CONFIG = "/xpcs/twotime/config"
QMAP = "/xpcs/qmap"
ROI_MAP = f"{QMAP}/dynamic_roi_map"
DETECTOR = "/entry/instrument/detector_1"
FRAME_TIME = f"{DETECTOR}/frame_time"
MEAN_IMAGE = "/xpcs/temporal_mean/scattering_2d"
FLUX = "/xpcs/spatial_mean/intensity_vs_time"
LEGACY_FLUX, LEGACY_IMAGE = "/exchange/frameSum", "/exchange/pixelSum"
LEGACY_MATRICES = "/exchange/C2T_all"
LEGACY_PROCESSED = "/xpcs/qphi_bin_to_process"
EXPOSURE = "/measurement/instrument/detector/exposure_period"
STRIDE, AVG = "/xpcs/stride_frames", "/xpcs/avg_frames"
DQLIST, DPHILIST = "/xpcs/dqlist", "/xpcs/dphilist"


def open_aps_u(path: Path) -> Source:
    """Return the bins of an APS-U result file."""
    with hdf5.open_hdf5(path) as file:
        names = hdf5.matrix_names(file, MATRICES, "c2_")
        label = _labels(file, names)
        order = np.argsort(label)
        label = label[order]
        n_frames = hdf5.common_side(file, list(names.values()))
        check_frames(n_frames, path)
        stride = hdf5.positive_integer(file, f"{CONFIG}/stride_frame")
        avg = hdf5.positive_integer(file, f"{CONFIG}/avg_frame")
        frame_time = spacing(hdf5.seconds(file, FRAME_TIME), stride * avg)
        begin = 0  # first detector frame, as boost_corr counts
        if hdf5.dataset(file, f"{CONFIG}/begin_frame") is not None:
            begin = max(0, int(hdf5.scalar(file, f"{CONFIG}/begin_frame")))
        q, phi, notes = _q_phi(file, label)
        pixels, means = _pixels(file, label)
        pictures = pictures_in(file, (FLUX,), (MEAN_IMAGE,), n_frames, begin, stride, avg)
        intensity, why = _intensity(means, pictures.flux, avg)
        truth = hdf5.truth(file)
        measurement = experiment(file, "/entry", DETECTOR)
    return Source(
        path=path,
        format="aps-u",
        reader=hdf5.read_matrix,
        matrices=tuple(names[number + 1] for number in order),
        label=label,
        q=q,
        phi=phi,
        n_pixels=pixels,
        n_frames=n_frames,
        frame_time=frame_time,
        time=np.arange(n_frames) * frame_time,
        stride=stride,
        avg=avg,
        begin_frame=begin + 1,
        end_frame=begin + stride * (n_frames * avg - 1) + 1,
        intensity=intensity,
        truth=truth,
        gap=truth.get("gap_angstrom") if truth else None,
        experiment=measurement,
        pictures=pictures,
        notes=(*notes, *why),
    )


def _labels(file: h5py.File, names: dict[int, str]) -> np.ndarray:
    """Return the bin of matrix c2_00001, c2_00002, …: the running number is no bin number."""
    bins = hdf5.integers(file, PROCESSED)
    missing = sorted(set(range(1, len(bins) + 1)) - set(names))
    if missing or len(names) != len(bins):
        of = hdf5.file_name(file)
        first = f"{MATRICES}/c2_{missing[0]:05d} of {of} is missing: " if missing else ""
        raise SourceError(
            f"{first}{PROCESSED} of {of} has {len(bins)} entries, but there are {len(names)} matrices"
        )
    if (bins < 1).any() or len(set(bins.tolist())) != len(bins):
        raise SourceError(
            f"{PROCESSED} must contain distinct bin numbers of at least 1, not {bins[:8]}"
        )
    return bins


def _q_phi(file: h5py.File, label: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return q [1/Å] and φ [degree] of each bin: cell a of the q-major grid of rings and angles."""
    points = hdf5.integers(file, f"{QMAP}/dynamic_num_pts").tolist()
    dim0, dim1 = f"{QMAP}/dynamic_v_list_dim0", f"{QMAP}/dynamic_v_list_dim1"
    rings, angles = hdf5.finite_numbers(file, dim0), hdf5.finite_numbers(file, dim1)
    if [len(rings), len(angles)] != points:
        raise SourceError(
            f"dynamic_v_list_dim0 and dynamic_v_list_dim1 have {len(rings)} and {len(angles)} entries, but "
            f"dynamic_num_pts of {hdf5.file_name(file)} is {' and '.join(map(str, points))}"
        )
    units = [*hdf5.strings(file, f"{QMAP}/map_units"), None, None]
    rings, notes_q = inverse_angstrom(rings, hdf5.unit(file, dim0) or units[0], dim0)
    angles, notes_phi = degrees(angles, hdf5.unit(file, dim1) or units[1], dim1)
    ring, angle = np.divmod(_cells(file, label, len(rings) * len(angles)), len(angles))
    return rings[ring], angles[angle], notes_q + notes_phi


def _cells(file: h5py.File, label: np.ndarray, n_cells: int) -> np.ndarray:
    name = f"{QMAP}/dynamic_index_mapping"
    if hdf5.dataset(file, name) is None:
        mapping = np.arange(n_cells)
    else:
        mapping = hdf5.integers(file, name)
        _check_mapping(file, name, mapping, label)
    if label.max() > len(mapping):
        raise SourceError(
            f"{PROCESSED} lists bin {label.max()}, but {QMAP} has {len(mapping)} bins"
        )
    cell = mapping[label - 1]
    if (cell < 0).any() or (cell >= n_cells).any():
        raise SourceError(f"{name} points to cell {cell.max()} of {n_cells}: it is damaged")
    return cell


def _check_mapping(file: h5py.File, name: str, mapping: np.ndarray, label: np.ndarray) -> None:
    roi = hdf5.regions(file, ROI_MAP)
    regions = len(mapping) if roi is None else int(roi.max())
    if len(mapping) != regions or label.max() > len(mapping):
        raise SourceError(
            f"{name} of {hdf5.file_name(file)} has {len(mapping)} entries, but there are "
            f"{max(regions, int(label.max()))} bins"
        )


def _pixels(file: h5py.File, label: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Return pixels per bin, and the mean counts per pixel and detector frame if known."""
    roi = hdf5.regions(file, ROI_MAP)
    image = hdf5.optional(file, MEAN_IMAGE)
    if roi is None:
        return hdf5.sum_in_bins(roi, label), None
    pixels = hdf5.sum_in_bins(roi, label)
    if image is None or image.size != roi.size or (pixels == 0).any():
        return pixels, None
    return pixels, hdf5.sum_in_bins(roi, label, image.ravel()) / pixels


def _intensity(means, flux, avg: int) -> tuple[np.ndarray | None, list[str]]:
    """Return counts per pixel and analysed frame; averaging a frames multiplies their mean by a."""
    if means is None or not np.isfinite(means).all() or (means < 0).any() or not means.any():
        why = "the file does not contain counts for every bin"
        return None, [f"{why}: sigma is taken from the scatter"]
    if flux is None or not np.isfinite(flux).all() or (flux < 0).any() or not flux.mean() > 0:
        return None, [f"{FLUX} does not cover all frames: sigma is taken from the scatter"]
    return avg * np.outer(means, flux / flux.mean()), []


def open_aps_legacy(path: Path) -> Source:
    """Return the bins of a legacy result file; it has no counts in absolute units."""
    with hdf5.open_hdf5(path) as file:
        names = hdf5.matrix_names(file, LEGACY_MATRICES, "g2_")
        label = _legacy_labels(file, names)
        order = np.argsort(label)
        label = label[order]
        n_frames = hdf5.common_side(file, list(names.values()))
        check_frames(n_frames, path)
        stride = hdf5.positive_integer(file, STRIDE, default=1)
        avg = hdf5.positive_integer(file, AVG, default=1)
        frame_time = spacing(hdf5.seconds(file, EXPOSURE), stride * avg)
        q, phi, notes = _legacy_q_phi(file, label)
        for name in (STRIDE, AVG):
            if hdf5.dataset(file, name) is None:
                notes.append(f"{name} is missing: assumed to be 1")
        pixels = hdf5.sum_in_bins(hdf5.regions(file, "/xpcs/dqmap"), label)
        truth = hdf5.truth(file)
        pictures = pictures_in(file, (LEGACY_FLUX,), (LEGACY_IMAGE,), n_frames, 0, stride, avg)
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
        pictures=pictures,
        notes=tuple(notes),
    )


def _legacy_labels(file: h5py.File, names: dict[int, str]) -> np.ndarray:
    """Return the bin of each matrix: its name, or the entry its running number points to."""
    numbers = np.array(list(names))
    if hdf5.dataset(file, LEGACY_PROCESSED) is None:
        return numbers
    bins = hdf5.integers(file, LEGACY_PROCESSED)
    if len(set(bins.tolist())) != len(bins) or (bins < 1).any():
        raise SourceError(
            f"{LEGACY_PROCESSED} must contain distinct bin numbers of at least 1, not {bins[:8]}"
        )
    named = set(names) == set(bins.tolist())
    running = list(names) == list(range(1, len(bins) + 1))
    if named and running and not np.array_equal(bins, numbers):
        raise SourceError(
            f"{LEGACY_MATRICES} of {hdf5.file_name(file)} is ambiguous: g2_00001 may be bin 1 or, by "
            f"{LEGACY_PROCESSED}, bin {bins[0]}; sort the list or rename the matrices"
        )
    if not (named or running):
        raise SourceError(
            f"the {len(names)} matrices of {hdf5.file_name(file)} (g2_{min(names):05d} to "
            f"g2_{max(names):05d}) are numbered neither as the {len(bins)} bins of {LEGACY_PROCESSED} nor "
            f"from 1 to {len(bins)}"
        )
    return numbers if named else bins


def _legacy_q_phi(file: h5py.File, label: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[str]]:
    q, phi = (hdf5.finite_numbers(file, name) for name in (DQLIST, DPHILIST))
    q, notes_q = inverse_angstrom(q, hdf5.unit(file, DQLIST), DQLIST)
    phi, notes_phi = degrees(phi, hdf5.unit(file, DPHILIST), DPHILIST)
    if len(q) != len(phi):
        raise hdf5.wrong(file, f"{DQLIST} has {len(q)} entries, but {DPHILIST}", f"has {len(phi)}")
    if label.max() > len(q):
        raise hdf5.wrong(file, DQLIST, f"has {len(q)} entries, but there is a bin {label.max()}")
    return q[label - 1], phi[label - 1], notes_q + notes_phi
