"""Any xarray dataset as points, cut into chunks that tasks read."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any
from uuid import uuid4

import numpy as np
import xarray
from jaxtyping import Float
from zict import LRU

from homodyne_dask.apps.curve_fit.residual_kernel import POINTS_PER_STEP
from homodyne_dask.errors import SelectionError, StoreError, require_type, why_unreadable
from homodyne_dask.sweep.blocks import byte_cache, keep
from homodyne_dask.sweep.layout import Layout

MAX_POINTS_PER_CHUNK = 2**20
"""Most points of a chunk; larger chunks of a store are cut."""
COLUMNS: LRU[Hashable, np.ndarray] = byte_cache(lambda columns: columns.nbytes)
"""Chunks that this process keeps."""


@dataclass(frozen=True)
class PointsLayout(Layout):
    """How points are cut into tasks: a tile is a chunk, its side the number of padded points, and a pair is
    a point; a Gram is of all points, as of one bin.
    """

    columns: int = 1

    @property
    def block_bytes(self) -> int:
        """Memory of a chunk."""
        return 8 * self.columns * self.side

    def working_bytes(self, parameters: int, threads: int = 1) -> int:
        """Return the memory of tasks beside data that stay in memory; derivatives are of a few points."""
        return threads * 2 * self.block_bytes


@dataclass(frozen=True, eq=False)
class Points:
    """Some variables of a dataset, broadcast to all their dimensions and cut into chunks."""

    dataset: xarray.Dataset
    """These variables alone; lazy ones stay lazy."""
    variables: tuple[str, ...]
    chunk: dict[Hashable, int]
    capacity: int
    """Points of a padded chunk: all have one shape, so that the kernel is compiled once."""
    token: str = field(default_factory=lambda: uuid4().hex)
    """The key of these points in the caches of workers: another fit may be of changed data."""

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of chunks along each dimension; they are summed in C order."""
        return tuple(-(-n // self.chunk[dim]) for dim, n in self.dataset.sizes.items())

    @property
    def layout(self) -> PointsLayout:
        """How the points are cut into tasks."""
        tiles = tuple((number, -1) for number in range(math.prod(self.counts)))
        points, columns = math.prod(self.dataset.sizes.values()), len(self.variables)
        return PointsLayout(
            self.capacity, 1, ((0,),), tiles, points, datum="points", columns=columns
        )

    def columns(self, number: int, budget: int = 0) -> Float[np.ndarray, "variable capacity"]:
        """Return the variables of a chunk, by its number, as columns; NaN beyond its end.

        budget: most bytes of columns that this process keeps. Raises StoreError where they cannot be read,
        SelectionError where a value is infinite.
        """
        key = self.token, number
        if (columns := COLUMNS.get(key)) is None:
            columns = self._read(number)
            if budget:
                keep(COLUMNS, key, columns, budget)
        return columns

    def _read(self, number: int) -> Float[np.ndarray, "variable capacity"]:
        place = zip(self.dataset.sizes, np.unravel_index(number, self.counts), strict=True)
        part = self.dataset.isel(
            {dim: slice(at * self.chunk[dim], (at + 1) * self.chunk[dim]) for dim, at in place}
        )
        filled = np.full((len(self.variables), self.capacity), np.nan)
        try:
            part = part.compute(scheduler="synchronous")
            each = xarray.broadcast(*(part[name] for name in self.variables))
            for row, one in zip(filled, each, strict=True):
                values = one.transpose(*self.dataset.sizes).values.ravel()
                row[: len(values)] = values
        except (OSError, RuntimeError, ValueError) as e:
            what = f"chunk {number} of {', '.join(self.variables)}"
            raise StoreError(f"{what} cannot be read: {e}") from e
        infinite = np.isinf(filled).any(axis=1)
        if infinite.any():
            raise SelectionError(
                f"{self.variables[int(infinite.argmax())]!r} is infinite at some points: correct these, or "
                f"set them to NaN to leave them out"
            )
        return filled


def points_of(data: Any, variables: Sequence[str]) -> Points:
    """Return the points of a dataset, or of the path of a Zarr store.

    Raises SelectionError for variables that are not there or not numbers, StoreError for a path
    that cannot be opened.
    """
    dataset = data
    if not isinstance(data, xarray.Dataset):
        require_type("data", data, str | PathLike, "an xarray.Dataset, or the path of a Zarr store")
        try:
            dataset = xarray.open_zarr(data, chunks=None, consolidated=False)
        except (OSError, ValueError) as e:
            raise StoreError(f"{data} is not a Zarr store: {why_unreadable(e)}") from e
    for name in variables:
        if name not in dataset.variables:
            there = ", ".join(map(str, dataset.variables))
            raise SelectionError(f"the dataset has no variable {name!r}; choose from {there}")
        if dataset[name].dtype.kind not in "fiub":
            raise SelectionError(
                f"variable {name!r} has dtype {dataset[name].dtype}, not numbers: convert it first"
            )
    chosen = dataset.reset_coords()[list(dict.fromkeys(variables))]
    chunk = _chunk(chosen)
    largest = math.prod(chunk.values())
    if not largest:
        raise SelectionError(f"the variables {', '.join(variables)} contain no points")
    step = min(POINTS_PER_STEP, 2 ** math.ceil(math.log2(max(largest, 2))))
    return Points(chosen, tuple(variables), chunk, -(-largest // step) * step)


def _chunk(dataset: xarray.Dataset) -> dict[Hashable, int]:
    """Return the smallest chunks of any variable, cut further where they are too large."""
    chunk: dict[Hashable, int] = dict(dataset.sizes)
    for name in dataset.variables:
        variable = dataset[name]
        stored = variable.encoding.get("preferred_chunks", {})
        own = {dim: parts[0] for dim, parts in variable.chunksizes.items()} or stored
        for dim, n in own.items():
            if dim in chunk:
                chunk[dim] = min(chunk[dim], int(n))
    while math.prod(chunk.values()) > MAX_POINTS_PER_CHUNK:
        longest = max(chunk, key=lambda dim: chunk[dim])
        chunk[longest] = -(-chunk[longest] // 2)
    return chunk
