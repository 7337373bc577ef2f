"""NXxpcs, the NeXus definition of XPCS results: /entry/twotime/two_time_corr_func and the masks."""

import re
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
from jaxtyping import Float

from homodyne_dask.errors import OptionError, SourceError, nearest
from ingest.readers import hdf5
from ingest.readers.hdf5 import experiment
from ingest.readers.pictures import pictures_in
from ingest.readers.source import (
    IngestOptions,
    Source,
    check_frames,
    decimal,
    degrees,
    inverse_angstrom,
    per_bin,
)


def listed_q(
    file: h5py.File, name: str, label: np.ndarray, options: IngestOptions
) -> tuple[Float[np.ndarray, " bin"], list[str]]:
    """Return q of the bins in 1/Å from the list of that name, else from the option, and notes on it."""
    if hdf5.dataset(file, name) is None:
        return _from_option(file, name, "q", options.q, "1/Å", label), []
    _not_both(file, name, "q", options.q)
    unit = _unit_or_none(hdf5.unit(file, name))
    return inverse_angstrom(_column(file, name, 0, label), unit, name)


def listed_phi(
    file: h5py.File, name: str, label: np.ndarray, options: IngestOptions
) -> tuple[Float[np.ndarray, " bin"], list[str]]:
    """Return φ in degrees from its own list, or from the second column of the list of q, else likewise."""
    together = name.replace("dynamic_phi_list", "dynamic_q_list")
    if hdf5.dataset(file, name) is None:
        held = hdf5.dataset(file, together)
        if held is not None and held.ndim == 2 and held.shape[1] == 2:
            _not_both(file, together, "phi", options.phi)
            return _column(file, together, 1, label), [f"φ is the second column of {together}"]
        return _from_option(file, name, "phi", options.phi, "degrees", label), []
    _not_both(file, name, "phi", options.phi)
    unit = _unit_or_none(hdf5.unit(file, name))
    values = _column(file, name, 0, label)
    if unit is not None and unit.startswith("1/"):
        note = f"{name} is in {unit!r}, the unit that NXxpcs defines: taken to be in degrees"
        return values, [note]
    return degrees(values, unit, name)


def _unit_or_none(unit: str | None) -> str | None:
    return None if unit in ("", "au", "any") else unit


def _column(file: h5py.File, name: str, column: int, label: np.ndarray) -> np.ndarray:
    """Return the entries of the bins in a list that begins with bin 1."""
    held = hdf5.array(file, name)
    values = held[:, column] if held.ndim == 2 and held.shape[1] == 2 else held.ravel()
    if len(values) < label.max():
        raise hdf5.wrong(file, name, f"has {len(values)} entries, but there is a bin {label.max()}")
    found = np.array([decimal(value) for value in values[label - 1]])
    if not np.isfinite(found).all():
        raise hdf5.wrong(file, name, f"must contain finite numbers, not {found[:5]}")
    return found


def _from_option(file, name: str, what: str, given, unit: str, label) -> Float[np.ndarray, " bin"]:
    if given is None:
        raise OptionError(
            f"{hdf5.file_name(file)} has no {name}: give --{what} in {unit}, one number or "
            f"one per bin, or nan if it is unknown"
        )
    return per_bin(what, given, len(label))


def _not_both(file: h5py.File, name: str, what: str, given) -> None:
    if given is not None:
        raise OptionError(f"{what} is read from {name} of {hdf5.file_name(file)}: leave it out")


MATRICES = "twotime/two_time_corr_func"
MASKS = "instrument/masks"
FIRST, LAST, KEYS = "one_array_q_first", "one_array_q_last", "data_exchange_keys"
STORAGE = {
    "storage_mode": (FIRST, LAST, KEYS),
    "baseline_reference": ("0", "1"),
    "time_origin_location": ("upper_left", "lower_left"),
    "populated_elements": ("all", "upper_half", "lower_half"),
}
"""The four attributes that say how the matrices are stored, and what they may be."""


class Storage(NamedTuple):
    """How the matrices of a file are stored."""

    mode: str
    baseline: int
    origin: str
    populated: str


def entry_of(file: h5py.File) -> str | None:
    """Return the entry that holds two-time correlations as NXxpcs has them, None without one."""
    for name in hdf5.members(file, "/"):
        where = f"/{name}/{MATRICES}"
        if hdf5.has_group(file, where) or hdf5.dataset(file, where) is not None:
            return f"/{name}"
    return None


