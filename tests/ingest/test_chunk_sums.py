"""The weighted sums of each chunk against loops over its pairs."""

import h5py
import numpy as np
import pytest
import zarr

import ingest
from homodyne_dask.store import schema
from tests.ingest_files import noisy, simulated


def holed(n: int, k: int) -> np.ndarray:
    """A matrix of which some pairs, and all of one frame, are unknown."""
    c2 = noisy(n, k)
    c2[3, 5:n:3] = c2[5:n:3, 3] = np.nan
    c2[n // 2] = c2[:, n // 2] = 0
    return c2


def slow(c2, sigma_row, use, side, i, j):
    """The sums over one chunk, pair by pair of t1."""
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
    found = {name: np.asarray(array) for name, array in root["sums"].arrays()}
    side = schema.tile_side(len(use))
    tiles = -(-len(use) // side)
    assert {name: (values.dtype.name, values.shape) for name, values in found.items()} == {
        "weight": ("float64", (len(rows), tiles, tiles)),
        "first": ("float64", (len(rows), tiles, tiles)),
        "second": ("float64", (len(rows), tiles, tiles)),
        "pairs": ("int64", (len(rows), tiles, tiles)),
    }
    for b, i, j in np.ndindex(found["pairs"].shape):
        here = [found[name][b, i, j] for name in ("weight", "first", "second")]
        expected, pairs = slow(c2[b], rows[b], use, side, i, j)
        assert found["pairs"][b, i, j] == pairs
        if i > j:
            assert np.isnan(here).all()
        else:
            # the file's float32 c2 - 1 is exact for 0.5 <= c2 <= 2, and rounded else
            np.testing.assert_allclose(here, expected, rtol=1e-7)
    return found, use


@pytest.mark.parametrize(
    ("n", "sigma"), [(3, 0.02), (64, None), (130, [0.02, 0.3]), (530, None), (530, [0.02, 0.3])]
)
def test_sums_are_those_of_a_slow_loop(tmp_path, n, sigma):
    c2 = [noisy(n, k) if n == 3 else holed(n, k) for k in range(2)]
    np.savez(tmp_path / "A.npz", c2=c2, q=0.01, phi=[0, 90], dt=0.1)
    found, use = check(ingest.ingest(tmp_path / "A.npz", sigma=sigma).store)
    assert use.all() == (n == 3)
    assert found["pairs"].sum() == sum(
        np.count_nonzero(np.triu(np.nan_to_num(bin_c2), 1)) for bin_c2 in c2
    )


def test_the_weights_are_those_of_counts_and_masked_frames_have_none(tmp_path):
    path = simulated(tmp_path / "A.hdf", n=140, bins=3)
    with h5py.File(path, "r+") as file:
        file["/xpcs/spatial_mean/intensity_vs_time"][-1, [7, 90]] *= 0.1
    report = ingest.ingest(path)
    found, use = check(report.store)
    assert report.sigma_source == "counts"
    assert np.flatnonzero(~use).tolist() == [7, 90]
    assert found["pairs"].sum() == 3 * 138 * 137 // 2


def test_a_chunk_without_a_known_pair_has_sums_of_zero(tmp_path):
    c2 = noisy(600)
    c2[:512, 512:] = c2[512:, :512] = np.nan
    np.save(tmp_path / "A.npy", c2)
    store = ingest.ingest(tmp_path / "A.npy", q=0.01, phi=0, frame_time=1, sigma=0.1).store
    found, _ = check(store)
    assert [float(found[name][0, 0, 1]) for name in found] == [0, 0, 0, 0]
