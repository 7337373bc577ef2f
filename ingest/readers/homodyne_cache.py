"""The cache of homodyne and xpcsjax: an .npz with c2_exp, q, φ and times, cut to their frames."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from homodyne_dask.errors import SourceError
from ingest.readers.numpy_arrays import (
    array_names,
    as_source_error,
    check_small,
    matrix_shape,
    read_npz,
    small_arrays,
    source_of,
)
from ingest.readers.source import IngestOptions, Source

MATRICES = "c2_exp"
Q, PHI, T1, T2 = "wavevector_q_list", "phi_angles_list", "t1", "t2"
METADATA = "cache_metadata_json"


def open_homodyne(path: Path, options: IngestOptions) -> Source:
    """Return the bins of a cache written by homodyne 2.x or xpcsjax."""
    keys = array_names(path)
    missing = [key for key in (Q, PHI, T1, T2) if key not in keys]
    if missing:
        raise SourceError(
            f"{path.name} has {MATRICES} but no {', '.join(missing)}: a cache of homodyne has "
            f"{MATRICES}, {Q}, {PHI}, {T1} and {T2}"
        )
    held = small_arrays(path, [Q, PHI, T1, T2])
    known = {"q": held[Q], "phi": held[PHI], "time": _time(path, held)}
    source = source_of(
        path, "homodyne", matrix_shape(path, MATRICES), known, options, read_npz, MATRICES
    )
    first, last = (_metadata(path, keys).get(key) for key in ("start_frame", "end_frame"))
    if not (isinstance(first, int) and isinstance(last, int)):
        return source
    note = (
        f"cut by homodyne to frames {first} to {last} of its source: times count from frame {first}"
    )
    return replace(
        source,
        begin_frame=first,
        end_frame=last,
        notes=(*source.notes, note) if first > 1 else source.notes,
    )


def _time(path: Path, held: dict[str, np.ndarray]) -> Float[np.ndarray, " t"]:
    """Return the times of the frames; older caches store them as two matrices."""
    t1, t2 = held[T1], held[T2]
    if t1.ndim == t2.ndim == 2:
        t1, t2 = (t1[:, 0], t2[0]) if t1[0, 0] == t1[0, -1] else (t1[0], t2[:, 0])
    if t1.ndim != 1 or not np.array_equal(t1, t2):
        raise SourceError(f"t1 and t2 of {path.name} are not the same times: it is damaged")
    return t1


def _metadata(path: Path, keys: list[str]) -> dict[str, Any]:
    """Return the metadata of the cache, empty if it has none."""
    if METADATA not in keys:
        return {}
    with as_source_error(path):
        check_small(path, [METADATA])
        with np.load(path, allow_pickle=False) as archive:
            found = json.loads(str(archive[METADATA].item()))
    return found if isinstance(found, dict) else {}
