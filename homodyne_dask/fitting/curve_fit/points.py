"""Any xarray dataset as a source of points: cut into chunks that tasks read on their own."""

import hashlib
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import dask.config
import numpy as np
import xarray
from jaxtyping import Float

from homodyne_dask.errors import SelectionError, StoreError
from homodyne_dask.sweep.blocks import Kept
from homodyne_dask.sweep.plan import IN_PROCESS_PAIRS, size, size_in_words

MOST = 2**20
"""Points of a chunk; larger ones of a store are cut."""
SMALLEST = 2**12
"""Points worked at once in a chunk, and what chunks are filled up to a multiple of."""


@dataclass(frozen=True)
class Points:
    """Some variables of a dataset over all their dimensions, and how they are cut into chunks."""

    dataset: xarray.Dataset
    """Nothing but these variables, as lazy as it was given."""
    variables: tuple[str, ...]
    shape: dict[Hashable, int]
    chunk: dict[Hashable, int]

    @property
    def number(self) -> int:
        """Points, known or not."""
        return math.prod(self.shape.values())

    @property
    def room(self) -> int:
        """Points a chunk is filled up to: one shape, compiled once."""
        largest = math.prod(self.chunk.values())
        return -(-largest // self.step) * self.step

    @property
    def step(self) -> int:
        """Points worked at once."""
        largest = math.prod(self.chunk.values())
        return min(SMALLEST, 2 ** math.ceil(math.log2(max(largest, 2))))

    @cached_property
    def places(self) -> tuple[tuple[int, ...], ...]:
        """Where every chunk lies along each dimension, in the order they are summed."""
        counts = [-(-n // self.chunk[dim]) for dim, n in self.shape.items()]
        return tuple(product(*map(range, counts)))

    @property
    def in_memory(self) -> bool:
        """Whether all of it lies in this process's memory, so that no worker can read it."""
        return all(self.dataset[name].variable._in_memory for name in self.variables)

    def columns(self, number: int) -> Float[np.ndarray, "variable room"]:
        """Return the variables of a chunk, by its number, as columns; NaN beyond its end.

        Raises StoreError where they cannot be read.
        """
        part = self.dataset.isel(
            {
                dim: slice(at * self.chunk[dim], (at + 1) * self.chunk[dim])
                for dim, at in zip(self.shape, self.places[number], strict=True)
            }
        )
        filled = np.full((len(self.variables), self.room), np.nan)
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
        return filled

    @cached_property
    def digest(self) -> str:
        """A hash of sizes, of where the data lie and of the first and the last chunk."""
        about = (self.variables, self.shape, self.chunk, self.dataset.encoding.get("source", ""))
        found = hashlib.sha256(repr(about).encode())
        for number in sorted({0, len(self.places) - 1}):
            found.update(self.columns(number).tobytes())
        return found.hexdigest()

    def __hash__(self) -> int:
        """Points are kept by what they are, not by which object holds them."""
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        """Points of one digest are one."""
        return isinstance(other, Points) and self.digest == other.digest


COLUMNS = Kept[np.ndarray](lambda columns: columns.nbytes)


def columns(points: Points, number: int, budget: int) -> Float[np.ndarray, "v room"]:
    """Return a chunk from this process's memory, or from the store; `budget` bytes are kept."""
    if budget == 0:
        return points.columns(number)
    key = points.digest, number
    found = COLUMNS.get(key)
    if found is None:
        found = points.columns(number)
        COLUMNS.put(key, found, budget)
    return found


@dataclass(frozen=True)
class PointsLayout:
    """How points are cut: what `planning.Layout` is for a scan."""

    tiles: tuple[tuple[int, int], ...]
    """The number of each chunk, and nothing."""
    pairs: int
    """Points, before unknown ones are left out."""
    block_bytes: int
    in_memory: bool
    groups: tuple[tuple[int, ...], ...] = ((0,),)
    factor: int = 1

    @property
    def blocks(self) -> int:
        """Chunks of a pass."""
        return len(self.tiles)

    @property
    def resident_bytes(self) -> int:
        """Memory of all chunks."""
        return self.blocks * self.block_bytes

    @property
    def bytes_per_pass(self) -> int:
        """Bytes read in a pass."""
        return self.resident_bytes

    @property
    def why_here(self) -> str:
        """Why a fit that runs in the caller's process does."""
        memory = "the data lie in its memory"
        return memory if self.in_memory else f"fewer than {IN_PROCESS_PAIRS:,} points"

    @property
    def why_workers(self) -> str:
        """Why workers are started for a fit."""
        return f"{IN_PROCESS_PAIRS:,} points or more, in a store"

    def rows(self) -> list[tuple[str, str]]:
        """Return what a plan says of the data."""
        return [
            ("points", f"{self.pairs:,}"),
            ("size", size_in_words(self.pairs)),
            ("chunks", f"{self.blocks} of up to {size(self.block_bytes)}"),
        ]


def points_layout(points: Points) -> PointsLayout:
    """Return how points are cut into tasks."""
    block_bytes = 8 * len(points.variables) * points.room
    tiles = tuple((number, -1) for number in range(len(points.places)))
    return PointsLayout(tiles, points.number, block_bytes, points.in_memory)


def points_of(data: Any, variables: Sequence[str]) -> Points:
    """Return the points of a dataset, a data array, or the path of a Zarr store.

    Raises SelectionError for variables that are not there or not numbers, StoreError for a path
    that cannot be opened.
    """
    dataset = _opened(data)
    for name in variables:
        if name not in dataset.variables:
            there = ", ".join(map(str, dataset.variables))
            raise SelectionError(f"the dataset has no variable {name!r}; there is: {there}")
        if dataset[name].dtype.kind not in "fiub":
            raise SelectionError(
                f"variable {name!r} holds {dataset[name].dtype}, not numbers: convert it first"
            )
    chosen = dataset.reset_coords()[list(dict.fromkeys(variables))]
    sizes = dict(chosen.sizes)
    if not math.prod(sizes.values()):
        raise SelectionError(f"the variables {', '.join(variables)} hold no point")
    return Points(chosen, tuple(variables), sizes, _chunk(chosen, sizes))


def _opened(data: Any) -> xarray.Dataset:
    if isinstance(data, xarray.Dataset):
        return data
    if isinstance(data, xarray.DataArray):
        return data.to_dataset(name=data.name or "y")
    if not Path(data).exists():
        raise StoreError(f"{data} does not exist: give a dataset, or the path of a Zarr store")
    return xarray.open_zarr(data, chunks=None, consolidated=False)


def _chunk(dataset: xarray.Dataset, sizes: dict[Hashable, int]) -> dict[Hashable, int]:
    """Return the chunks of the variable that has most of them, cut where they are too large."""
    chunk = dict(sizes)
    for name in dataset.variables:
        variable = dataset[name]
        stored = dict(variable.encoding.get("preferred_chunks", {}))
        own = {dim: parts[0] for dim, parts in variable.chunksizes.items()} or stored
        for dim, n in own.items():
            if dim in chunk:
                chunk[dim] = min(chunk[dim], int(n))
    while math.prod(chunk.values()) > MOST:
        longest = max(chunk, key=lambda dim: chunk[dim])
        chunk[longest] = -(-chunk[longest] // 2)
    return chunk
