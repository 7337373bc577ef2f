"""Which axes of an array of matrices are the two times.

HDF5 files of any layout, of which the user names the datasets.
"""

import re
from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from itertools import combinations
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from jaxtyping import Bool

from homodyne_dask.errors import HomodyneDaskError, OptionError, SourceError, nearest
from homodyne_dask.text import some_of
from ingest.readers import hdf5
from ingest.readers.options_and_units import IngestOptions, converted, decimals
from ingest.readers.source import (
    MIN_FRAMES,
    Source,
    check_frames,
    place,
    source_of,
    times_or_spacing,
)

Index = tuple[int | slice, ...]


class MatrixAxes(NamedTuple):
    """Which axes of an array are the two times; the others count bins, the last one fastest."""

    shape: tuple[int, ...]
    times: tuple[int, int]

    @property
    def n_frames(self) -> int:
        """Frames."""
        return self.shape[self.times[0]]

    @property
    def n_bins(self) -> int:
        """Matrices."""
        return prod(self.shape) // self.n_frames**2

    def names(self, array: str) -> list[str]:
        """Return the names of the matrices of an array: c2[0], c2[1], ..."""
        return [f"{array}[{number}]" for number in range(self.n_bins)]

    def index_of(self, number: int) -> Index:
        """Return the index by which an array gives the matrix of a number."""
        bins = [axis for axis in range(len(self.shape)) if axis not in self.times]
        at = np.unravel_index(number, [self.shape[axis] for axis in bins]) if bins else ()
        of = dict(zip(bins, map(int, at), strict=True))
        return tuple(of.get(axis, slice(None)) for axis in range(len(self.shape)))


def layout_of(
    path: Path,
    name: str,
    shape: tuple[int, ...],
    dtype: np.dtype,
    axes: tuple[str, ...] | None,
) -> MatrixAxes:
    """Return which axes are the times: those given, or the two of one length.

    Raises SourceError or OptionError, saying what to give, where neither tells.
    """
    what = f"{name} of {path.name}"
    if dtype.kind not in "fiu":
        raise SourceError(f"{what} contains {dtype}, not real numbers")
    given = axes is not None
    found = [_given_layout(what, shape, axes)] if given else _layouts_of_lengths(what, shape)
    for one in found:
        check_frames(one.n_frames, path, one.n_bins)
    if len(found) == 1:
        return found[0]
    names = (["t" if axis in one.times else "q" for axis in range(len(shape))] for one in found)
    ways = " or ".join(map(",".join, names))
    raise OptionError(
        f"{what} has shape {shape}, which does not show which two axes are times: "
        f"give --axes {ways}, with t for each time axis"
    )


def _layouts_of_lengths(what: str, shape: tuple[int, ...]) -> list[MatrixAxes]:
    pairs = [MatrixAxes(shape, pair) for pair in combinations(range(len(shape)), 2)]
    equal = [one for one in pairs if shape[one.times[0]] == shape[one.times[1]] > 1]
    if not equal or 0 in shape:
        raise SourceError(
            f"{what} has shape {shape}: it must be (N, N), (bin, N, N) or (N, N, bin), where N is the "
            "number of frames"
        )
    return [one for one in equal if one.n_frames >= MIN_FRAMES] or equal


def _given_layout(what: str, shape: tuple[int, ...], axes: tuple[str, ...]) -> MatrixAxes:
    first, second = (at for at, axis in enumerate(axes) if axis == "t")
    if len(axes) != len(shape) or shape[first] != shape[second] or 0 in shape:
        raise OptionError(
            f"axes = {','.join(axes)} do not match {what} of shape {shape}: "
            f"name each axis, with t for the two whose length is the number of frames"
        )
    return MatrixAxes(shape, (first, second))


def halves(matrix: np.ndarray) -> tuple[Bool[np.ndarray, "t t"], Bool[np.ndarray, "t t"]]:
    """Return where anything but 0 is known above the diagonal, and where below it, both with t1 < t2."""
    filled = np.isfinite(matrix) & (matrix != 0)
    return np.triu(filled, 1), np.triu(filled.T, 1)


