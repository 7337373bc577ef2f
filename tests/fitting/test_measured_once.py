"""A measurement counts once, however its copies were changed, and whatever takes several scans."""

from itertools import combinations

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import OptionError, SourceError
from homodyne_dask.store.same_noise import shift_of_copy, signs_of_noise
from tests.ingest_files import upper
from tests.photons import STILL, Q, intensities, photographed, rates_integrated

N = 120


def full(seed, n=N, phi=(0.0,), **given):
    c2 = photographed(STILL, n, phi, seed, **given).c2
    return np.where(np.isnan(c2), np.swapaxes(c2, 1, 2), c2)


def frame_replaced(c2):
    c2, other = c2.copy(), full(9)
    c2[:, 30], c2[:, :, 30] = other[:, 30], other[:, :, 30]
    return c2


def without_frames(c2):
    c2 = c2.copy()
    c2[:, 30:33] = c2[:, :, 30:33] = np.nan
    return c2


def by_frames(c2):
    factor = 1 + 0.05 * np.random.default_rng(1).normal(size=N)
    return c2 * factor * factor[:, None]


COPIES = {
    "float16": (lambda c2: c2.astype(np.float16), 0),
    "times 1.01": (lambda c2: 1.01 * c2, 0),
    "less 1": (lambda c2: c2 - 1, 0),
    "another contrast": (lambda c2: 1 + 1.3 * (c2 - 1.01), 0),
    "rounded to 0.01": (lambda c2: np.round(c2, 2), 0),
    "a frame replaced": (frame_replaced, 0),
    "frames unknown": (without_frames, 0),
    "q in another unit": (lambda c2: c2, 0),
    "transposed": (lambda c2: np.swapaxes(c2, 1, 2), 0),
    "normalised by frames": (by_frames, 0),
    "the first frames": (lambda c2: c2[:, :80, :80], 0),
    "later frames": (lambda c2: c2[:, 40:, 40:], 40),
    "later frames, changed": (lambda c2: 1.02 * c2[:, 40:100, 40:100].astype(np.float16), 40),
}


def stored(folder, name, c2, q=Q, phi=(0.0,)):
    np.savez(folder / f"{name}.npz", c2=c2, q=[q] * len(c2), phi=list(phi), dt=0.1)
    return hd.ingest(folder / f"{name}.npz").store


def said(shift):
    there = rf" \(its frame 0 is frame {shift} there\)" * (shift > 0)
    return rf"other_c2.zarr holds data of .*one_c2.zarr{there}, too, but a measurement counts only"


@pytest.mark.parametrize("word", COPIES)
def test_stores_of_one_measurement_are_no_two_of_one_fit_or_series(tmp_path, word):
    change, shift = COPIES[word]
    one, other = full(1), change(full(1)).astype(np.float64)
    q = 10 * Q if "q" in word else Q
    stores = [stored(tmp_path, "one", one), stored(tmp_path, "other", other, q)]
    with pytest.raises(OptionError, match=said(shift)):
        hd.fit(stores, "brownian")
    values = {"one_c2.zarr": 20.0, "other_c2.zarr": 30.0}
    with pytest.raises(OptionError, match=said(shift)):
        hd.fit_each(stores, "brownian", over_scans="temperature", scan_values=values)


def test_windows_of_one_measurement_are_no_repeats(tmp_path):
    c2, files = full(1), [tmp_path / "one.npz", tmp_path / "other.npz"]
    for file, first in zip(files, (0, 40), strict=True):
        part = c2[:, first : first + 80, first : first + 80]
        np.savez(file, c2=np.concatenate([part, part[:, ::-1, ::-1]]), q=[Q, 2 * Q], phi=0, dt=0.1)
    report = hd.ingest(files, tmp_path / "all.zarr")
    kept = np.isfinite(hd.open_dataset(report.store).dataset["c2"].values).any((1, 2))
    assert kept.tolist() == [True, True]
    (note,) = [note for note in report.notes if "holds the data of" in note]
    assert "bin 1 (c2[0]) of other.npz" in note
    assert "one.npz (its frame 0 is frame 40 there), which count once" in note
    with pytest.raises(SourceError, match=r"other.npz holds the data of one.npz \(its frame 0 is"):
        hd.ingest(files, tmp_path / "mean.zarr", average="scans")


def test_frames_selected_twice_are_refused_and_others_are_not(tmp_path):
    whole = hd.open_dataset(stored(tmp_path, "one", full(1)))
    for other in (whole, hd.open_dataset(stored(tmp_path, "other", 1.01 * full(1)))):
        with pytest.raises(OptionError, match="a measurement counts only once"):
            hd.fit([whole.select(frames=(0, 80)), other.select(frames=(40, 120))], "brownian")
        late = other.select(exclude={"frames": (0, 60)})
        assert len(hd.fit([whole.select(frames=(0, 60)), late], "brownian").results) == 2


def test_tables_of_one_measurement_are_refused(tmp_path):
    lag, rng = np.geomspace(0.1, 100, 60), np.random.default_rng(2)

    def table(name, g2):
        head = "tau (s)," + ",".join(f"q={q} 1/A" for q in (0.01, 0.02))
        np.savetxt(tmp_path / f"{name}.csv", np.c_[lag, g2], "%.7g", ",", header=head, comments="")
        return hd.ingest(tmp_path / f"{name}.csv").store

    curve = 1 + 0.2 * np.exp(-0.1 * lag)[:, None] + 0 * np.ones(2)
    one, two = (curve + 0.01 * rng.normal(size=curve.shape) for _ in range(2))
    assert len(hd.fit([table("a", one), table("b", two)], "brownian").results) == 2
    with pytest.raises(OptionError, match="a measurement counts only once"):
        hd.fit([table("a", one), table("c", 1.01 * one)], "brownian")


NO_COPIES = {
    "another measurement": (full(2), 0.0),
    "half of its noise": (full(1) + 0.7 * (full(3) - full(4)), 0.0),
    "a Friedel pair": (full(1, phi=(0.0, 180.0), friedel=True)[1:], 180.0),
    "another angle of the scan": (full(1, phi=(0.0, 60.0))[1:], 60.0),
}


@pytest.mark.parametrize("word", NO_COPIES)
def test_other_measurements_are_fitted_together(tmp_path, word):
    c2, phi = NO_COPIES[word]
    stores = [stored(tmp_path, "one", full(1)), stored(tmp_path, "other", c2, phi=[phi])]
    assert len(hd.fit(stores, "brownian").results) == 2


CAMERAS = {
    "few frames": (8, 150, 2.0),
    "few counts": (20, 20, 0.02),
    "few pixels": (60, 10, 0.3),
    "hardly a photon": (120, 5, 0.02),
}


@pytest.mark.parametrize("word", CAMERAS)
def test_no_two_of_many_scans_under_one_beam_and_detector_have_one_noise(word):
    n, pixels, mean = CAMERAS[word]
    C, _ = rates_integrated(STILL, 0.1 * np.arange(n))
    same = np.random.default_rng(0)
    detector = np.where(same.random(pixels) < 0.1, 20.0, 1.0)[:, None]
    detector = detector * np.abs(1 + 0.1 * same.normal(size=n))
    signs = []
    for seed in range(24):
        rng = np.random.default_rng(seed)
        counts = rng.poisson(mean * detector * intensities(rng, C, np.zeros(n), pixels))
        with np.errstate(invalid="ignore", divide="ignore"):
            each = counts / counts.mean(0)
        signs.append(signs_of_noise(upper((each.T @ each / pixels)[None])[0], n))
    assert all(shift_of_copy(a, b) is None for a, b in combinations(signs, 2))