def open_nxxpcs(path: Path, options: IngestOptions) -> Source:
    """Return the bins of an NXxpcs file; q and φ may be given where its optional lists are absent."""
    with hdf5.open_hdf5(path) as file:
        entry = entry_of(file)
        if entry is None:
            raise SourceError(f"{path.name} has no {MATRICES}: it is not an NXxpcs result")
        where = f"{entry}/{MATRICES}"
        storage = _storage(file, where)
        names, n_frames = _matrices(file, where, storage)
        on_rows = _rows(file, where)
        check_frames(n_frames, path)
        label = np.array(list(names))
        masks = f"{entry}/{MASKS}"
        q, on_q = listed_q(file, f"{masks}/dynamic_q_list", label, options)
        phi, on_phi = listed_phi(file, f"{masks}/dynamic_phi_list", label, options)
        detector = _detector(file, f"{entry}/instrument")
        frame_time = hdf5.seconds(file, f"{detector}/frame_time")
        time, on_time = _times(file, where, storage, n_frames, frame_time)
        measurement = experiment(file, entry, detector)
        pixels = hdf5.sum_in_bins(hdf5.regions(file, f"{masks}/dynamic_roi_map"), label)
        held = [f"{entry}/data/{name}" for name in ("frame_sum", "frame_average")]
        pictures = pictures_in(file, held, held[::-1], n_frames)
    return Source(
        path=path,
        format="nxxpcs",
        reader=read_nxxpcs,
        matrices=tuple(names.values()),
        label=label,
        q=q,
        phi=phi,
        n_pixels=pixels,
        n_frames=n_frames,
        frame_time=frame_time,
        time=time,
        baseline=storage.baseline,
        experiment=measurement,
        pictures=pictures,
        notes=(*on_q, *on_phi, *on_time, *on_rows),
    )


def read_nxxpcs(path: Path, where: str) -> np.ndarray:
    """Return one matrix with its origin at the upper left and one half of it NaN where it holds filling."""
    array, _, number = where.partition("[")
    with hdf5.open_hdf5(path) as file:
        storage = _storage(file, array if number else array.rpartition("/")[0])
        held = hdf5.dataset(file, array)
        if held is None:
            raise SourceError(f"{path} no longer has {array}")
        at = int(number.removesuffix("]")) if number else 0
        try:
            one = {FIRST: np.s_[at], LAST: np.s_[:, :, at], KEYS: np.s_[()]}[storage.mode]
            c2 = np.asarray(held[one])
        except hdf5.UNREADABLE as error:
            raise hdf5.damaged(file, array, error) from error
    c2 = np.array(c2, np.result_type(c2.dtype, np.float32))
    # some programs write "lower_left" for how they draw a matrix that starts at its first element
    upright = not all(_halves(c2)) or np.allclose(c2, c2.T, rtol=1e-5, equal_nan=True)
    if storage.origin == "lower_left" and not upright:
        c2 = c2[::-1].copy()
    # Where only one half holds anything but 0 that half is taken: an origin at the lower left leaves open
    # which one "upper" is. Where both do, the other one holds filling.
    if storage.populated != "all" and all(_halves(c2)):
        filling = np.tri(len(c2), k=-1, dtype=bool)
        c2[filling if storage.populated == "upper_half" else filling.T] = np.nan
    return c2


def _halves(c2: np.ndarray) -> tuple[bool, bool]:
    """Return whether anything but 0 is known below, and above, the diagonal."""
    filled, below = np.isfinite(c2) & (c2 != 0), np.tri(len(c2), k=-1, dtype=bool)
    return bool((filled & below).any()), bool((filled & below.T).any())


def _storage(file: h5py.File, where: str) -> Storage:
    """Return how the matrices are stored; raises SourceError for a missing or unknown attribute."""
    held = hdf5.attributes_of(file, where)
    found = {}
    for name, known in STORAGE.items():
        if name not in held:
            raise SourceError(
                f"{where} of {hdf5.file_name(file)} has no attribute {name}, which NXxpcs requires: "
                f"set it to one of {', '.join(known)}"
            )
        value = hdf5.text(np.ravel(held[name])[0])
        if value not in known:
            raise SourceError(
                f"{name} of {where} in {hdf5.file_name(file)} is {value!r}; {nearest(value, known)}"
            )
        found[name] = value
    return Storage(
        found["storage_mode"], int(found["baseline_reference"]), found["time_origin_location"],
        found["populated_elements"],
    )  # fmt: skip


