"""Stores for benchmarks, written once per run: the `ageing` scenario at any size."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import homodyne_dask as hd
from homodyne_dask.store import schema
from ingest.store_writer import write_array
from tests.ingest_files import manifest, reseal


def source(folder: Path, frames: int, angles: int = 23) -> Path:
    """A result file of simulated counts, as boost_corr writes it."""
    path = folder / f"ageing_{angles}x{frames}_results.hdf"
    if not path.exists():
        hd.simulate(path, "ageing", angles=angles, frames=frames)
    return path


def store(folder: Path, frames: int, angles: int = 23) -> Path:
    """The same, ingested."""
    path = folder / f"ageing_{angles}x{frames}_c2.zarr"
    if not path.exists():
        hd.ingest(source(folder, frames, angles), path)
    return path


def widened(folder: Path, frames: int, times: int, angles: int = 23) -> Path:
    """A store with the bins of `store` repeated under new labels, by links to the same files."""
    once = store(folder, frames, angles)
    path = folder / f"ageing_{angles}x{frames}x{times}_c2.zarr"
    if path.exists():
        return path
    shutil.copytree(once, path, ignore=shutil.ignore_patterns("c"))
    old: Any = zarr.open_group(once, mode="r")
    new: Any = zarr.open_group(path, mode="r+")
    for name, array in old.members(max_depth=None):
        if isinstance(array, zarr.Group):
            continue
        by_bin = array.metadata.dimension_names[0] == "bin"
        if by_bin and array.dtype == np.float32:
            new[name].resize((times * angles, *array.shape[1:]))
            (path / name / "c").mkdir()
            for b in range(times * angles):
                (path / name / "c" / str(b)).symlink_to(once / name / "c" / str(b % angles))
            continue
        values = np.concatenate([array[...]] * times) if by_bin else array[...]
        if name == "label":
            values = np.arange(1, times * angles + 1)
        if array.chunks == array.shape:
            write_array(path, name, values)
        else:
            new[name].resize(values.shape)
            new[name].with_config({"write_empty_chunks": True})[...] = values
    listed = json.loads(manifest(once))
    listed["pairs"] *= times
    listed["chunks"] = {name: bins * times for name, bins in listed["chunks"].items()}
    (path / schema.MANIFEST).write_text(json.dumps(listed))
    reseal(path)
    return path
