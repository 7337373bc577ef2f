"""HDF5 files of any layout, of which the user names the datasets."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from homodyne_dask.errors import HomodyneDaskError, OptionError, nearest
from ingest.readers import hdf5
from ingest.readers.array_axes import MatrixAxes, layout_of
from ingest.readers.options import IngestOptions
from ingest.readers.source import MIN_FRAMES, Source, place, source_of, times_or_spacing

MAX_LISTED = 12
MAX_OBJECTS = 10_000
"""Of a file, that are looked at to list its matrices."""
MATLAB = "MATLAB_class"
"""Attribute of every array that MATLAB writes (v7.3), with its axes in reverse order."""


def open_any(path: Path, options: IngestOptions) -> Source:
    """Return the bins in the dataset of an HDF5 file, or the group of matrices, that the user names."""
    assert options.dataset is not None
    name, notes = "/" + options.dataset.strip("/"), list[str]()
    with hdf5.open_hdf5(path) as file:
        held = _named(file, options, notes)
        if hdf5.has_group(file, name):
            matrices, reader = _matrices_in(file, name), hdf5.read_matrix
            n_frames = hdf5.common_side(file, matrices)
        else:
            layout = layout_in(file, name, options.axes)
            matrices, n_frames = layout.names(name), layout.n_frames
            reader = partial(read_slice, layout=layout)
    return source_of(path, "hdf5", options, reader, matrices, n_frames, notes=notes, **held)


def layout_in(file: h5py.File, name: str, axes: tuple[str, ...] | None) -> MatrixAxes:
    """Return the layout of a dataset of matrices."""
    path, found = Path(hdf5.file_name(file)), _dataset(file, name)
    return layout_of(
        path,
        name,
        _shape(found),
        found.dtype,
        axes,
        lambda layout, n: _slice(file, name, layout, n),
    )


def read_slice(path: Path, where: str, layout: MatrixAxes) -> np.ndarray:
    """Return one matrix of a dataset, named as '/c2[3]'."""
    name, number = place(where)
    with hdf5.open_hdf5(path) as file:
        return _slice(file, name, layout, number)


def _slice(file: h5py.File, name: str, layout: MatrixAxes, number: int) -> np.ndarray:
    index = layout.index_of(number)
    if MATLAB in hdf5.attributes_of(file, name):
        return hdf5.part(file, name, index[::-1]).T
    return hdf5.part(file, name, index)


def _shape(found: h5py.Dataset) -> tuple[int, ...]:
    """Return the shape of a dataset as who wrote it sees it."""
    shape = found.shape or ()
    return shape[::-1] if MATLAB in found.attrs else shape


def _dataset(file: h5py.File, name: str) -> h5py.Dataset:
    found = hdf5.dataset(file, name)
    if found is None:
        names = [name for name, _ in _datasets(file)]
        raise OptionError(f"{hdf5.file_name(file)} has no dataset {name}; {nearest(name, names)}")
    return found


def _matrices_in(file: h5py.File, group: str) -> list[str]:
    """Return the square datasets of a group, 2 before 10."""
    names = [f"{group.rstrip('/')}/{member}" for member in hdf5.members(file, group)]
    held = {name: hdf5.dataset(file, name) for name in names}
    square = [name for name, of in held.items() if of is not None and _equal_axes(_shape(of)) == 2]
    if not square:
        raise hdf5.wrong(file, group, f"contains no square matrix; {what_is_in(file)}")
    parts = {name: re.findall(r"(\D*)(\d*)", name) for name in square}
    return sorted(
        square, key=lambda name: [(int(digits or 0), text) for text, digits in parts[name]]
    )


def _named(file: h5py.File, options: IngestOptions, notes: list[str]) -> dict[str, Any]:
    """Return q [1/Å], φ [degree] and times [s] of the datasets that the user names."""
    names = {"q": options.q_dataset, "phi": options.phi_dataset, "time": options.time_dataset}
    held: dict[str, Any] = {
        what: hdf5.quantity(file, _dataset(file, name).name or name, what, notes)
        for what, name in names.items()
        if name is not None
    }
    time = held.pop("time", None)
    return held if time is None else held | times_or_spacing(time, notes)


def what_is_in(file: h5py.File) -> str:
    """Return what may be matrices in a file, and which option takes them."""
    shapes = list(_datasets(file))
    found = [(name, shape) for name, shape in shapes if _equal_axes(shape) >= 2]
    lists = [(name, shape) for name, shape in shapes if sum(n > 1 for n in shape) == 1]
    if not found:
        return "no dataset in it has two axes of equal length"
    text = f"if the matrices are in one of these, give --dataset NAME: {_listed(found)}"
    others = "; candidates for --q-dataset, --phi-dataset and --time-dataset: "
    return text + f"{others}{_listed(lists)}" * bool(lists)


def _listed(found: list[tuple[str, tuple[int, ...]]]) -> str:
    some = ", ".join(f"{name} {shape}" for name, shape in found[:MAX_LISTED])
    return some + f" and {len(found) - MAX_LISTED} more" * (len(found) > MAX_LISTED)


def _equal_axes(shape: tuple[int, ...]) -> int:
    """Return the number of axes of an array in which two have one length, 0 of any other."""
    lengths = [n for n in shape if n >= MIN_FRAMES]
    return len(shape) if len(set(lengths)) < len(lengths) else 0


def _datasets(file: h5py.File) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of the datasets of numbers in a file, those that cannot be read left out."""
    waiting, left = [""], MAX_OBJECTS
    while waiting and left:
        group = waiting.pop(0)
        for member in hdf5.members(file, group or "/")[:left]:
            left -= 1
            name = f"{group}/{member}"
            try:
                found = hdf5.dataset(file, name)
            except HomodyneDaskError:
                continue
            if found is None:
                waiting.append(name)
            elif found.dtype.kind in "fiu" and found.shape is not None:
                yield name, _shape(found)
