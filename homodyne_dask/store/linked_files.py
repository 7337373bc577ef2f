"""Other files that an HDF5 file leads to: which of them may be read, and virtual datasets made of them.

HDF5 itself would open them wherever they lie. Here they are opened only within `following`, and only below
one folder, after all symbolic links are resolved; of virtual datasets each source is read by itself.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from homodyne_dask.store.files import is_file, state

Index = tuple[int | slice, ...]
UNLIMITED = 2**63
"""Counts from here on are those of a selection without end."""
MOST_OPEN = 100
"""Files that are open at once."""


class _Followed(NamedTuple):
    folder: Path | None
    """None for that of each file which is opened."""
    states: dict[Path, tuple[int, ...]]
    checked: bool
    others: dict[Path, h5py.File]
    """Those that are open; of each file that leads to them."""


_FOLLOWED: ContextVar[_Followed | None] = ContextVar("followed", default=None)


@contextmanager
def following(folder: str | None, checked: bool = False) -> Iterator[dict[Path, tuple[int, ...]]]:
    """Let files opened in the block lead to others below a folder; yield these, as they were before.

    folder: None for that of the file itself. checked: whether all others were found before.
    """
    root = Path(folder).resolve() if folder else None
    with _set(_Followed(root, states := {}, checked, {})):
        yield states


@contextmanager
def beside(path: Path) -> Iterator[None]:
    """Let a file that is opened in the block lead to others below its folder, if it may lead to any."""
    followed, others = _FOLLOWED.get(), dict[Path, h5py.File]()
    if followed is None:
        yield
        return
    folder = followed.folder or path.resolve().parent
    with _set(followed._replace(folder=folder, others=others)):
        try:
            yield
        finally:
            for other in others.values():
                other.close()


@contextmanager
def _set(followed: _Followed) -> Iterator[None]:
    token = _FOLLOWED.set(followed)
    try:
        yield
    finally:
        _FOLLOWED.reset(token)


def followed_now() -> _Followed | None:
    """Return below which folder other files are read, None if none are."""
    return _FOLLOWED.get()


def opened(path: Path, opens: Callable[[Path], h5py.File]) -> h5py.File:
    """Return another file, which stays open as long as the one that leads to it, or until many were."""
    followed = _FOLLOWED.get()
    assert followed is not None
    if path not in followed.others:
        while len(followed.others) >= MOST_OPEN:
            # HDF5 closes it when nothing of it is used
            followed.others.pop(next(iter(followed.others)))
        followed.others[path] = opens(path)
    return followed.others[path]


def located(name: str, referrer: Path) -> Path | None:
    """Return the file that another one refers to by a name, None unless it lies below the folder.

    An absolute name of a file that was moved is looked for by as many of its last folders as lead to one.
    """
    followed = _FOLLOWED.get()
    assert followed is not None
    assert followed.folder is not None
    ends = [name]
    if Path(name).is_absolute():
        parts = Path(name).parts
        ends = [str(Path(*parts[first:])) for first in range(1, len(parts))]
    for place in [referrer.parent / name, *(followed.folder / end for end in ends)]:
        path = place.resolve()
        if path.is_relative_to(followed.folder) and is_file(path):
            followed.states.setdefault(path, state(path.stat()))
            return path
    return None


class Piece(NamedTuple):
    """What a virtual dataset takes from one source."""

    file: str
    """. for the file of the virtual dataset."""
    dataset: str
    into: h5py.h5s.SpaceID
    out_of: h5py.h5s.SpaceID


def pieces_of(dataset: h5py.Dataset) -> list[Piece] | None:
    """Return what a virtual dataset is made of; None where its sources are named by a pattern or may grow."""
    properties = dataset.id.get_create_plist()
    pieces = [
        Piece(
            properties.get_virtual_filename(n),
            properties.get_virtual_dsetname(n),
            properties.get_virtual_vspace(n),
            properties.get_virtual_srcspace(n),
        )
        for n in range(properties.get_virtual_count())
    ]
    names = [name.replace("%%", "") for piece in pieces for name in piece[:2]]
    if any("%b" in name for name in names):
        return None
    if not all(_is_of_boxes(space) for piece in pieces for space in piece[2:]):
        return None
    return [
        piece._replace(file=piece.file.replace("%%", "%"), dataset=piece.dataset.replace("%%", "%"))
        for piece in pieces
    ]


def _is_of_boxes(space: h5py.h5s.SpaceID) -> bool:
    if space.get_select_type() == h5py.h5s.SEL_ALL:
        return True
    if space.get_select_type() != h5py.h5s.SEL_HYPERSLABS or not space.is_regular_hyperslab():
        return False
    return max(max(numbers) for numbers in space.get_regular_hyperslab()) < UNLIMITED


def _selected(space: h5py.h5s.SpaceID, shape: tuple[int, ...]) -> list[np.ndarray]:
    """Return the indices along each axis that a selection has in a dataset of that shape."""
    if space.get_select_type() == h5py.h5s.SEL_ALL:
        return [np.arange(n) for n in shape]
    by_axis = zip(*space.get_regular_hyperslab(), shape, strict=True)
    indices = []
    for start, stride, count, block, length in by_axis:
        if start + (count - 1) * stride + block > length:
            raise ValueError(f"its shape {shape} is smaller than what is taken from it")
        indices.append((start + stride * np.arange(count)[:, None] + np.arange(block)).ravel())
    return indices


Reader = Callable[[Index], np.ndarray]


def assembled(
    dataset: h5py.Dataset, index: Any, source: Callable[[Piece], tuple[tuple[int, ...], Reader]]
) -> np.ndarray:
    """Return a part of a virtual dataset; source: the shape of the source of a piece, and its reader.

    index: an integer or slice for each of the first axes. What no source gives has the fill value.
    """
    taken = index if isinstance(index, tuple) else (index,)
    taken += (slice(None),) * (len(dataset.shape) - len(taken))
    wanted = [
        range(n)[which] if isinstance(which, slice) else range(n)[which : which + 1 or None]
        for which, n in zip(taken, dataset.shape, strict=True)
    ]
    result = np.full([len(indices) for indices in wanted], dataset.fillvalue, dataset.dtype)
    for piece in pieces_of(dataset) or ():
        into = _selected(piece.into, dataset.shape)
        uses = [
            (indices >= want.start)
            & (indices < want.stop)
            & ((indices - want.start) % want.step == 0)
            for indices, want in zip(into, wanted, strict=True)
        ]
        if all(use.any() for use in uses):
            shape, read = source(piece)
            places = [
                (indices[use] - want.start) // want.step
                for indices, use, want in zip(into, uses, wanted, strict=True)
            ]
            try:
                result[np.ix_(*places)] = _taken(_selected(piece.out_of, shape), uses, read)
            except ValueError as error:
                raise ValueError(f"{piece.dataset} of {piece.file}: {error}") from error
    return result[tuple(slice(None) if isinstance(which, slice) else 0 for which in taken)]


def _taken(out_of: list[np.ndarray], uses: list[np.ndarray], read: Reader) -> np.ndarray:
    """Return what is used of a selection in a source; axes of length 1 may be left out in either."""
    axes, used_axes = ([n for n, v in enumerate(a) if len(v) > 1] for a in (out_of, uses))
    alike = [len(out_of[n]) for n in axes] == [len(uses[n]) for n in used_axes]
    if prod(map(len, out_of)) != prod(map(len, uses)):
        raise ValueError("it has another number of values than its place takes")
    if alike:  # only what is used is read
        for axis, used_axis in zip(axes, used_axes, strict=True):
            out_of[axis] = out_of[axis][uses[used_axis]]
    box = tuple(slice(int(v[0]), int(v[-1]) + 1) for v in out_of)
    values = read(box)[np.ix_(*(v - v[0] for v in out_of))]
    if alike:
        return values.reshape([np.count_nonzero(use) for use in uses])
    return values.reshape([len(use) for use in uses])[np.ix_(*uses)]