def _matrices(file: h5py.File, where: str, storage: Storage) -> tuple[dict[int, str], int]:
    """Return label → place of each matrix, and the number of frames."""
    if storage.mode == KEYS:
        names = _keyed(file, where)
        return names, hdf5.common_side(file, list(names.values()))
    held = hdf5.dataset(file, where)
    shape = None if held is None else held.shape
    if held is None or shape is None or len(shape) not in (2, 3):
        raise hdf5.wrong(file, where, f"has shape {shape}, but {storage.mode} means a single array")
    if held.dtype.kind not in "fiu":
        raise hdf5.wrong(file, where, f"contains {held.dtype}, not real numbers")
    first = storage.mode == FIRST
    bins, *sides = (shape[0], *shape[1:]) if first else (shape[-1], *shape[:-1])
    if len(sides) != 2 or sides[0] != sides[1] or not bins:
        raise SourceError(
            f"{where} of {hdf5.file_name(file)} has shape {shape}: {storage.mode} is "
            f"{'(q, frames, frames)' if first else '(frames, frames, q)'}"
        )
    check_frames(sides[0], Path(hdf5.file_name(file)), bins)
    return {n + 1: f"{where}[{n}]" for n in range(bins)}, sides[0]


def _keyed(file: h5py.File, where: str) -> dict[int, str]:
    """Return label → place of matrices named by the number of their region in dynamic_roi_map."""
    if not hdf5.has_group(file, where):
        raise hdf5.wrong(
            file, where, f"is a single array, but {KEYS} means a group with one matrix per key"
        )
    found = {}
    for key in hdf5.members(file, where):
        number = re.search(r"(\d+)$", key, re.ASCII)
        if number is None or int(number[1]) in found or int(number[1]) < 1:
            raise SourceError(
                f"{where}/{key} of {hdf5.file_name(file)}: keys must end in distinct "
                f"numbers of dynamic_roi_map, at least 1"
            )
        found[int(number[1])] = f"{where}/{key}"
    if not found:
        raise hdf5.wrong(file, where, "contains no matrix")
    return dict(sorted(found.items()))


def _rows(file: h5py.File, where: str) -> list[str]:
    """Return a note on rows that are means over frames, as `result.nx.h5` of a fit of many frames has.

    Raises SourceError where such a file shows data that were means over cells of age and lag already.
    """
    held = hdf5.attributes_of(file, where)
    if np.any(held.get("of_cells", False)):
        raise SourceError(
            f"{where} of {hdf5.file_name(file)} repeats the mean of each cell of age and lag at all its "
            f"pairs, but that is a single measurement: ingest the file that was fitted"
        )
    frames = held.get("frames_per_row")
    if not isinstance(frames, np.integer) or frames <= 1:
        return []
    return [f"each row is the mean of {frames} frames: short decays are smoothed"]


def _detector(file: h5py.File, instrument: str) -> str:
    """Return the group of the one detector that has a frame_time."""
    found = [
        f"{instrument}/{name}"
        for name in hdf5.members(file, instrument)
        if hdf5.dataset(file, f"{instrument}/{name}/frame_time") is not None
    ]
    if len(found) != 1:
        raise SourceError(
            f"{hdf5.file_name(file)} must have one frame_time, in a detector in {instrument}; it "
            f"has {', '.join(found) or 'none'}"
        )
    return found[0]


def _times(
    file: h5py.File, where: str, storage: Storage, n_frames: int, frame_time: float
) -> tuple[Float[np.ndarray, " t"], list[str]]:
    """Return the times of the frames: the axis that the group names, in seconds, else from 0 on."""
    group = where.rpartition("/")[0]
    axes = [hdf5.text(name) for name in np.ravel(hdf5.attributes_of(file, group).get("axes", []))]
    name = f"{group}/{axes[storage.mode == FIRST]}" if len(axes) == 3 else ""
    if storage.mode == KEYS or not name or hdf5.unit(file, name) not in ("s", "second", "seconds"):
        return np.arange(n_frames) * frame_time, []
    time = hdf5.finite_numbers(file, name)
    steps = np.diff(time)
    if len(time) != n_frames or (steps <= 0).any():
        raise SourceError(
            f"{name} of {hdf5.file_name(file)} must be {n_frames} increasing times, one per frame: correct "
            f"it, or remove the attribute axes of {group}"
        )
    if not np.isclose(np.median(steps), frame_time, rtol=1e-6, atol=0):
        raise SourceError(
            f"{name} of {hdf5.file_name(file)} steps by {np.median(steps):g} s, but frame_time is "
            f"{frame_time:g} s: correct one of them"
        )
    return time, [f"times are taken from {name}, starting at {time[0]:g} s"]
