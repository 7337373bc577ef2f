"""Bins of few frames share tasks, shards and records; stores of the version before are read."""

import json
from pathlib import Path

import numpy as np
import pytest

import homodyne_dask as hd
import ingest
from homodyne_dask.errors import StoreError
from homodyne_dask.store import schema
from homodyne_dask.store.arrays import SMALL_ARRAYS, array_metadata, read_array
from homodyne_dask.store.chunks import encode_chunk
from homodyne_dask.store.scan import Chunk
from tests.ingest_files import attributes, interrupt_ingest, noisy, reseal

CHUNK_BYTES = 4 * 64**2


@pytest.fixture
def source(tmp_path):
    c2 = np.stack([noisy(60, k) for k in (0, 1, 2, 3, 1)])  # the last is a copy, and is left out
    np.savez(tmp_path / "A.npz", c2=c2, q=[0.01, 0.012, 0.01, 0.02, 0.015], phi=0.0, dt=0.1)
    return tmp_path / "A.npz"


@pytest.fixture
def plain(source):
    return hd.open_dataset(ingest.ingest(source, source.with_name("plain.zarr")).store)


@pytest.fixture(autouse=True)
def two_bins_in_a_shard(monkeypatch):
    monkeypatch.setattr(schema, "SHARED_SHARD_BYTES", 2 * CHUNK_BYTES)


def many(monkeypatch):
    monkeypatch.setattr(schema, "MANY_BINS", 5)


def check_same(scan, plain):
    assert scan.manifest.checksums[1].tolist() == plain.manifest.checksums[1].tolist()
    assert scan.manifest.arrays == plain.manifest.arrays
    assert scan.dataset["c2"].equals(plain.dataset["c2"])  # as Zarr reads them by its own index
    into = np.empty((64, 64), np.float32)
    for b in scan.bins:
        scan.read_chunk(Chunk(1, b, 0, 0), into)
        assert np.array_equal(into[:60, :60], plain.dataset["c2"][b].values, equal_nan=True)


def test_many_small_bins_share_files_that_hold_the_chunks_of_single_files(
    source, plain, monkeypatch
):
    many(monkeypatch)
    store = ingest.ingest(source, source.with_name("shared.zarr")).store
    files = [file for file in (store / "c2/c").rglob("*") if file.is_file()]
    assert len(files) == 3
    check_same(hd.open_dataset(store), plain)
    assert hd.open_dataset(store).bins == (0, 1, 2, 3)


def test_an_interrupted_ingest_of_small_bins_goes_on_behind_the_last_whole_shard(
    source, plain, monkeypatch
):
    many(monkeypatch)
    store, done = source.with_name("shared.zarr"), []
    interrupt_ingest(source, store, bins=2)
    ingest.ingest(source, store, progress=lambda number, _: done.append(number))
    assert done[0] > 2
    assert done[-1] == 5
    check_same(hd.open_dataset(store), plain)


def test_a_store_of_single_files_counts_as_whole_unless_shards_are_asked_for(
    source, plain, monkeypatch
):
    many(monkeypatch)
    assert ingest.ingest(source, plain.path).skipped
    with pytest.raises(StoreError, match="the same file with other options"):
        ingest.ingest(source, plain.path, sharded=True)


def as_version_4(store: Path) -> None:
    """Rewrite a store as the version before had it: with a chunk of each bin in averages."""
    for name in ("cuts/c2", "cuts/count", "cuts/frames"):
        values = read_array(store, name)
        for n, of_bin in enumerate(values):
            chunk = store.joinpath(name, "c", str(n), *["0"] * (of_bin.ndim))
            chunk.parent.mkdir(parents=True, exist_ok=True)
            chunk.write_bytes(encode_chunk(of_bin).content)
        metadata = array_metadata(SMALL_ARRAYS[name], values.shape, (1, *values.shape[1:]))
        (store / name / "zarr.json").write_text(json.dumps(metadata))
    root = json.loads((store / "zarr.json").read_text())
    root["attributes"]["schema_version"] = 4
    (store / "zarr.json").write_text(json.dumps(root))
    reseal(store)


def test_a_store_of_the_version_before_is_read_and_not_written_again(source, plain):
    cuts = plain.cuts()
    as_version_4(Path(plain.path))
    scan = hd.open_dataset(plain.path)
    assert attributes(Path(plain.path))["schema_version"] == 4
    assert scan.cuts().c2.tobytes() == cuts.c2.tobytes()
    assert scan.dataset["c2"].equals(plain.dataset["c2"])
    assert ingest.ingest(source, plain.path).skipped


def test_no_two_bins_share_a_shard_in_the_version_before():
    assert schema.shard_shape(60, 1) == (2, 1)
    assert schema.shard_shape(60, 1, version=4) == (1, 1)
    assert schema.shard_shape(600, 1) == (1, 2)
