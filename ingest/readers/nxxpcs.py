"""NXxpcs, the NeXus definition of XPCS results: /entry/twotime/two_time_corr_func and the masks."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import h5py
import numpy as np
from jaxtyping import Float

from homodyne_dask.errors import SourceError, nearest
from homodyne_dask.request.ingest_options import SECONDS, IngestOptions, converted, decimals
from ingest.readers import hdf5
from ingest.readers.any_hdf5 import halves, layout_in, read_slice
from ingest.readers.source import Source, source_of

MATRICES = "twotime/two_time_corr_func"
FIRST, LAST, KEYS = "one_array_q_first", "one_array_q_last", "data_exchange_keys"
AXES = {FIRST: ("q", "t", "t"), LAST: ("t", "t", "q")}
STORAGE = {
    "storage_mode": (FIRST, LAST, KEYS),
    "baseline_reference": ("0", "1"),
    "time_origin_location": ("upper_left", "lower_left"),
    "populated_elements": ("all", "upper_half", "lower_half"),
}
"""The four attributes that say how the matrices are stored, and what they may be."""
Storage = dict[str, str]


def entry_of(file: h5py.File) -> str | None:
    """Return the entry that holds two-time correlations as NXxpcs has them, None without one."""
    entries = (f"/{name}" for name in hdf5.members(file, "/"))
    return next((entry for entry in entries if hdf5.object_at(file, f"{entry}/{MATRICES}")), None)


def open_nxxpcs(path: Path, options: IngestOptions) -> Source:
    """Return the bins of an NXxpcs file; q and φ may be given where its optional lists are absent."""
    notes: list[str] = []
    with hdf5.open_hdf5(path) as file:
        entry = entry_of(file)
        if entry is None:
            raise SourceError(f"{path.name} has no {MATRICES}: it is not an NXxpcs result")
        where, masks = f"{entry}/{MATRICES}", f"{entry}/instrument/masks"
        storage = _storage(file, where)
        mode = storage["storage_mode"]
        if mode == KEYS:
            # named by the number of their region in dynamic_roi_map
            names = hdf5.matrix_names(file, where, r".*?(\d+)")
            if len(names) != len(hdf5.members(file, where)) or 0 in names:
                why = "must have keys that end in distinct numbers of at least 1"
                raise hdf5.wrong(file, where, why)
            label, matrices = [*names], [*names.values()]
            n_frames, reader = hdf5.common_side(file, matrices), hdf5.read_matrix
        else:
            dataset = hdf5.dataset_at(file, where)
            if mode == LAST and dataset is not None and len({*dataset.shape[:2]}) > 1:
                why = f"has shape {dataset.shape}, but is (frames, frames, q) by its storage_mode"
                raise hdf5.wrong(file, where, why)
            layout = layout_in(file, where, AXES[mode])
            reader, matrices, n_frames = layout.matrices(where, read_slice)
            label = range(1, layout.n_bins + 1)
        label = np.array(label)
        q, phi = q_phi(file, masks, label, notes)
        detector = _detector(file, f"{entry}/instrument")
        time = _times(file, where, mode, notes)
        _note_rows(file, where, notes)
        pictures = [f"{entry}/data/{name}" for name in ("frame_sum", "frame_average")]
        return source_of(
            path,
            "nxxpcs",
            options,
            partial(read_nxxpcs, reader=reader, storage=storage),
            matrices,
            n_frames,
            label=label,
            q=q,
            phi=phi,
            pixels=hdf5.sum_in_bins(hdf5.regions(file, f"{masks}/dynamic_roi_map"), label),
            time=time,
            frame_time=hdf5.seconds(file, f"{detector}/frame_time"),
            baseline=int(storage["baseline_reference"]),
            experiment=hdf5.experiment(file, entry, detector),
            pictures=hdf5.pictures_in(file, pictures, pictures[::-1], n_frames),
            notes=notes,
        )


def q_phi(
    file: h5py.File, masks: str, label: np.ndarray, notes: list[str]
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return q in 1/Å and φ in degrees of the bins, from lists that begin with bin 1; None where absent."""
    q_list, phi_list = (f"{masks}/dynamic_{what}_list" for what in ("q", "phi"))
    q, phi_beside_q = _columns_of_bins(file, "q", q_list, label, notes)
    phi, _ = _columns_of_bins(file, "phi", phi_list, label, notes)
    if phi is None and phi_beside_q is not None:
        notes.append(f"φ is the second column of {q_list}")
        phi = phi_beside_q
    return q, phi


