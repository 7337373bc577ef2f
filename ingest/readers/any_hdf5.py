"""HDF5 files of any layout, of which the user names the datasets; which axes of an array are the times."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import combinations
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from jaxtyping import Bool

from homodyne_dask.errors import HomodyneDaskError, OptionError, SourceError, nearest
from homodyne_dask.request.ingest_options import IngestOptions, converted, decimals
from homodyne_dask.store.hdf5_files import UNREADABLE
from homodyne_dask.text import some_of
from ingest.readers import hdf5
from ingest.readers.source import (
    MIN_FRAMES,
    Source,
    check_frames,
    counts_and_pixels,
    place,
    source_of,
    times_or_spacing,
)

Index = tuple[int | slice, ...]
MAX_LISTED = 12
"""Datasets that an error lists."""
MAX_OBJECTS = 10_000
"""Objects of a file that are searched for matrices, and cells of an array of MATLAB."""
MATLAB = "MATLAB_class"
"""Attribute of every array that MATLAB writes (v7.3), with its axes in reverse order."""
REFERENCED = "#refs#"
"""The group in which MATLAB puts what its cell arrays refer to."""
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


COUNTED = ("counts", "pixels")


class MatrixAxes(NamedTuple):
    """Which axes of an array are the two times; the others count bins, the last one fastest."""

    shape: tuple[int, ...]
    times: tuple[int, int]

    @property
    def n_frames(self) -> int:
        return self.shape[self.times[0]]

    @property
    def n_bins(self) -> int:
        return prod(self.shape) // self.n_frames**2

    def matrices(self, array: str, reader: Callable) -> tuple[Callable, list[str], int]:
        """Return the reader of one matrix, the names of all, and the frames, as `source_of` takes them."""
        names = [f"{array}[{number}]" for number in range(self.n_bins)]
        return partial(reader, layout=self), names, self.n_frames

    def letters(self) -> list[str]:
        """Return t for each axis of times, and q for each of bins."""
        return ["qt"[axis in self.times] for axis in range(len(self.shape))]

    def index_of(self, number: int) -> Index:
        index: list[int | slice] = [slice(None)] * len(self.shape)
        for axis in reversed(range(len(self.shape))):
            if axis not in self.times:
                number, index[axis] = divmod(number, self.shape[axis])
        return tuple(index)


def layout_of(
    path: Path, name: str, shape: tuple[int, ...], dtype: np.dtype, axes: tuple[str, ...] | None
) -> MatrixAxes:
    """Return which axes are the times: those of the option, or the two of one length."""
    what = f"{name} of {path.name}"
    if dtype.kind not in "fiu":
        raise SourceError(f"{what} contains {dtype}, not real numbers")
    layouts = _possible_layouts(shape, axes)
    if not layouts and axes:
        raise OptionError(
            f"axes = {','.join(axes)} do not match {what} of shape {shape}: "
            f"name each axis, with t for the two whose length is the number of frames"
        )
    if not layouts:
        raise SourceError(
            f"{what} has shape {shape}: it must be (N, N), (bin, N, N) or (N, N, bin), where N is the "
            "number of frames"
        )
    # before the choice: of a damaged file no axes are asked for
    for layout in layouts:
        check_frames(layout.n_frames, path, layout.n_bins)
    if len(layouts) > 1:
        ways = " or ".join(",".join(layout.letters()) for layout in layouts)
        raise OptionError(
            f"{what} has shape {shape}, which does not show which two axes are times: "
            f"give --axes {ways}, with t for each time axis"
        )
    return layouts[0]


def _possible_layouts(shape: tuple[int, ...], axes: tuple[str, ...] | None) -> list[MatrixAxes]:
    pairs = combinations(range(len(shape)), 2)
    equal = [MatrixAxes(shape, (a, b)) for a, b in pairs if shape[a] == shape[b] > 0 not in shape]
    if axes:
        letters = ["qt"[axis == "t"] for axis in axes]
        return [layout for layout in equal if layout.letters() == letters]
    # shorter axes are those of bins; without longer ones they stay, for check_frames to say how short
    return [layout for layout in equal if layout.n_frames >= MIN_FRAMES] or equal


def halves(matrix: np.ndarray) -> tuple[Bool[np.ndarray, "t t"], Bool[np.ndarray, "t t"]]:
    """Return where a value other than 0 is known above the diagonal, and where below, both with t1 < t2."""
    filled = np.isfinite(matrix) & (matrix != 0)
    return np.triu(filled, 1), np.triu(filled.T, 1)


def open_any(path: Path, options: IngestOptions) -> Source:
    """Return the bins in the dataset of an HDF5 file, or the group of matrices, that the user names."""
    assert options.dataset is not None
    name, notes = "/" + options.dataset.strip("/"), list[str]()
    with hdf5.open_hdf5(path) as file:
        if hdf5.has_group(file, name):
            name = name.rstrip("/") + "/*"
        if "*" in name:
            stars: Mapping[str, str | None] = _in_order(file, name, options)
        else:
            stars = dict[str, str | None].fromkeys(_referenced(file, name))
        units, values = options.dataset_units, [*stars.values()]
        quantities: dict[str, Any] = {
            what: _quantity(file, named, what, values, notes, units.get(what))
            for what, named in options.dataset_names.items()
            if what not in COUNTED
        }
        counted = {
            what: _counted(file, options.dataset_names[what], values)
            for what in COUNTED
            if what in options.dataset_names
        }
        if "time" in quantities:
            quantities |= times_or_spacing(quantities.pop("time"), notes)
        if [*stars] == [name]:
            matrices = layout_in(file, name, options.axes).matrices(name, read_slice)
        else:
            matrices = read_array, [*stars], hdf5.common_side(file, [*stars])
    quantities |= counts_and_pixels(path, counted, len(matrices[1]), matrices[2])
    return source_of(path, "hdf5", options, *matrices, notes=notes, **quantities)


def _in_order(file: h5py.File, pattern: str, options: IngestOptions) -> dict[str, str]:
    """Return the square datasets of a pattern by their numbers, and what * stands for in each."""
    stars = dict(_square(file, *_parts(pattern)))
    if not stars:
        raise hdf5.wrong(file, pattern, f"contains no square matrix; {what_is_in(file)}")
    words = {name: NUMBER.split(star) for name, star in stars.items()}
    numbers = {name: [*map(float, NUMBER.findall(star))] for name, star in stars.items()}
    each_word, each_number = ({*map(tuple, texts.values())} for texts in (words, numbers))
    values_by_bin = (options.q_dataset, options.q), (options.phi_dataset, options.phi)
    by_order = any(
        "*" not in name if name else len(values or ()) > 1 for name, values in values_by_bin
    )
    if by_order and (len(each_word) > 1 or len(each_number) < len(stars)):
        raise OptionError(
            f"the names of the matrices in {pattern} of {hdf5.file_name(file)} "
            f"({', '.join([*stars][:3])} ...) have no order in which q and φ could be assigned: give as "
            f"dataset what refers to them in order, such as a cell array, or q_dataset with a * that stands "
            f"for the same part of the names"
        )
    return {
        name: stars[name] for name in sorted(stars, key=lambda name: (numbers[name], words[name]))
    }


def _square(file: h5py.File, before: str, after: str) -> Iterator[tuple[str, str]]:
    group, _, begin = before.rpartition("/")
    end, slash, below = after.partition("/")
    for member in hdf5.members(file, group or "/"):
        star = member.removeprefix(begin).removesuffix(end)
        if member == begin + star + end:
            matrix = hdf5.dataset_at(file, name := f"{group}/{member}{slash}{below}")
            if matrix is not None and _equal_axes(_shape(matrix)) == 2:
                yield name, star


def _parts(pattern: str) -> tuple[str, str]:
    before, *after = pattern.split("*")
    if len(after) != 1:
        raise OptionError(f"{pattern} has {len(after)} *: give one, which stands for any text")
    return before, after[0]


def _referenced(file: h5py.File, name: str) -> list[str]:
    """Return the names of what the cells of a MATLAB array refer to; of another array, its own name."""
    dataset = hdf5.dataset_at(file, name)
    if dataset is None or h5py.check_ref_dtype(dataset.dtype) is not h5py.Reference:
        return [name]
    if (dataset.size or 0) > MAX_OBJECTS:
        raise hdf5.wrong(file, name, f"has {dataset.size} references: it is damaged")
    if dataset.file.filename != file.filename or dataset.is_virtual:
        raise hdf5.wrong(file, name, "refers to what is in another file: ingest that file")
    with hdf5.reading(file, name):
        names = [file[cell].name if cell else None for cell in np.ravel(dataset[()])]
    if None in names:
        raise hdf5.wrong(file, name, "has a cell that is empty")
    return [hdf5.as_text(cell) for cell in names if cell is not None]


def layout_in(file: h5py.File, name: str, axes: tuple[str, ...] | None) -> MatrixAxes:
    dataset = _dataset(file, name)
    return layout_of(Path(hdf5.file_name(file)), name, _shape(dataset), dataset.dtype, axes)


def read_slice(path: Path, where: str, layout: MatrixAxes) -> np.ndarray:
    name, number = place(where)
    return read_array(path, name, layout.index_of(number))


def read_array(path: Path, name: str, index: Index = ()) -> np.ndarray:
    with hdf5.open_hdf5(path) as file:
        if MATLAB in hdf5.attributes_of(file, name):
            return hdf5.read_part(file, name, index[::-1]).T
        return hdf5.read_part(file, name, index)


def _shape(dataset: h5py.Dataset) -> tuple[int, ...]:
    shape = dataset.shape or ()
    return shape[::-1] if MATLAB in dataset.attrs else shape


def _dataset(file: h5py.File, name: str) -> h5py.Dataset:
    dataset = hdf5.dataset_at(file, name)
    if dataset is None:
        names = [name for name, _ in _datasets(file)]
        raise OptionError(f"{hdf5.file_name(file)} has no dataset {name}; {nearest(name, names)}")
    return dataset


def _quantity(
    file: h5py.File, place_in_file: str, what: str, stars: list[str | None], notes: list[str],
    unit: str | None,
) -> np.ndarray:  # fmt: skip
    """Return q [1/Å], φ [degree] or times [s] of NAME or NAME@ATTRIBUTE; stars: what * stands for."""
    name, _, attribute = place_in_file.partition("@")
    unsaid, values = list[str](), list[np.ndarray]()
    for object_name in _names(file, name, stars):
        if attribute:
            where = f"{object_name}@{attribute}"
            numbers = _numbers_of_attribute(file, object_name, attribute)
            values.append(converted(what, numbers, unit, where, unsaid))
        else:
            _dataset(file, object_name)
            in_file = hdf5.unit(file, object_name)
            if None is not unit != in_file is not None:
                raise OptionError(
                    f"{object_name} of {hdf5.file_name(file)} is in {in_file}, not in {unit}: leave out "
                    f"[{unit}], or correct the file"
                )
            values.append(hdf5.quantity(file, object_name, what, unsaid, unit))
    notes += unsaid[:1]  # the first stands for all matrices: thousands would say the same
    return np.concatenate(values)


def _names(file: h5py.File, name: str, stars: list[str | None]) -> list[str]:
    if "*" not in name:
        return _referenced(file, name)
    if None in stars:
        raise OptionError(f"{name} has a *, but the name of the matrices has none: give it in both")
    return [(star or "").join(_parts(name)) for star in stars]


def _counted(file: h5py.File, name: str, stars: list[str | None]) -> np.ndarray:
    """Return counts or pixels, one for each bin or frame, or both (bin, t), as they are in the file."""
    values = list[np.ndarray]()
    for object_name in _names(file, name, stars):
        is_matlab = MATLAB in _dataset(file, object_name).attrs
        array = hdf5.array(file, object_name)
        values.append(np.squeeze(array.T if is_matlab else array))
    if len({array.shape for array in values}) > 1:
        raise hdf5.wrong(file, name, "has arrays of several shapes: give one for all bins")
    return np.squeeze(np.stack(values)) if "*" in name or len(values) > 1 else values[0]


def _numbers_of_attribute(file: h5py.File, name: str, attribute: str) -> np.ndarray:
    attributes = hdf5.attributes_of(file, name)
    if attribute not in attributes:
        raise OptionError(
            f"{name} of {hdf5.file_name(file)} has no attribute {attribute}; {nearest(attribute, attributes)}"
        )
    try:
        return decimals(np.asarray(attributes[attribute], float))
    except (TypeError, ValueError) as error:
        raise hdf5.wrong(file, f"{name}@{attribute}", "is no number") from error


def what_is_in(file: h5py.File) -> str:
    """Return the sentence that says which datasets of a file may be named, and how."""
    shapes = [*_datasets(file)]
    matrices = [f"{name} {shape}" for name, shape in shapes if _equal_axes(shape) >= 2]
    lists = [f"{name} {shape}" for name, shape in shapes if sum(n > 1 for n in shape) == 1]
    if not matrices:
        return "no dataset in it has two axes of equal length"
    sentence = (
        f"if the matrices are in one of these, give --dataset NAME: {some_of(matrices, MAX_LISTED)}"
    )
    if lists:
        sentence += "; candidates for --q-dataset, --phi-dataset and --time-dataset: "
        sentence += some_of(lists, MAX_LISTED)
    return sentence


def _equal_axes(shape: tuple[int, ...]) -> int:
    lengths = [n for n in shape if n >= MIN_FRAMES]
    return len(shape) if len(set(lengths)) < len(lengths) else 0


def _datasets(file: h5py.File) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of the datasets of numbers in a file, without those that cannot be read."""
    waiting, unseen = [""], MAX_OBJECTS
    while waiting and unseen:
        group = waiting.pop(0)
        for member in hdf5.members(file, group or "/")[:unseen]:
            unseen -= 1
            name = f"{group}/{member}"
            try:
                dataset = hdf5.dataset_at(file, name)
                cells = [hdf5.dataset_at(file, cell) for cell in _referenced(file, name)]
                shape = _shape_of_numbers(cells[0]) if cells else None
            except (HomodyneDaskError, *UNREADABLE):  # a damaged dataset must not hide the others
                continue
            if dataset is None and member != REFERENCED:
                waiting.append(name)
            elif shape is not None:
                yield name, shape if cells == [dataset] else (len(cells), *shape)


def _shape_of_numbers(dataset: h5py.Dataset | None) -> tuple[int, ...] | None:
    if dataset is None or dataset.shape is None or dataset.dtype.kind not in "fiu":
        return None
    return _shape(dataset)