MAX_LISTED = 12
MAX_OBJECTS = 10_000
"""Of a file, that are looked at to list its matrices."""
MATLAB = "MATLAB_class"
"""Attribute of every array that MATLAB writes (v7.3), with its axes in reverse order."""
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
"""A number in a name."""
REFERENCED = "#refs#"
"""The group in which MATLAB puts what its cell arrays refer to, under names that have no order."""


class Named(NamedTuple):
    """An object of a file, and what each * of a pattern stands for in its name."""

    name: str
    stars: tuple[str, ...] = ()


def open_any(path: Path, options: IngestOptions) -> Source:
    """Return the bins in the dataset of an HDF5 file, or the group of matrices, that the user names."""
    assert options.dataset is not None
    pattern, notes = "/" + options.dataset.strip("/"), list[str]()
    with hdf5.open_hdf5(path) as file:
        if hdf5.has_group(file, pattern):
            pattern = pattern.rstrip("/") + "/*"
        found = named(file, pattern)
        if "*" in pattern:
            found = _in_order(file, pattern, found, options)
        held = _quantities(file, options, [one.stars for one in found], notes)
        if found == [Named(pattern)]:
            layout = layout_in(file, pattern, options.axes)
            matrices, n_frames = layout.names(pattern), layout.n_frames
            reader = partial(read_slice, layout=layout)
        else:
            matrices, reader = [one.name for one in found], read_whole
            n_frames = hdf5.common_side(file, matrices)
    return source_of(path, "hdf5", options, reader, matrices, n_frames, notes=notes, **held)


def named(file: h5py.File, pattern: str) -> list[Named]:
    """Return what a name leads to: through the references of cell arrays, and * to all members of a group."""
    found = [Named("")]
    for part in pattern.strip("/").split("/"):
        found = [below for one in found for below in _members(file, one, part)]
    return [Named(name, stars) for one, stars in found for name in _referenced(file, one)]


def _members(file: h5py.File, group: Named, part: str) -> Iterator[Named]:
    for name in _referenced(file, group.name):
        if "*" not in part:
            yield Named(f"{name}/{part}", group.stars)
            continue
        for member in hdf5.members(file, name or "/"):
            if (stars := _stars(part, member)) is not None:
                yield Named(f"{name}/{member}", group.stars + stars)


def _stars(pattern: str, name: str) -> tuple[str, ...] | None:
    """Return what each * stands for in a name, the first ones as much as they can; None without a match.

    A regular expression tries all ways to share a name among many *.
    """
    first, *texts, last = pattern.split("*")
    if len(name) < len(first + last) or not (name.startswith(first) and name.endswith(last)):
        return None
    rest, found = name[len(first) : len(name) - len(last)], list[str]()
    for text in reversed(texts):
        if (at := rest.rfind(text)) < 0:
            return None
        found.append(rest[at + len(text) :])
        rest = rest[:at]
    return (rest, *reversed(found))


def _referenced(file: h5py.File, name: str) -> list[str]:
    found = hdf5.dataset(file, name)
    if found is None or h5py.check_ref_dtype(found.dtype) is not h5py.Reference:
        return [name]
    if (found.size or 0) > MAX_OBJECTS:
        raise hdf5.wrong(file, name, f"has {found.size} references: it is damaged")
    with hdf5.reading(file, name):
        names = [file[one].name if one else None for one in np.ravel(found[()])]
    if None in names:
        raise hdf5.wrong(file, name, "has a cell that is empty")
    return [hdf5.as_text(one) for one in names if one is not None]


def layout_in(file: h5py.File, name: str, axes: tuple[str, ...] | None) -> MatrixAxes:
    """Return the layout of a dataset of matrices."""
    path, found = Path(hdf5.file_name(file)), _dataset(file, name)
    return layout_of(path, name, _shape(found), found.dtype, axes)


def read_slice(path: Path, where: str, layout: MatrixAxes) -> np.ndarray:
    """Return one matrix of a dataset, named as '/c2[3]'."""
    name, number = place(where)
    index = layout.index_of(number)
    with hdf5.open_hdf5(path) as file:
        if MATLAB in hdf5.attributes_of(file, name):
            return hdf5.part(file, name, index[::-1]).T
        return hdf5.part(file, name, index)


def read_whole(path: Path, name: str) -> np.ndarray:
    """Return one matrix that is a dataset."""
    with hdf5.open_hdf5(path) as file:
        found = hdf5.part(file, name)
        return found.T if MATLAB in hdf5.attributes_of(file, name) else found


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


