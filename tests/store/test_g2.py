"""g2(lag), c2 averaged over age, from the averages in a store."""

import numpy as np
import pytest

import homodyne_dask as hd
import ingest
from homodyne_dask.errors import OptionError
from tests.run_command import csv_rows, done

N, SIGMA, DT, BINS = 200, 0.02, 0.1, 40
LAG = DT * np.abs(np.subtract.outer(np.arange(N), np.arange(N)))


def made(path, time=None, **more):
    rng = np.random.default_rng(5)
    f = 1 + 0.2 * np.exp(-LAG / 2)
    c2 = np.stack([np.triu(rng.normal(f, SIGMA), 1) for _ in range(BINS)])
    times = {"dt": DT} if time is None else {"time": time}
    np.savez(path, c2=c2, q=0.01, phi=np.arange(BINS), **times, **more)
    return hd.open_dataset(ingest.ingest(path).store)


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    return made(tmp_path_factory.mktemp("g2") / "A.npz")


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


def test_g2_of_a_selection_has_its_bins_and_frames(scan):
    g2 = hd.g2(scan.select(phi=(5, 7), frames=(0, 50)))
    assert g2["phi"].values.tolist() == [5, 6, 7]
    assert g2["lag"].max() < 5
    assert (g2["pairs"].isel(lag=0) <= 49).all()


def test_the_command_writes_g2_as_csv(scan, tmp_path):
    out = tmp_path / "g2.csv"
    done("info", scan.path, "--csv", str(out))
    rows = csv_rows(out)
    assert list(rows[0]) == ["label", "q", "phi", "lag", "g2", "stderr", "pairs"]
    g2 = hd.g2(scan)
    assert len(rows) == g2["g2"].size
    assert float(rows[-1]["g2"]) == float(g2["g2"].values[-1, -1])


@pytest.mark.long
def test_ages_without_common_lags_have_no_g2(tmp_path):
    scan = made(tmp_path / "A.npz", time=np.geomspace(1, 100, N))
    with pytest.raises(
        OptionError, match="not evenly spaced in time, so ages have no lags in common"
    ):
        hd.g2(scan)


def test_one_interval_of_age_has_no_error(tmp_path):
    c2 = 1 + np.triu(np.random.default_rng(0).normal(0, 0.1, (4, 4)), 1)
    np.savez(tmp_path / "A.npz", c2=np.triu(c2, 1), q=0.01, phi=0.0, dt=1.0, sigma=0.1)
    g2 = hd.g2(ingest.ingest(tmp_path / "A.npz").store)
    assert g2["pairs"].values.tolist() == [[3, 2, 1]]
    assert np.isnan(g2["stderr"].values[0, -1])


@pytest.mark.parametrize(("frames", "dt"), [(60, 0.1), (200, 1e-6)])
def test_no_pair_of_the_last_frame_is_lost_to_the_rounding_of_times(tmp_path, frames, dt):
    c2 = np.triu(np.random.default_rng(0).normal(1.1, 0.01, (frames, frames)), 1)
    np.savez(tmp_path / "A.npz", c2=c2[None], q=0.01, phi=[0.0], dt=dt)
    scan = hd.open_dataset(ingest.ingest(tmp_path / "A.npz").store)
    assert hd.g2(scan)["pairs"].values[0, :3].tolist() == [frames - 1, frames - 2, frames - 3]
