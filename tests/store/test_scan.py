"""Stores that are opened, and those that are refused."""

import shutil

import numpy as np
import pytest
import zarr

from homodyne_dask.errors import StoreError
from homodyne_dask.store import schema
from homodyne_dask.store.scan import open_dataset
from tests.ingest_files import reseal
from tests.synthetic import FLOW, measured, store

RINGS = [0.004, 0.004, 0.004, 0.008, 0.008]
PHI = [-60.0, 0.0, 60.0, 0.0, 45.0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("dataset")


@pytest.fixture(scope="module")
def scan(folder):
    return store(measured(FLOW, 40, PHI, q=RINGS, dt=0.5), folder)


def test_xarray_opens_the_same_store(scan):
    dataset = scan.dataset
    assert dict(dataset.sizes)["bin"] == 5
    c2 = dataset["c2"].values
    lower = np.tril(np.ones((40, 40), bool))
    assert np.isnan(c2[:, lower]).all()
    assert np.isfinite(c2[:, ~lower]).all()


def test_every_pair_is_counted_once_and_only_those_far_enough_apart(scan):
    assert scan.manifest.pairs.sum() == scan.cuts().count.sum() == 5 * 40 * 39 // 2
    for min_lag in (2, 3, 5, 9):
        assert (scan.cuts(min_lag).count[0].sum()) <= (41 - min_lag) * (40 - min_lag) // 2


@pytest.fixture
def copy(scan, tmp_path):
    target = tmp_path / "copy.zarr"
    shutil.copytree(scan.path, target)
    return target


def change(path, **attributes):
    group = zarr.open_group(str(path), mode="r+", use_consolidated=False)
    group.attrs.update(attributes)


def rewritten(name, values, sealed=True):
    def write(path):
        group = zarr.open_group(str(path), mode="r+", use_consolidated=False)
        group[name].with_config({"write_empty_chunks": True})[...] = values
        if sealed:
            reseal(path)

    return write


DAMAGED = {
    "foreign zarr": lambda path: change(path, format="other"),
    "metadata cut off": lambda path: (path / "zarr.json").write_text("{"),
    "metadata gone": lambda path: (path / "zarr.json").unlink(),
    "sigma zero": rewritten("sigma_row", 0.0),
    "sigma NaN": rewritten("sigma_row", np.nan),
    "sigma huge": rewritten("sigma_row", 1e200),
    "sigma tiny": rewritten("sigma_row", 1e-100),
    "q rewritten": rewritten("q", 0.01, sealed=False),
    "q huge": rewritten("q", 1e300),
    "time stands still": rewritten("time", 1.0),
}


@pytest.mark.parametrize("word", DAMAGED)
def test_a_store_that_is_not_whole_is_refused(copy, word):
    """Other damage: tests/faults/test_store.py."""
    open_dataset(copy)
    DAMAGED[word](copy)
    with pytest.raises(StoreError, match=r"copy\.zarr") as raised:
        open_dataset(copy)
    assert "\n" not in str(raised.value)


def test_what_is_no_store_is_refused(tmp_path):
    file = tmp_path / "result.hdf"
    file.write_bytes(b"\x89HDF")
    (tmp_path / "empty").mkdir()
    for path, says in (
        (tmp_path / "missing.zarr", "does not exist"),
        (file, "is a file, not a store"),
        (tmp_path / "empty", "not a Zarr store"),
    ):
        with pytest.raises(StoreError, match=says):
            open_dataset(path)


def test_the_same_data_with_another_sigma_time_or_q_are_another_selection(folder):
    """The digest of c2 alone took them for the same, and a fit in this process used the old ones."""
    scans = measured(FLOW, 30, (0.0, 40.0), dt=0.5)
    first = store(scans, folder, "changing").selection
    changes = {
        "sigma": [0.01, 0.03],
        "time": 2 * scans.time,
        "q": [0.005, 0.006],
        "phi": [10.0, 50.0],
    }
    for name, value in changes.items():
        assert store(scans, folder, "changing", **{name: value}).selection != first, name
    assert store(scans, folder, "changing").selection == first


def test_the_digest_is_that_of_the_whole_store(scan, copy):
    assert open_dataset(copy).digest == scan.digest
    change(copy, notes=["another"])
    reseal(copy)
    assert open_dataset(copy).digest != scan.digest


LATER = {"cuts": lambda scan: scan.cuts(), "sums": lambda scan: scan.chunk_sums}


@pytest.mark.parametrize("name", LATER)
def test_what_is_read_later_is_of_the_store_that_was_opened(folder, copy, name):
    """Another store of the same shape takes its place in between, whole and right in itself."""
    scan = open_dataset(copy)
    other = store(measured(FLOW, 40, PHI, q=RINGS, dt=0.5, seed=1), folder, "other")
    shutil.rmtree(copy)
    shutil.copytree(other.path, copy)
    with pytest.raises(
        StoreError, match=f"{name}/.* differs from what was ingested: .* was replaced"
    ):
        LATER[name](scan)


@pytest.mark.parametrize(
    ("frames", "side"), [(3, 64), (64, 64), (65, 128), (300, 320), (512, 512), (513, 512)]
)
def test_chunks_of_short_scans_are_no_larger_than_these_need(frames, side):
    assert schema.tile_side(frames) == side
