"""Unreadable chunks of a store, found before a fit that may exclude them.

So the excluded chunks depend on the store alone. Some fits never read a chunk in which f has decayed to
zero; if it were excluded when it is read, such a chunk would count at one theta and not at another.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from homodyne_dask.errors import StoreError
from homodyne_dask.store.scan import Chunk, Scan, Selection, open_selection
from homodyne_dask.sweep.layout import Layout

if TYPE_CHECKING:
    from distributed import Client

CHUNKS_PER_TASK = 64
"""Chunks that one task reads."""


class _Share(NamedTuple):
    selection: Selection
    side: int
    chunks: tuple[Chunk, ...]


def without_unreadable(scan: Scan, layouts: Sequence[Layout], client: "Client | None") -> Scan:
    """Return the scan with every chunk excluded that cannot be read at any of its resolutions.

    Raises StoreError where nothing is left of the full resolution.
    """
    chunks = [
        Chunk(layout.factor, scan.bins[member], *tile)
        for layout in layouts
        for group in layout.groups
        for member in group
        for tile in layout.tiles
    ]
    side = layouts[0].side
    shares = [
        _Share(scan.selection, side, tuple(chunks[n : n + CHUNKS_PER_TASK]))
        for n in range(0, len(chunks), CHUNKS_PER_TASK)
    ]
    if client is None:
        unreadable: Any = [unreadable_chunks(share) for share in shares]
    else:
        from homodyne_dask.cluster.local import cluster_errors

        with cluster_errors(client):
            unreadable = client.gather(client.map(unreadable_chunks, shares, pure=False))
    excluded = tuple(sorted(chunk for part in unreadable for chunk in part))
    if set(excluded) >= {chunk for chunk in chunks if chunk.factor == 1}:
        raise StoreError(f"{scan.path}: no chunk of c2 can be read; ingest the source again")
    return replace(scan, excluded=excluded)


def unreadable_chunks(share: _Share) -> list[Chunk]:
    """Return the chunks of a share that cannot be read; this is the task."""
    scan = open_selection(share.selection)
    into, unreadable = np.empty((share.side, share.side), np.float32), []
    for chunk in share.chunks:
        try:
            scan.read_chunk(chunk, into)
        except StoreError:
            unreadable.append(chunk)
    return unreadable


def excluded_sentence(scan: Scan) -> str:
    """Return a sentence on the chunks excluded from the full resolution, '' for none."""
    chunks = [chunk for chunk in scan.excluded if chunk.factor == 1]
    if not chunks:
        return ""
    pairs = sum(int(scan.manifest.pairs[chunk.bin, chunk.i, chunk.j]) for chunk in chunks)
    label = scan.all_bins["label"]
    names = [f"({chunk.i}, {chunk.j}) of bin {label[chunk.bin]}" for chunk in chunks]
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return (
        f"{len(chunks)} damaged chunks with {pairs:,} pairs are excluded, as on_bad_tile asks: "
        + ", ".join(names[:6])
        + more
    )
