"""Files that are damaged, foreign or missing are refused in one sentence."""

import subprocess
import sys

import h5py
import numpy as np
import pytest

import ingest
import ingest.readers.detect as detect
from homodyne_dask.errors import SourceError
from tests.ingest_files import attributes, edited, noisy, simulated

QMAP = "/xpcs/qmap/"
TWOTIME = "/xpcs/twotime/"
DETECTOR = "/entry/instrument/detector_1/frame_time"


@pytest.fixture(autouse=True)
def opened_here():
    """Here files are opened in a process of their own first, as they always are by users."""


WRONG = {
    "detector time zero": {DETECTOR: 0.0},
    "detector time NaN": {DETECTOR: np.nan},
    "detector time missing": {DETECTOR: None},
    "detector time text": {DETECTOR: "fast"},
    "two detector times": {DETECTOR: [0.1, 0.2]},
    "stride a fraction": {TWOTIME + "config/stride_frame": 1.5},
    "matrix missing": {TWOTIME + "correlation_map/c2_00002": None},
    "matrix too many": {TWOTIME + "correlation_map/c2_00004": noisy(20)},
    "matrix of another size": {TWOTIME + "correlation_map/c2_00002": noisy(21)},
    "matrix not square": {TWOTIME + "correlation_map/c2_00002": np.ones((20, 19))},
    "matrix of text": {TWOTIME + "correlation_map/c2_00002": np.full((20, 20), b"x")},
    "matrix asymmetric": {TWOTIME + "correlation_map/c2_00002": noisy(20) + np.tri(20, k=-1)},
    "no matrices": {TWOTIME + "correlation_map": None},
    "processed bins missing": {TWOTIME + "processed_bins": None},
    "processed bins twice": {TWOTIME + "processed_bins": [1, 2, 2]},
    "processed bins zero": {TWOTIME + "processed_bins": [0, 1, 2]},
    "bin beyond the map": {TWOTIME + "processed_bins": [4, 5, 6000]},
    "mapping short": {QMAP + "dynamic_index_mapping": [1, 2, 3]},
    "mapping long": {QMAP + "dynamic_index_mapping": np.arange(6)},
    "mapping beyond the grid": {QMAP + "dynamic_index_mapping": [1, 2, 3, 4, 99]},
    "angles short": {QMAP + "dynamic_v_list_dim1": [0.0, 1.0]},
    "unit unknown": {QMAP + "map_units": ["pixel", "deg"]},
    "roi map negative": {QMAP + "dynamic_roi_map": -np.ones((4, 4))},
}


@pytest.mark.long
@pytest.mark.parametrize("word", WRONG)
def test_a_damaged_aps_u_file_is_refused_naming_the_thing(tmp_path, word):
    path = edited(simulated(tmp_path / "A.hdf", n=20), **WRONG[word])
    with pytest.raises(SourceError, match=r"A\.hdf|/xpcs/") as raised:
        ingest.ingest(path)
    assert "\n" not in str(raised.value)
    if (tmp_path / "A_c2.zarr").exists():
        assert attributes(tmp_path / "A_c2.zarr")["complete"] is False


@pytest.mark.long
def test_a_truncated_file_is_refused_wherever_it_ends(tmp_path):
    whole = simulated(tmp_path / "A.hdf", n=60).read_bytes()
    for share in (0.999, 0.9, 0.5, 0.01, 0.0):
        path = tmp_path / "B.hdf"
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(SourceError, match=r"B\.hdf"):
            ingest.ingest(path)


def test_of_g2_without_delays_the_missing_dataset_is_named(tmp_path):
    with h5py.File(tmp_path / "A.hdf", "w") as file:
        file["/xpcs/multitau/normalized_g2"] = np.ones((4, 3))
    with pytest.raises(SourceError, match=r"has no /xpcs/multitau/delay_list"):
        ingest.ingest(tmp_path / "A.hdf")


def test_of_many_files_the_one_that_crashes_hdf5_is_named(tmp_path, monkeypatch):
    files = [simulated(tmp_path / f"R{n}.hdf", n=20) for n in range(3)]
    crash = (
        "import os, sys; any('R1.hdf' in word for word in sys.argv) and os.kill(os.getpid(), 11)"
    )
    monkeypatch.setattr(
        detect, "python_command", lambda *words: [sys.executable, "-c", crash, *words[2:]]
    )
    with pytest.raises(SourceError, match=r"R1\.hdf cannot be read: HDF5 crashed .*signal 11"):
        ingest.ingest(files, tmp_path / "all.zarr")


def test_all_files_are_opened_as_a_test_by_one_process(tmp_path, monkeypatch):
    files, begun = [simulated(tmp_path / f"R{n}.hdf", n=20, seed=n) for n in range(3)], []
    run = subprocess.run
    monkeypatch.setattr(
        detect.subprocess, "run", lambda *args, **how: begun.append(args) or run(*args, **how)
    )
    ingest.ingest(files, tmp_path / "all.zarr")
    assert len(begun) == 1