def _in_order(
    file: h5py.File, pattern: str, found: list[Named], options: IngestOptions
) -> list[Named]:
    """Return the square datasets of a pattern in the order of the numbers in their names: 0.5, 2, 10.

    Raises OptionError where names have no such order, by which q and φ would be assigned.
    """
    held = [(one, hdf5.dataset(file, one.name)) for one in found]
    square = [one for one, of in held if of is not None and _equal_axes(_shape(of)) == 2]
    if not square:
        raise hdf5.wrong(file, pattern, f"contains no square matrix; {what_is_in(file)}")
    names = {one: "/".join(one.stars) for one in square}
    numbers = {one: [*map(Decimal, NUMBER.findall(name))] for one, name in names.items()}
    words = {one: NUMBER.split(name) for one, name in names.items()}
    each_word, each_number = ({*map(tuple, held.values())} for held in (words, numbers))
    ordered = len(each_word) == 1 and len(each_number) == len(square)
    given = (options.q_dataset, options.q), (options.phi_dataset, options.phi)
    if not ordered and any(
        "*" not in name if name is not None else len(values or ()) > 1 for name, values in given
    ):
        some = ", ".join(one.name for one in square[:3])
        raise OptionError(
            f"the names of the matrices in {pattern} of {hdf5.file_name(file)} ({some} ...) have no order "
            f"in which q and φ could be assigned: give as dataset what refers to them in order, such as a "
            f"cell array, or q_dataset with a * that stands for the same part of the names"
        )
    return sorted(square, key=lambda one: (numbers[one], words[one]))


def _quantities(
    file: h5py.File, options: IngestOptions, stars: list[tuple[str, ...]], notes: list[str]
) -> dict[str, Any]:
    """Return q [1/Å], φ [degree] and times [s] of the datasets that the user names.

    stars: of each matrix, by which a pattern names its own value.
    """
    given = {"q": options.q_dataset, "phi": options.phi_dataset, "time": options.time_dataset}
    held = {what: _quantity(file, of, what, stars, notes) for what, of in given.items() if of}
    if "time" in held:
        held |= times_or_spacing(held.pop("time"), notes)
    return held


def _quantity(
    file: h5py.File, given: str, what: str, stars: list[tuple[str, ...]], notes: list[str]
) -> np.ndarray:
    name, _, attribute = given.partition("@")
    if "*" in name:
        names = [_filled(name, one) for one in stars]
    else:
        names = [one.name for one in named(file, name)]
    unsaid: list[str] = []
    values = [
        _attribute(file, one, attribute, what, unsaid)
        if attribute
        else hdf5.quantity(file, hdf5.as_text(_dataset(file, one).name or one), what, unsaid)
        for one in names
    ]
    notes += unsaid[:1]
    return np.concatenate(values)


def _filled(pattern: str, stars: tuple[str, ...]) -> str:
    first, *others = pattern.split("*")
    if len(others) != len(stars):
        raise OptionError(
            f"{pattern} has {len(others)} *, but the name of the matrices {len(stars)}: give as many"
        )
    return first + "".join(star + text for star, text in zip(stars, others, strict=True))


def _attribute(
    file: h5py.File, name: str, attribute: str, what: str, notes: list[str]
) -> np.ndarray:
    held = hdf5.attributes_of(file, name)
    if attribute not in held:
        raise OptionError(
            f"{name} of {hdf5.file_name(file)} has no attribute {attribute}; {nearest(attribute, held)}"
        )
    try:
        values = decimals(np.asarray(held[attribute], float))
    except (TypeError, ValueError) as error:
        raise hdf5.wrong(file, f"{name}@{attribute}", "is no number") from error
    return converted(what, values, None, f"{name}@{attribute}", notes)


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
    return some_of([f"{name} {shape}" for name, shape in found], MAX_LISTED)


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
                cells = [hdf5.dataset(file, one) for one in _referenced(file, name)]
            except HomodyneDaskError:
                continue
            if found is None:
                waiting += [name] * (member != REFERENCED)
                continue
            first = cells[0] if cells else None
            if first is not None and first.dtype.kind in "fiu" and first.shape is not None:
                yield name, _shape(first) if first == found else (len(cells), *_shape(first))
