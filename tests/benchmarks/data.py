"""Stores to measure on, made once per run: the `ageing` scenario at any size."""

from pathlib import Path

import numpy as np

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