def _columns_of_bins(
    file: h5py.File, what: str, name: str, label: np.ndarray, notes: list[str]
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return the values of the bins in the unit of `what`, and those of a second column as they are."""
    stored = hdf5.optional(file, name)
    if stored is None:
        return None, None
    columns = stored.T if stored.ndim == 2 and stored.shape[1] == 2 else stored.ravel()[None]
    if columns.shape[1] < label.max():
        bins = f"has {columns.shape[1]} entries, but there is a bin {label.max()}"
        raise hdf5.wrong(file, name, bins)
    values, *second = (decimals(column[label - 1]) for column in columns)
    if not np.isfinite([values, *second]).all():
        raise hdf5.wrong(file, name, "must contain finite numbers")
    unit = hdf5.unit(file, name)
    if what == "phi" and str(unit).startswith("1/"):
        notes.append(f"{name} is in {unit!r}, the unit that NXxpcs defines: taken to be in degrees")
        unit = None
    unit = None if unit in ("", "au", "any") else unit  # which say nothing
    return converted(what, values, unit, name, notes), next(iter(second), None)


def read_nxxpcs(
    path: Path, where: str, reader: Callable[[Path, str], np.ndarray], storage: Storage
) -> np.ndarray:
    """Return one matrix with its origin at the upper left, and NaN in the half that is only filled up."""
    c2 = reader(path, where)
    c2 = np.array(c2, np.result_type(c2.dtype, np.float32))
    both = all(half.any() for half in halves(c2))
    # some programs write "lower_left" for how they draw a matrix that starts at its first element
    upright = not both or np.allclose(c2, c2.T, rtol=1e-5, equal_nan=True)
    if storage["time_origin_location"] == "lower_left" and not upright:
        c2 = c2[::-1].copy()
        both = all(half.any() for half in halves(c2))
    # An origin at the lower left leaves open which half is the "upper" one. So where only one half has
    # anything but 0, it is taken by `clean`; where both have, the half that is not populated is filling.
    populated = storage["populated_elements"]
    if populated != "all" and both:
        filling = np.tri(len(c2), k=-1, dtype=bool)
        c2[filling if populated == "upper_half" else filling.T] = np.nan
    return c2


def _storage(file: h5py.File, where: str) -> Storage:
    attributes, storage = hdf5.attributes_of(file, where), Storage()
    for name, choices in STORAGE.items():
        if name not in attributes:
            why = f"has no attribute {name}, which NXxpcs requires: {nearest('', choices)}"
            raise hdf5.wrong(file, where, why)
        storage[name] = hdf5.text(np.ravel(attributes[name])[0])
        if storage[name] not in choices:
            why = f"is {storage[name]!r}; {nearest(storage[name], choices)}"
            raise hdf5.wrong(file, f"{name} of {where}", why)
    return storage


def _note_rows(file: h5py.File, where: str, notes: list[str]) -> None:
    """Note rows that are means over frames, as in the `result.nx.h5` of a fit of many frames."""
    attributes = hdf5.attributes_of(file, where)
    if np.any(attributes.get("of_cells", False)):
        raise SourceError(
            f"{where} of {hdf5.file_name(file)} repeats the mean of each cell of age and lag at all its "
            f"pairs, but that is a single measurement: ingest the file that was fitted"
        )
    frames = attributes.get("frames_per_row")
    if isinstance(frames, np.integer) and frames > 1:
        notes.append(f"each row is the mean of {frames} frames: short decays are smoothed")


def _detector(file: h5py.File, instrument: str) -> str:
    groups = [f"{instrument}/{name}" for name in hdf5.members(file, instrument)]
    detectors = [name for name in groups if hdf5.dataset_at(file, f"{name}/frame_time") is not None]
    if len(detectors) != 1:
        raise SourceError(
            f"{hdf5.file_name(file)} must have one frame_time, in a detector in {instrument}; it "
            f"has {', '.join(detectors) or 'none'}"
        )
    return detectors[0]


def _times(
    file: h5py.File, where: str, mode: str, notes: list[str]
) -> Float[np.ndarray, " t"] | None:
    # without a unit of time an axis may as well number the frames: then the frame time counts
    group = where.rpartition("/")[0]
    axes = [hdf5.text(name) for name in np.ravel(hdf5.attributes_of(file, group).get("axes", []))]
    name = f"{group}/{axes[mode == FIRST]}" if len(axes) == 3 else ""
    if mode == KEYS or not name or (hdf5.unit(file, name) or "").lower() not in {*SECONDS} - {""}:
        return None
    time = hdf5.quantity(file, name, "time", notes)
    notes.append(f"times are taken from {name}, starting at {time[0]:g} s")
    return time
