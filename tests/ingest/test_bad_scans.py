"""Repeats that differ from the others are left out, with what they differ in."""

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import OptionError
from ingest.bad_scans import _extreme

N = 40
LAG = np.abs(np.subtract.outer(np.arange(N), np.arange(N)))


def shifted(c2):
    return c2 + 0.1


def stuck(c2):
    c2 = c2.copy()
    c2[:, 15:18] += 0.5
    c2[:, :, 15:18] += 0.5
    return c2


def faster(c2):
    return c2 - 0.2 * np.exp(-LAG / 5) + 0.2 * np.exp(-LAG / 1.5)


@pytest.fixture
def repeats(tmp_path):
    def made(*changes, seed=0):
        paths = []
        for k, change in enumerate(changes):
            rng = np.random.default_rng((seed, k))
            noise = np.triu(rng.normal(0, 0.05, (2, N, N)), 1)
            c2 = 1 + 0.2 * np.exp(-LAG / 5) + noise + noise.transpose(0, 2, 1)
            paths.append(tmp_path / f"R{k}.npz")
            np.savez(paths[-1], c2=change(c2) if change else c2, q=0.01, phi=[0.0, 90.0], dt=1.0)
        return paths

    return made


@pytest.mark.parametrize(
    ("change", "number"),
    [(shifted, "c2 at long lags"), (stuck, "distance from the median"), (faster, "distance from the")],
)  # fmt: skip
def test_a_repeat_that_differs_is_left_out_of_the_mean(tmp_path, repeats, change, number):
    paths = repeats(None, None, None, change, None, None, None)
    good = [path for path in paths if path.name != "R3.npz"]
    mean = hd.ingest(paths, tmp_path / "a.zarr", average="scans", reject_scans=True)
    expected = hd.ingest(good, tmp_path / "b.zarr", average="scans")
    c2, of_good = (
        hd.open_dataset(report.store).dataset["c2"].values for report in (mean, expected)
    )
    np.testing.assert_array_equal(c2, of_good)
    assert "reject_scans: 1 of 7 scans left out" in mean.notes
    assert any(
        f"R3.npz left out: {number}" in note.replace("the logarithm of its ", "")
        for note in mean.notes
    )


def test_good_repeats_stay_and_are_said_to(tmp_path, repeats):
    left_out = 0
    for seed in range(8):
        report = hd.ingest(
            repeats(*[None] * 6, seed=seed), tmp_path / "a.zarr", reject_scans=True, overwrite=True
        )
        left_out += "reject_scans: 0 of 6 scans left out" not in report.notes
    assert left_out <= 1


def test_curves_of_g2_that_differ_are_left_out(tmp_path):
    delay, rng, paths = np.geomspace(1e-3, 1, 30), np.random.default_rng(2), []
    for k in range(6):
        g2 = 1 + 0.2 * np.exp(-10 * delay) + rng.normal(0, 0.002, 30) + 0.05 * (k == 4)
        paths.append(str(tmp_path / f"R{k}.csv"))
        np.savetxt(
            paths[-1], np.c_[delay, g2], delimiter=",", header="tau(s),g2(q=0.01)", comments=""
        )
    report = hd.ingest(paths, tmp_path / "a.zarr", reject_scans=True)
    assert sum("R4.csv left out" in note for note in report.notes) >= 1
    assert len(report.bins) == 5


@pytest.mark.parametrize("scans", [1, 4])
def test_few_scans_do_not_tell_which_differ(tmp_path, repeats, scans):
    with pytest.raises(OptionError, match=f"reject_scans needs 5 scans or more .* not {scans}"):
        hd.ingest(repeats(*[None] * scans), tmp_path / "a.zarr", reject_scans=True)


@pytest.mark.parametrize("number", [5, 8, 20])
def test_the_level_of_the_test_is_kept_and_outliers_that_hide_each_other_are_found(number):
    rng = np.random.default_rng(number)
    taken = sum(bool(_extreme(rng.standard_normal(number), 0.01)) for _ in range(1000))
    assert taken < 25
    values = np.append(rng.standard_normal(18), [30.0, 31.0])
    assert sorted(_extreme(values, 0.01)) == [18, 19]
