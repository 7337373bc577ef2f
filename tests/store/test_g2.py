"""g2(lag), c2 averaged over age, from the averages in a store."""

import numpy as np
import pytest

import homodyne_dask as hd
import ingest
from homodyne_dask.assessment.speckle_covariance import field_noise
from homodyne_dask.errors import OptionError
from homodyne_dask.results.data.c2_means import covariance_over_age
from tests.run_command import csv_rows, done
from tests.speckle_scans import Photons, whole_record

N, SIGMA, DT, BINS = 200, 0.02, 0.1, 12
LAG = DT * np.abs(np.subtract.outer(np.arange(N), np.arange(N)))


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    rng, path = np.random.default_rng(5), tmp_path_factory.mktemp("g2") / "A.npz"
    f = 1 + 0.2 * np.exp(-LAG / 2)
    c2 = np.stack([np.triu(rng.normal(f, SIGMA), 1) for _ in range(BINS)])
    np.savez(path, c2=c2, q=0.01, phi=np.arange(BINS), dt=DT)
    return hd.open_dataset(ingest.ingest(path).store)


def test_g2_is_the_mean_over_age_with_the_error_of_its_scatter(scan):
    g2 = hd.g2(scan)
    assert g2["lag"].values[:3].tolist() == [0.1, 0.2, 0.3]
    expected = 1 + 0.2 * np.exp(-g2["lag"].values / 2)
    single = g2.isel(lag=slice(3))
    pull = (single["g2"].values - expected[:3]) / (SIGMA / np.sqrt(single["pairs"].values))
    assert abs(np.mean(pull)) < 0.4
    assert np.std(pull) == pytest.approx(1, abs=0.2)
    ratio = single["stderr"].values / (SIGMA / np.sqrt(single["pairs"].values))
    assert np.median(ratio) == pytest.approx(1, abs=0.15)
    assert np.abs(g2["g2"].mean("bin") - expected).max() < 0.002


def test_the_command_writes_g2_as_csv(scan, tmp_path):
    out = tmp_path / "g2.csv"
    done("info", scan.path, "--csv", str(out))
    rows = csv_rows(out)
    assert list(rows[0]) == ["label", "q", "phi", "lag", "g2", "stderr", "pairs"]
    g2 = hd.g2(scan)
    assert len(rows) == g2["g2"].size
    assert float(rows[-1]["g2"]) == float(g2["g2"].values[-1, -1])


@pytest.mark.long
def test_a_bin_without_pairs_has_no_g2(tmp_path):
    c2 = np.random.default_rng(0).normal(1.1, 0.1, (2, 100, 100))
    c2[1, :30] = np.nan
    np.savez(tmp_path / "A.npz", c2=np.triu(c2, 1), q=[0.01, 0.02], phi=0.0, dt=1.0)
    scan = hd.open_dataset(ingest.ingest(tmp_path / "A.npz").store)
    found = hd.g2(scan.select(frames=(0, 20)))
    assert np.isfinite(found["stderr"].values).all(1).tolist() == [True, False]
    with pytest.raises(OptionError, match=r"no interval .* lies in the selected frames"):
        hd.g2(scan.select(frames=(40, 43)))


def test_ages_without_common_lags_have_no_g2(tmp_path):
    c2 = np.triu(np.full((8, 8), 1.1), 1)
    np.savez(tmp_path / "A.npz", c2=c2, q=0.01, phi=0.0, time=np.geomspace(1, 50, 8), sigma=0.1)
    store = ingest.ingest(tmp_path / "A.npz").store
    with pytest.raises(OptionError, match="not evenly spaced in time, so ages have no lags in"):
        hd.g2(store)


def test_one_interval_of_age_has_the_error_of_the_noise_at_other_lags(tmp_path):
    c2 = 1 + np.triu(np.random.default_rng(0).normal(0, 0.1, (4, 4)), 1)
    np.savez(tmp_path / "A.npz", c2=np.triu(c2, 1), q=0.01, phi=0.0, dt=1.0, sigma=0.1)
    g2 = hd.g2(ingest.ingest(tmp_path / "A.npz").store)
    assert g2["pairs"].values.tolist() == [[3, 2, 1]]
    np.testing.assert_allclose(g2["stderr"].values[0] * np.sqrt([3, 2, 1]), 0.1, rtol=0.8)


@pytest.mark.parametrize(("frames", "dt"), [(60, 0.1), (200, 1e-6)])
def test_no_pair_of_the_last_frame_is_lost_to_the_rounding_of_times(tmp_path, frames, dt):
    c2 = np.triu(np.random.default_rng(0).normal(1.1, 0.01, (frames, frames)), 1)
    np.savez(tmp_path / "A.npz", c2=c2[None], q=0.01, phi=[0.0], dt=dt)
    scan = hd.open_dataset(ingest.ingest(tmp_path / "A.npz").store)
    assert hd.g2(scan)["pairs"].values[0, :3].tolist() == [frames - 1, frames - 2, frames - 3]


@pytest.mark.parametrize("lag", [1, 3, 11])
@pytest.mark.parametrize("mean_counts", [0.2, 5.0])
def test_covariances_over_age_are_those_of_the_noise_of_sums(lag, mean_counts):
    n, contrast = 20, 0.4
    f = np.exp(-np.arange(n) / 4)
    g = np.sqrt(f[np.abs(np.subtract.outer(np.arange(n), np.arange(n)))])
    of_lag = np.diag(np.ones(n - lag), lag)[None]
    expected = field_noise(whole_record(g, contrast), of_lag).at(mean_counts)[0, 0]
    d = np.arange(n - lag)
    pairs = np.where(d == 0, n - lag, 2 * (n - lag - d))
    found = covariance_over_age(f, contrast, mean_counts, lag)[: n - lag]
    assert pairs @ found == pytest.approx(expected)


@pytest.mark.parametrize("known", [True, False])
def test_ages_that_see_one_speckle_pattern_are_not_independent(tmp_path, known):
    """f falls to 1/e in the record: taken as independent, ages gave errors 2.6 to 4.4 times too small."""
    slow = Photons(np.array([1e3, 0.0, 0.0]), 100, (0.01,) * 40, tuple(range(BINS)), pixels=150)
    counts = {"counts": np.full((40, 100), slow.mean), "pixels": np.full(40, 300)} if known else {}
    c2 = np.nan_to_num(slow.scan(1).c2)
    np.savez(tmp_path / "A.npz", c2=c2, q=0.01, phi=np.arange(40.0), dt=0.1, **counts)
    g2 = hd.g2(ingest.ingest(tmp_path / "A.npz").store)
    scatter = g2["g2"].std("bin") / g2["stderr"].median("bin")
    assert 0.8 < float(scatter.mean()) < (1.2 if known else 1.6)
