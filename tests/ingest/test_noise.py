"""Counts per pixel and frame: the noise that follows from them, and beam trips."""

import h5py
import numpy as np
import pytest

import ingest
from tests.ingest_files import arrays, edited, simulated

QMAP = "/xpcs/qmap/"
FLUX = "/xpcs/spatial_mean/intensity_vs_time"
IMAGE = "/xpcs/temporal_mean/scattering_2d"


def test_counts_follow_flux_and_averaging(tmp_path):
    path = simulated(tmp_path / "A.hdf", n=30, counts=0.8, avg=4, n_pixels=3000)
    report = ingest.ingest(path)
    held = arrays(report.store)
    assert held["intensity"].mean() == pytest.approx(0.8, rel=1e-6)
    assert held["n_pixels"].tolist() == [3000] * 3
    with h5py.File(path) as file:
        flux = file[FLUX][1]
    np.testing.assert_allclose(held["intensity"][0] / 0.8, flux / flux.mean(), rtol=1e-6)
    for row, mu, beta in zip(
        held["sigma_row"], held["intensity"], held["beta_ingest"], strict=True
    ):
        law = np.sqrt(np.outer(1 / mu + beta, 1 / mu + beta) / 3000)
        np.testing.assert_allclose(np.outer(row, row), law, rtol=1e-12)


def test_flux_of_all_detector_frames_is_averaged_like_the_frames(tmp_path):
    path = simulated(tmp_path / "A.hdf", n=20, avg=3, stride=2)
    raw = 1 + np.arange(130) % 7
    edited(path, **{FLUX: np.stack([np.arange(130), raw])})
    mu = arrays(ingest.ingest(path).store)["intensity"][0]
    expected = raw[:120:2].reshape(20, 3).mean(axis=1)
    np.testing.assert_allclose(mu / mu.mean(), expected / expected.mean())


@pytest.mark.parametrize(
    ("word", "changes"),
    [
        ("no image", {IMAGE: None}),
        ("no flux", {FLUX: None}),
        ("no roi map", {QMAP + "dynamic_roi_map": None}),
        ("image of another detector", {IMAGE: np.ones((3, 3))}),
        ("flux too short", {FLUX: np.ones((2, 7))}),
        ("image dark", {IMAGE: lambda image: 0 * image}),
    ],
)
def test_without_counts_sigma_is_the_scatter(tmp_path, word, changes):
    report = ingest.ingest(edited(simulated(tmp_path / "A.hdf", n=80), **changes))
    law = (1 + 0.25) / np.sqrt(5000)
    assert report.sigma_source == "scatter"
    assert [row.sigma for row in report.bins] == pytest.approx([law] * 3, rel=0.05)
    assert any("scatter" in note for note in report.notes)


def test_beam_trips_are_masked_and_listed(tmp_path):
    def trip(flux):
        flux[1, 6:9] *= 0.3
        flux[1, 15] = 0
        return flux

    report = ingest.ingest(edited(simulated(tmp_path / "A.hdf", n=40), **{FLUX: trip}))
    held = arrays(report.store)
    assert np.flatnonzero(~held["frame_mask"]).tolist() == [6, 7, 8, 15]
    assert any("4 frames masked" in note and "7-9, 16" in note for note in report.notes)
    assert np.isfinite(held["sigma_row"]).all()
    assert report.bins[0].frames == 36


def test_counts_in_another_unit_are_noticed(tmp_path):
    path = edited(simulated(tmp_path / "A.hdf", n=60), **{IMAGE: lambda image: 100 * image})
    assert any("times what the bins scatter" in note for note in ingest.ingest(path).notes)
