"""What an ingest writes is what the schema says, reads back as it was, and has the sums of its pairs."""

import hashlib
import json
import os

import h5py
import numpy as np
import pytest
import xarray as xr
import zarr

import ingest
from homodyne_dask.errors import SourceError
from homodyne_dask.store import schema
from homodyne_dask.store.arrays import SMALL_ARRAYS, ArraySpec, array_metadata
from homodyne_dask.store.chunks import encode_chunk
from ingest import store_writer
from ingest.store_writer import write_bytes
from tests.ingest_files import attributes, manifest, noisy, simulated


def test_ingest_then_read_is_the_identity(tmp_path):
    n, c2 = 700, [noisy(700, k) for k in range(2)]
    np.savez(tmp_path / "A.npz", c2=c2, q=0.01, phi=[0, 90], dt=0.1)
    report = ingest.ingest(tmp_path / "A.npz")
    dataset = xr.open_zarr(report.store, consolidated=False)
    expected = np.where(np.tri(n), np.float32(np.nan), np.stack(c2))
    assert dataset.c2.dims == ("bin", "t1", "t2")
    assert dataset.c2.values.tobytes() == expected.astype(np.float32).tobytes()
    assert report.n_pairs == n * (n - 1)
    np.testing.assert_allclose(dataset.time, 0.1 * np.arange(n))


