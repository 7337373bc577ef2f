"""Stores for benchmarks, written once per run: the `ageing` scenario at any size."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import homodyne_dask as hd
import ingest


def source(folder: Path, frames: int, angles: int = 23) -> Path:
    """A result file of simulated counts, as boost_corr writes it."""
    path = folder / f"ageing_{angles}x{frames}_results.hdf"
    if path.exists():
        return path
    scenario = ingest.SCENARIOS["ageing"]
    phi = ingest.angles(angles)
    truth = scenario.truth(phi, "physical")
    time = scenario.frame_time * np.arange(frames)

    def c2_of_bin(k: int) -> np.ndarray:
        return hd.predict(
            hd.LAMINAR_FLOW, scenario.parameters, time, q=scenario.q, phi=float(phi[k]),
            gap=scenario.gap, contrast=truth["contrast"][k], offset=truth["offset"][k],
        )[0]  # fmt: skip

    return ingest.simulate(
        path, c2_of_bin, layout="aps-u", q=scenario.q, phi=phi, contrast=truth["contrast"],
        n_frames=frames, frame_time=scenario.frame_time, truth=truth,
    )  # fmt: skip


def store(folder: Path, frames: int, angles: int = 23) -> Path:
    """The same, ingested."""
    path = folder / f"ageing_{angles}x{frames}_c2.zarr"
    if not path.exists():
        ingest.ingest(source(folder, frames, angles), path)
    return path


def widened(folder: Path, frames: int, times: int, angles: int = 23) -> Path:
    """A store with the bins of `store` repeated under new labels, by links to the same files."""
    once = store(folder, frames, angles)
    path = folder / f"ageing_{angles}x{frames}x{times}_c2.zarr"
    if path.exists():
        return path
    shutil.copytree(once, path, ignore=lambda where, names: {"c"} & set(names))
    old: Any = zarr.open_group(once, mode="r")
    new: Any = zarr.open_group(path, mode="r+")
    for name, array in old.members(max_depth=None):
        if isinstance(array, zarr.Group):
            continue
        bins = array.metadata.dimension_names[0] == "bin"
        if bins:
            new[name].resize((times * angles, *array.shape[1:]))
        if name.split("/")[-1] == "c2" and "cuts" not in name:
            (path / name / "c").mkdir()
            for b in range(times * angles):
                (path / name / "c" / str(b)).symlink_to(once / name / "c" / str(b % angles))
        else:
            values = array[...]
            new[name][...] = np.concatenate([values] * times) if bins else values
    new["label"][...] = np.arange(1, times * angles + 1)
    weights = np.asarray(new["sigma_row"][...]).tobytes() + np.asarray(new["frame_mask"]).tobytes()
    new["sums"].attrs["weights_sha256"] = hashlib.sha256(weights).hexdigest()
    return path
