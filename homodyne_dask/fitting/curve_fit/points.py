"""Any xarray dataset as points, cut into chunks that tasks read."""

import hashlib
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from os import PathLike
from pathlib import Path
from uuid import uuid4

import dask.config
import numpy as np
import xarray
from distributed import Client
from jaxtyping import Float
from zict import LRU

from homodyne_dask.cluster.local import cluster_errors, gathered
from homodyne_dask.errors import OptionError, SelectionError, StoreError, shown, why_unreadable
from homodyne_dask.results._xarray_internals import in_memory
from homodyne_dask.sweep.block_cache import byte_cache, keep
from homodyne_dask.sweep.layout import IN_PROCESS_PAIRS, size_in_words
from homodyne_dask.text import size

MAX_POINTS_PER_CHUNK = 2**20
"""Most points of a chunk; larger chunks of a store are cut."""
POINTS_PER_STEP = 2**12
"""Points of a chunk that are processed at once; chunks are padded to a multiple of it."""


@dataclass(frozen=True, eq=False)
class Points:
    """Some variables of a dataset, broadcast to all their dimensions and cut into chunks."""

    dataset: xarray.Dataset
    """These variables alone; lazy ones stay lazy."""
    variables: tuple[str, ...]
    shape: dict[Hashable, int]
    chunk: dict[Hashable, int]
    token: str = field(default_factory=lambda: uuid4().hex)
    """The key of these points in the caches of workers: another fit may be of changed data."""

    @property
    def number(self) -> int:
        """Number of points, known or not."""
        return math.prod(self.shape.values())

    @property
    def capacity(self) -> int:
        """Points of a padded chunk: all have one shape, so that the kernel is compiled once."""
        largest = math.prod(self.chunk.values())
        return -(-largest // self.step) * self.step

    @property
    def step(self) -> int:
        """Points that are processed at once."""
        largest = math.prod(self.chunk.values())
        return min(POINTS_PER_STEP, 2 ** math.ceil(math.log2(max(largest, 2))))

    @cached_property
    def places(self) -> tuple[tuple[int, ...], ...]:
        """The position of every chunk along each dimension, in the order in which they are summed."""
        counts = [-(-n // self.chunk[dim]) for dim, n in self.shape.items()]
        return tuple(product(*map(range, counts)))

    @property
    def in_memory(self) -> bool:
        """Whether all of it is in the memory of this process, so that workers cannot read it."""
        return all(in_memory(self.dataset, name) for name in self.variables)

    def columns(self, number: int) -> Float[np.ndarray, "variable capacity"]:
        """Return the variables of a chunk, by its number, as columns; NaN beyond its end.

        Raises StoreError where they cannot be read, SelectionError where a value is infinite.
        """
        part = self.dataset.isel(
            {
                dim: slice(at * self.chunk[dim], (at + 1) * self.chunk[dim])
                for dim, at in zip(self.shape, self.places[number], strict=True)
            }
        )
        filled = np.full((len(self.variables), self.capacity), np.nan)
        try:
            with dask.config.set(scheduler="synchronous"):
                each = xarray.broadcast(*(part[name] for name in self.variables))
                for row, one in zip(filled, each, strict=True):
                    values = one.transpose(*self.shape).values.ravel()
                    row[: len(values)] = values
        except (OSError, RuntimeError, ValueError) as e:
            raise StoreError(
                f"chunk {self.places[number]} of {', '.join(self.variables)} cannot be read: {e}"
            ) from e
        infinite = np.isinf(filled).any(axis=1)
        if infinite.any():
            raise SelectionError(
                f"{self.variables[int(infinite.argmax())]!r} is infinite at some points: correct these, or "
                f"set them to NaN to leave them out"
            )
        return filled


def digest(points: Points, client: Client | None) -> str:
    """Return a hash of the points: sizes, source and the values of every chunk.

    With a client its workers read the chunks, which takes as long as one pass over the data.
    """
    source = points.dataset.encoding.get("source", "")
    about = points.variables, points.shape, points.chunk, source
    numbers = range(len(points.places))
    if client is None:
        chunks = [_chunk_digest(points, number) for number in numbers]
    else:
        with cluster_errors(client):
            tasks = client.map(_chunk_digest, [points] * len(numbers), numbers, pure=False)
        chunks = gathered(client, tasks)
    return hashlib.sha256(repr((about, chunks)).encode()).hexdigest()


def _chunk_digest(points: Points, number: int) -> str:
    return hashlib.sha256(points.columns(number).tobytes()).hexdigest()


COLUMNS: LRU[Hashable, np.ndarray] = byte_cache(lambda columns: columns.nbytes)


def columns(points: Points, number: int, budget: int) -> Float[np.ndarray, "variable capacity"]:
    """Return a chunk from the cache of this process or from the store; `budget`: most bytes to keep."""
    if budget == 0:
        return points.columns(number)
    key = points.token, number
    found = COLUMNS.get(key)
    if found is None:
        found = points.columns(number)
        keep(COLUMNS, key, found, budget)
    return found


@dataclass(frozen=True)
class PointsLayout:
    """How points are cut into tasks; for a scan this is `sweep.plan.Layout`."""

    tiles: tuple[tuple[int, int], ...]
    """(number, -1) of each chunk."""
    pairs: int
    """Points, unknown ones included."""
    block_bytes: int
    in_memory: bool
    groups: tuple[tuple[int, ...], ...] = ((0,),)
    factor: int = 1
    cells: int = 0
    padded_bins: int = 1
    """A Gram is of all points, as of one bin."""

    @property
    def blocks(self) -> int:
        """Number of chunks."""
        return len(self.tiles)

    @property
    def resident_bytes(self) -> int:
        """Memory of all chunks."""
        return self.blocks * self.block_bytes

    @property
    def bytes_per_pass(self) -> int:
        """Bytes read in a pass."""
        return self.resident_bytes

    def working_bytes(self, parameters: int, threads: int = 1) -> int:
        """Return the memory of tasks beside data that stay in memory; derivatives are of a few points."""
        return threads * 2 * self.block_bytes

    @property
    def why_here(self) -> str:
        """Why the fit runs in this process."""
        memory = "the data are in its memory"
        return memory if self.in_memory else f"fewer than {IN_PROCESS_PAIRS:,} points"

    @property
    def why_workers(self) -> str:
        """Why workers are started for the fit."""
        return f"{IN_PROCESS_PAIRS:,} points or more, in a store"

    def rows(self) -> list[tuple[str, str]]:
        """Return the rows of a plan on the data."""
        return [
            ("points", f"{self.pairs:,}"),
            ("size", size_in_words(self.pairs)),
            ("chunks", f"{self.blocks} of up to {size(self.block_bytes)}"),
        ]


def points_layout(points: Points) -> PointsLayout:
    """Return how points are cut into tasks."""
    block_bytes = 8 * len(points.variables) * points.capacity
    tiles = tuple((number, -1) for number in range(len(points.places)))
    return PointsLayout(tiles, points.number, block_bytes, points.in_memory)


def points_of(data: object, variables: Sequence[str]) -> Points:
    """Return the points of a dataset, a data array, or the path of a Zarr store.

    Raises SelectionError for variables that are not there or not numbers, StoreError for a path
    that cannot be opened.
    """
    dataset = _as_dataset(data)
    for name in variables:
        if name not in dataset.variables:
            there = ", ".join(map(str, dataset.variables))
            raise SelectionError(f"the dataset has no variable {name!r}; choose from {there}")
        if dataset[name].dtype.kind not in "fiub":
            raise SelectionError(
                f"variable {name!r} has dtype {dataset[name].dtype}, not numbers: convert it first"
            )
    chosen = dataset.reset_coords()[list(dict.fromkeys(variables))]
    sizes = dict(chosen.sizes)
    if not math.prod(sizes.values()):
        raise SelectionError(f"the variables {', '.join(variables)} contain no points")
    return Points(chosen, tuple(variables), sizes, _chunk(chosen, sizes))


def _as_dataset(data: object) -> xarray.Dataset:
    if isinstance(data, xarray.Dataset):
        return data
    if isinstance(data, xarray.DataArray):
        return data.to_dataset(name=data.name or "y")
    if not isinstance(data, str | PathLike):
        raise OptionError(
            f"data = {shown(data)} cannot be used: give an xarray.Dataset, or the path of a Zarr store"
        )
    if not Path(data).exists():
        raise StoreError(f"{data} does not exist: give a dataset, or the path of a Zarr store")
    try:
        return xarray.open_zarr(data, chunks=None, consolidated=False)
    except (OSError, ValueError) as e:
        raise StoreError(f"{data} is not a Zarr store: {why_unreadable(e)}") from e


def _chunk(dataset: xarray.Dataset, sizes: dict[Hashable, int]) -> dict[Hashable, int]:
    """Return the smallest chunks of any variable, cut further where they are too large."""
    chunk = dict(sizes)
    for name in dataset.variables:
        variable = dataset[name]
        stored = dict(variable.encoding.get("preferred_chunks", {}))
        own = {dim: parts[0] for dim, parts in variable.chunksizes.items()} or stored
        for dim, n in own.items():
            if dim in chunk:
                chunk[dim] = min(chunk[dim], int(n))
    while math.prod(chunk.values()) > MAX_POINTS_PER_CHUNK:
        longest = max(chunk, key=lambda dim: chunk[dim])
        chunk[longest] = -(-chunk[longest] // 2)
    return chunk
