"""Results of APS: of boost_corr, since the upgrade to APS-U, and those of before (legacy).

The former have /xpcs/twotime/correlation_map/c2_00001 and /xpcs/qmap, the latter /exchange/C2T_all/g2_00001
and flat lists of q and φ.
"""

from pathlib import Path

import h5py
import numpy as np

from homodyne_dask.errors import SourceError
from homodyne_dask.request.ingest_options import IngestOptions
from ingest.readers import hdf5
from ingest.readers.source import Source, source_of, spacing

MATRICES, PROCESSED = "/xpcs/twotime/correlation_map", "/xpcs/twotime/processed_bins"
CONFIG = "/xpcs/twotime/config"
QMAP = "/xpcs/qmap"
ROI_MAP = f"{QMAP}/dynamic_roi_map"
DETECTOR = "/entry/instrument/detector_1"
MEAN_IMAGE = "/xpcs/temporal_mean/scattering_2d"
FLUX = "/xpcs/spatial_mean/intensity_vs_time"
LEGACY_FLUX, LEGACY_IMAGE = "/exchange/frameSum", "/exchange/pixelSum"
LEGACY_MATRICES = "/exchange/C2T_all"
LEGACY_PROCESSED = "/xpcs/qphi_bin_to_process"
EXPOSURE = "/measurement/instrument/detector/exposure_period"
STRIDE, AVG = "/xpcs/stride_frames", "/xpcs/avg_frames"
DQLIST, DPHILIST = "/xpcs/dqlist", "/xpcs/dphilist"


def open_aps_u(path: Path, options: IngestOptions) -> Source:
    notes: list[str] = []
    with hdf5.open_hdf5(path) as file:
        label, matrices, n_frames = _bins(file, MATRICES, r"c2_(\d+)", PROCESSED)
        names = (f"{CONFIG}/{name}_frame" for name in ("stride", "avg"))
        stride, avg = (int(hdf5.positive(file, name, whole=True)) for name in names)
        begin = 0  # first detector frame, as boost_corr counts
        if hdf5.dataset_at(file, f"{CONFIG}/begin_frame") is not None:
            begin = max(0, int(hdf5.numbers(file, f"{CONFIG}/begin_frame", count=1)[0]))
        q, phi = q_phi(file, label, notes)
        pictures = hdf5.pictures_in(file, (FLUX,), (MEAN_IMAGE,), n_frames, begin, stride, avg)
        return source_of(
            path,
            "aps-u",
            options,
            hdf5.read_matrix,
            matrices,
            n_frames,
            label=label,
            q=q,
            phi=phi,
            pixels=hdf5.sum_in_bins(hdf5.regions(file, ROI_MAP), label),
            stride=stride,
            avg=avg,
            frame_time=spacing(hdf5.seconds(file, f"{DETECTOR}/frame_time"), stride * avg),
            begin_frame=begin + 1,
            end_frame=begin + stride * (n_frames * avg - 1) + 1,
            intensity=_intensity(file, label, pictures.flux, avg, notes),
            pictures=pictures,
            notes=notes,
            experiment=hdf5.experiment(file, "/entry", DETECTOR),
            **hdf5.truth(file),
        )


def _bins(
    file: h5py.File, group: str, pattern: str, listed: str
) -> tuple[np.ndarray, list[str], int]:
    names = hdf5.matrix_names(file, group, pattern)
    label = np.array([*names])
    # boost_corr numbers its matrices in the order of the list, and always has one; legacy files may lack it
    if listed != LEGACY_PROCESSED or hdf5.dataset_at(file, listed) is not None:
        label = _listed_labels(file, names, listed)
    order = np.argsort(label)
    matrices = np.array([*names.values()])[order].tolist()
    return label[order], matrices, hdf5.common_side(file, matrices)


def _listed_labels(file: h5py.File, names: dict[int, str], listed: str) -> np.ndarray:
    """Return the bin of each matrix: the entry its number counts to or, in legacy files, its number."""
    bins, legacy = hdf5.numbers(file, listed, whole=True).tolist(), listed == LEGACY_PROCESSED
    if min(bins) < 1 or len(set(bins)) != len(bins):
        why = f"must contain distinct bin numbers of at least 1, not {np.array(bins[:8])}"
        raise hdf5.wrong(file, listed, why)
    numbered_by_bin = legacy and set(names) == set(bins)
    counted_from_1 = [*names] == list(range(1, len(bins) + 1))
    group, _, first = names[min(names)].rpartition("/")
    if numbered_by_bin and counted_from_1 and bins != [*names]:
        why = f"is ambiguous: {first} may be bin 1 or, by {listed}, bin {bins[0]}; sort the list or rename "
        raise hdf5.wrong(file, group, f"{why}the matrices")
    if not (numbered_by_bin or counted_from_1):
        why = f"numbered neither as the {len(bins)} bins of {listed} nor from 1 to {len(bins)}"
        if not legacy:
            why = f"not numbered from 1 to {len(bins)} as the entries of {listed}"
        raise hdf5.wrong(file, group, f"has {len(names)} matrices from {first} on, {why}")
    return np.array([*names] if numbered_by_bin else bins)