def test_the_store_is_what_the_schema_says(tmp_path):
    truth = {"scenario": "creep", "gap_angstrom": 2e6, "parameters": {"D0": 1.0}}
    report = ingest.ingest(simulated(tmp_path / "A_results.hdf", n=530, bins=2, truth=truth))
    assert report.store == tmp_path / "A_c2.zarr"
    dataset = xr.open_zarr(report.store, consolidated=False)
    kinds = {name: (array.dims, array.dtype.str) for name, array in dataset.items()}
    assert kinds == {
        "c2": (("bin", "t1", "t2"), "<f4"),
        "q": (("bin",), "<f8"),
        "phi": (("bin",), "<f8"),
        "label": (("bin",), "<i8"),
        "n_pixels": (("bin",), "<i8"),
        "time": (("t",), "<f8"),
        "sigma_row": (("bin", "t"), "<f8"),
        "intensity": (("bin", "t"), "<f8"),
        "frame_mask": (("t",), "|b1"),
        "flux": (("t",), "<f8"),
        "mean_image": (("y", "x"), "<f8"),
        "beta_ingest": (("bin",), "<f8"),
    }
    absent = {"experiment", "scans", "exposures"}  # of one scan, and no table
    assert set(dataset.attrs) == set(schema.Attributes.model_fields) - absent
    assert dataset.attrs["truth"] == truth
    assert dataset.attrs["gap_angstrom"] == 2e6
    assert (dataset.attrs["format"], dataset.attrs["complete"]) == ("homodyne_dask", True)
    cuts = xr.open_zarr(report.store, group="cuts", consolidated=False)
    assert cuts["count"].sum(("age", "lag")).values.tolist() == [530 * 529 // 2] * 2
    for level, frames in ((4, 132), (16, 33)):
        mean = xr.open_zarr(report.store, group=f"level{level}", consolidated=False).c2
        assert mean.shape == (2, frames, frames)
    assert not (report.store / store_writer.WORK_FOLDER).exists()


def test_the_manifest_says_what_belongs_at_each_place(tmp_path):
    c2 = noisy(600)
    c2[5, 550] = c2[550, 5] = np.nan
    np.save(tmp_path / "A.npy", c2)
    store = ingest.ingest(tmp_path / "A.npy", q=0.01, phi=0, frame_time=1).store
    listed = json.loads(manifest(store))
    tiles = ["0/0", "0/1", "1/1"]
    assert [*map(str, sorted((store / "c2/c/0").glob("*/*")))] == [
        f"{store}/c2/c/0/{t}" for t in tiles
    ]
    assert listed["pairs"] == [[512 * 511 // 2, 512 * 88 - 1, 88 * 87 // 2]]
    for name, names in (("c2", tiles), ("level4/c2", tiles[:1]), ("level16/c2", tiles[:1])):
        ends = [(store / name / "c/0" / tile).read_bytes()[-4:] for tile in names]
        assert listed["chunks"][name] == [[int.from_bytes(end, "little") for end in ends]]
    root = zarr.open_group(store, mode="r")
    small = {name: array for name, array in root.members(max_depth=None) if name in SMALL_ARRAYS}
    assert listed["arrays"].keys() == small.keys() == SMALL_ARRAYS.keys()
    for name, array in small.items():
        values = np.asarray(array[...])
        head = f"{values.dtype} {list(values.shape)} "
        digest = hashlib.sha256(head.encode() + values.tobytes()).hexdigest()
        assert listed["arrays"][name] == digest
    attrs = attributes(store)
    assert attrs.pop("store_sha256") == hashlib.sha256(manifest(store)).hexdigest()
    del attrs["complete"]
    kept = json.dumps(attrs, sort_keys=True).encode()
    assert listed["attributes"] == hashlib.sha256(kept).hexdigest()


@pytest.mark.long
@pytest.mark.cluster
def test_a_dask_client_writes_the_same_store(tmp_path):
    from distributed import Client

    path = simulated(tmp_path / "A.hdf", n=150, bins=5)
    quiet = ingest.ingest(path, tmp_path / "quiet.zarr")
    with Client(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as client:
        report = ingest.ingest(path, tmp_path / "dask.zarr", client=client)
        np.save(tmp_path / "B.npy", noisy(30) + np.tri(30))
        with pytest.raises(SourceError, match="not symmetric"):
            ingest.ingest(tmp_path / "B.npy", q=1, phi=0, frame_time=1, client=client)
    assert manifest(report.store) == manifest(quiet.store)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_a_chunk_is_written_as_zarr_would(tmp_path, dtype):
    values = np.random.default_rng(0).normal(1, 0.02, (2, 64, 64)).astype(dtype)
    metadata = array_metadata(ArraySpec(("bin", "t1", "t2"), dtype), values.shape, (1, 64, 64))
    (tmp_path / "zarr/c2").mkdir(parents=True)
    (tmp_path / "zarr/c2/zarr.json").write_text(json.dumps(metadata))
    zarr.open_array(tmp_path / "zarr/c2", mode="r+")[...] = values
    for index, chunk in enumerate(values):
        content = encode_chunk(chunk.T.copy().T).content
        write_bytes(tmp_path / "own", (index, 0, 0), content)
    for index in range(2):
        expected = (tmp_path / "zarr/c2/c" / str(index) / "0/0").read_bytes()
        assert (tmp_path / "own/c" / str(index) / "0/0").read_bytes() == expected
    assert not [*tmp_path.rglob("*.partial")]


def holed(n: int, k: int) -> np.ndarray:
    c2 = noisy(n, k)
    c2[3, 5:n:3] = c2[5:n:3, 3] = np.nan
    c2[n // 2] = c2[:, n // 2] = 0
    return c2


def slow(c2, sigma_row, use, side, i, j):
    n, total, pairs = len(use), np.zeros(3), 0
    for t1 in range(i * side, min((i + 1) * side, n)):
        t2 = np.arange(max(j * side, t1 + 1), min((j + 1) * side, n))
        t2 = t2[use[t2] & ~np.isnan(c2[t1, t2]) & use[t1]]
        y = c2[t1, t2].astype(np.float64) - 1
        w = 1 / (sigma_row[t1] * sigma_row[t2]) ** 2
        total += [w.sum(), (w * y).sum(), (w * y**2).sum()]
        pairs += len(t2)
    return total, pairs


def check(store):
    root = zarr.open_group(store, mode="r")
    c2, rows, use = (np.asarray(root[name]) for name in ("c2", "sigma_row", "frame_mask"))
    sums = {name: np.asarray(array) for name, array in root["sums"].arrays()}
    side = schema.tile_side(len(use))
    tiles = -(-len(use) // side)
    assert {array.shape for array in sums.values()} == {(len(rows), tiles, tiles)}
    kinds = {name: array.dtype.name for name, array in sums.items()}
    dtypes = dict.fromkeys(("weight", "first", "second"), "float64")
    assert kinds == dtypes | {"pairs": "int64"}
    for b, i, j in np.ndindex(sums["pairs"].shape):
        sums_of_chunk = [sums[name][b, i, j] for name in ("weight", "first", "second")]
        expected, pairs = slow(c2[b], rows[b], use, side, i, j)
        assert sums["pairs"][b, i, j] == pairs
        if i > j:
            assert np.isnan(sums_of_chunk).all()
        else:
            # the file's float32 c2 - 1 is exact for 0.5 <= c2 <= 2, and rounded else
            np.testing.assert_allclose(sums_of_chunk, expected, rtol=1e-7)
    return sums, use


@pytest.mark.parametrize(
    ("n", "sigma"), [(3, 0.02), (64, None), (130, [0.02, 0.3]), (530, None), (530, [0.02, 0.3])]
)
def test_sums_are_those_of_a_slow_loop(tmp_path, n, sigma):
    c2 = [noisy(n, k) if n == 3 else holed(n, k) for k in range(2)]
    np.savez(tmp_path / "A.npz", c2=c2, q=0.01, phi=[0, 90], dt=0.1)
    sums, use = check(ingest.ingest(tmp_path / "A.npz", sigma=sigma).store)
    assert use.all() == (n == 3)
    assert sums["pairs"].sum() == sum(
        np.count_nonzero(np.triu(np.nan_to_num(bin_c2), 1)) for bin_c2 in c2
    )


def test_the_weights_are_those_of_counts_and_masked_frames_have_none(tmp_path):
    path = simulated(tmp_path / "A.hdf", n=140, bins=3)
    with h5py.File(path, "r+") as file:
        file["/xpcs/spatial_mean/intensity_vs_time"][-1, [7, 90]] *= 0.1
    report = ingest.ingest(path)
    sums, use = check(report.store)
    assert report.sigma_source == "counts"
    assert np.flatnonzero(~use).tolist() == [7, 90]
    assert sums["pairs"].sum() == 3 * 138 * 137 // 2


def test_a_chunk_without_a_known_pair_is_there_and_has_sums_of_zero(tmp_path):
    c2 = noisy(600)
    c2[:512, 512:] = c2[512:, :512] = np.nan
    np.save(tmp_path / "A.npy", c2)
    store = ingest.ingest(tmp_path / "A.npy", q=0.01, phi=0, frame_time=1, sigma=0.1).store
    assert (store / "c2/c/0/0/1").is_file()
    assert json.loads(manifest(store))["pairs"][0][1] == 0
    sums, _ = check(store)
    assert [float(sums[name][0, 0, 1]) for name in sums] == [0, 0, 0, 0]


@pytest.mark.parametrize("bins", [1, 12])
def test_what_is_on_disk_is_not_waited_for_in_each_bin(tmp_path, monkeypatch, bins):
    np.save(tmp_path / "A.npy", np.stack([noisy(20, k) for k in range(bins)]))
    waits, plain = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: waits.append(handle) or plain(handle))
    ingest.ingest(tmp_path / "A.npy", q=0.01, phi=np.arange(bins), frame_time=1)
    assert len(waits) <= 8