def q_phi(file: h5py.File, label: np.ndarray, notes: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return q [1/Å] and φ [degree] of each bin: of its cell in a grid of rings, each with all angles."""
    points = hdf5.numbers(file, f"{QMAP}/dynamic_num_pts", whole=True).tolist()
    units = [*hdf5.strings(file, f"{QMAP}/map_units"), None, None]
    rings = hdf5.quantity(file, f"{QMAP}/dynamic_v_list_dim0", "q", notes, units[0])
    angles = hdf5.quantity(file, f"{QMAP}/dynamic_v_list_dim1", "phi", notes, units[1])
    if [len(rings), len(angles)] != points:
        raise SourceError(
            f"dynamic_v_list_dim0 and dynamic_v_list_dim1 have {len(rings)} and {len(angles)} entries, but "
            f"dynamic_num_pts of {hdf5.file_name(file)} is {' and '.join(map(str, points))}"
        )
    ring, angle = np.divmod(_cells(file, label, len(rings) * len(angles)), len(angles))
    return rings[ring], angles[angle]


def _cells(file: h5py.File, label: np.ndarray, n_cells: int) -> np.ndarray:
    """Return the cell of each bin; the mapping leaves out the cells that have no pixels."""
    name, roi = f"{QMAP}/dynamic_index_mapping", hdf5.regions(file, ROI_MAP)
    if hdf5.dataset_at(file, name) is None:
        mapping, regions = np.arange(n_cells), 0
    else:
        mapping = hdf5.numbers(file, name, whole=True)
        regions = len(mapping) if roi is None else int(roi.max())
    # map and mapping must count the same bins, or a bin would get the q and φ of another cell
    if label.max() > len(mapping) or regions not in (0, len(mapping)):
        bins = max(regions, int(label.max()))
        raise hdf5.wrong(file, name, f"has {len(mapping)} entries, but there are {bins} bins")
    cell = mapping[label - 1]
    if (cell < 0).any() or (cell >= n_cells).any():
        raise hdf5.wrong(file, name, f"points to cell {cell.max()} of {n_cells}: it is damaged")
    return cell


def _intensity(
    file: h5py.File, label: np.ndarray, flux: np.ndarray | None, avg: int, notes: list[str]
) -> np.ndarray | None:
    """Return counts per pixel and analysed frame, None where the file does not have them for all bins."""
    roi, image = hdf5.regions(file, ROI_MAP), hdf5.optional(file, MEAN_IMAGE)
    pixels, means = hdf5.sum_in_bins(roi, label), np.zeros(1)
    if roi is not None and image is not None and image.size == roi.size and pixels.all():
        means = hdf5.sum_in_bins(roi, label, image.ravel()) / pixels
    if not np.isfinite(means).all() or (means < 0).any() or not means.any():
        why = "the file does not contain counts for every bin"
    elif flux is None or not np.isfinite(flux).all() or (flux < 0).any() or not flux.mean() > 0:
        why = f"{FLUX} does not cover all frames"
    else:
        # boost_corr averages frames, whose photons add: the mean image counts `avg` times
        return avg * np.outer(means, flux / flux.mean())
    notes.append(f"{why}: sigma is taken from the scatter")
    return None


def q_phi_of_lists(
    file: h5py.File, label: np.ndarray, notes: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    q = hdf5.quantity(file, DQLIST, "q", notes)
    phi = hdf5.quantity(file, DPHILIST, "phi", notes)
    if len(q) != len(phi) or label.max() > len(q):
        why = f"has {len(q)} entries, {DPHILIST} {len(phi)}, and there is a bin {label.max()}"
        raise hdf5.wrong(file, DQLIST, why)
    return q[label - 1], phi[label - 1]


def open_aps_legacy(path: Path, options: IngestOptions) -> Source:
    notes: list[str] = []
    with hdf5.open_hdf5(path) as file:
        label, matrices, n_frames = _bins(file, LEGACY_MATRICES, r"g2_(\d+)", LEGACY_PROCESSED)
        q, phi = q_phi_of_lists(file, label, notes)
        counts = {STRIDE: 1, AVG: 1}
        for name in counts:
            if hdf5.dataset_at(file, name) is None:
                notes.append(f"{name} is missing: assumed to be 1")
            else:
                counts[name] = int(hdf5.positive(file, name, whole=True))
        stride, avg = counts.values()
        return source_of(
            path,
            "aps-legacy",
            options,
            hdf5.read_matrix,
            matrices,
            n_frames,
            label=label,
            q=q,
            phi=phi,
            stride=stride,
            avg=avg,
            pixels=hdf5.sum_in_bins(hdf5.regions(file, "/xpcs/dqmap"), label),
            frame_time=spacing(hdf5.seconds(file, EXPOSURE), stride * avg),
            notes=notes,
            pictures=hdf5.pictures_in(
                file, (LEGACY_FLUX,), (LEGACY_IMAGE,), n_frames, 0, stride, avg
            ),
            **hdf5.truth(file),
        )
