"""Counts per pixel and frame: the noise that follows, beam trips, and few photons: 0 is a measurement."""

import h5py
import numpy as np
import pytest

import homodyne_dask as hd
import ingest
from ingest.bin_task import exclude_outliers
from ingest.clean import clean, measure_scatter, measure_smoothness
from ingest.store_writer import mask_matrix
from tests import photons
from tests.ingest_files import arrays, edited, simulated

QMAP = "/xpcs/qmap/"
FLUX = "/xpcs/spatial_mean/intensity_vs_time"
IMAGE = "/xpcs/temporal_mean/scattering_2d"
N, PIXELS, BINS = 100, 1000, 8
RATE = 1.0
"""q² D0 [1/s]: f decays to 1/e in 10 frames of 0.1 s."""
CONTRAST = 1 / photons.MODES


def test_counts_follow_flux_and_averaging(tmp_path):
    path = simulated(tmp_path / "A.hdf", n=30, counts=0.8, avg=4, n_pixels=3000)
    report = ingest.ingest(path)
    store = arrays(report.store)
    assert store["intensity"].mean() == pytest.approx(0.8, rel=1e-6)
    assert store["n_pixels"].tolist() == [3000] * 3
    with h5py.File(path) as file:
        flux = file[FLUX][1]
    np.testing.assert_allclose(store["intensity"][0] / 0.8, flux / flux.mean(), rtol=1e-6)
    for row, mu, beta in zip(
        store["sigma_row"], store["intensity"], store["beta_ingest"], strict=True
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


@pytest.mark.long
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
    store = arrays(report.store)
    assert np.flatnonzero(~store["frame_mask"]).tolist() == [6, 7, 8, 15]
    assert any("4 frames masked" in note and "6 to 8, 15" in note for note in report.notes)
    assert np.isfinite(store["sigma_row"]).all()
    assert report.bins[0].frames == 36


def test_counts_that_are_too_few_are_noticed(tmp_path):
    path = edited(simulated(tmp_path / "A.hdf", n=60), **{IMAGE: lambda image: image / 100})
    assert any("times the scatter of the bins" in note for note in ingest.ingest(path).notes)


def counted(mean: float, seed: int) -> np.ndarray:
    rng, time = np.random.default_rng([seed, int(1e3 * mean)]), 0.1 * np.arange(N)
    speckle = photons.intensities(rng, RATE / photons.Q**2 * time, np.zeros(N), PIXELS)
    return rng.poisson(mean * speckle).astype(float)


def correlated(counts: np.ndarray) -> np.ndarray:
    """c2 as correlators compute it: a frame without a photon has a row and a column of 0."""
    total = counts.sum(axis=0)
    return counts.T @ counts * len(counts) / np.outer(*[np.where(total > 0, total, 1)] * 2)


def test_where_counts_are_far_too_many_sigma_is_the_scatter_and_the_model_is_not_blamed(tmp_path):
    c2 = np.stack([correlated(counted(2.0, k)) for k in range(2)])
    options = {"q": photons.Q, "phi": np.arange(2), "dt": 0.1, "pixels": PIXELS}
    right = hd.ingest(c2, tmp_path / "right.zarr", counts=2.0, **options)
    report = hd.ingest(c2, tmp_path / "wrong.zarr", counts=20.0, **options)
    assert (right.sigma_source, report.sigma_source) == ("counts", "scatter")
    for row, expected in zip(report.bins, right.bins, strict=True):
        assert row.sigma == pytest.approx(expected.sigma, rel=0.1)
    assert np.isnan(hd.open_dataset(report.store).mean_counts).all()
    result = hd.fit(report.store, "brownian")
    assert result.findings[0].code == "counts-contradicted"
    assert " in 2 bins: " in str(result.findings[0])
    assert not result.misfit
    assert 0.8 < result.redchi < 1.3


@pytest.mark.parametrize("rate", [100.0, 1e-4])
def test_right_counts_are_not_doubted_where_c2_does_not_show_its_contrast(tmp_path, rate):
    # decays within a frame, or none within the record
    rng = np.random.default_rng(2)
    speckle = photons.intensities(
        rng, rate / photons.Q**2 * 0.1 * np.arange(N), np.zeros(N), PIXELS
    )
    c2 = correlated(rng.poisson(10.0 * speckle).astype(float))
    options = {"q": photons.Q, "phi": 0, "dt": 0.1, "pixels": PIXELS, "counts": 10.0}
    assert hd.ingest(c2, tmp_path / "A.zarr", **options).sigma_source == "counts"


def test_frames_of_which_many_pairs_are_outliers_have_means(tmp_path):
    c2, light = correlated(counted(2.0, 1)), np.where(np.arange(N) == 60, 1.5, 1.0)
    c2 *= np.outer(light, light)
    report = hd.ingest(c2, tmp_path / "A.zarr", q=photons.Q, phi=0, dt=0.1)
    assert "excluded from the averages" in str(report)
    (means,) = hd.open_dataset(report.store).frame_means
    assert means.argmax() == 60
    assert means[60] == pytest.approx(1.5 * means[59], rel=0.05)


def test_frames_that_are_taken_in_bursts_are_noticed(tmp_path):
    time = 0.1 * np.arange(200)
    for name, chosen in (("even", time[:N]), ("bursts", time.reshape(-1, 8)[:, :4].ravel())):
        rng = np.random.default_rng(3)
        speckle = photons.intensities(rng, RATE / photons.Q**2 * chosen, np.zeros(N), PIXELS)
        c2 = correlated(rng.poisson(2.0 * speckle).astype(float))
        store = hd.ingest(c2, tmp_path / f"{name}.zarr", q=photons.Q, phi=0, dt=0.1).store
        result = hd.fit(store, "brownian")
        if name == "even":
            assert not result.findings.of("frames-missing")
        else:
            assert result.findings[0].numbers["period"] == 4
            assert "every 4 frames" in result.verdict


def of_noise(rng, bins, factor):
    """c2 of even frames with white noise; factor: of all bins alike, of each frame."""
    lag = np.abs(np.arange(300) - np.arange(300)[:, None])
    noise = np.triu(rng.normal(0, 0.02, (bins, 300, 300)))
    c2 = 1 + 0.3 * np.exp(-2 * lag / 20) + noise + np.swapaxes(np.triu(noise, 1), 1, 2)
    return c2 * np.outer(factor, factor)


def test_noise_of_the_beam_and_dead_frames_are_not_taken_for_bursts(tmp_path):
    rng = np.random.default_rng(1)
    options = {"q": np.full(20, 0.01), "phi": np.arange(20.0), "dt": 0.1}
    shaken = of_noise(rng, 20, 1 + 0.02 * rng.normal(size=300))
    dead = of_noise(rng, 20, 1 + 0.2 * np.arange(300) / 300)
    dead[:, ::11] = dead[:, :, ::11] = np.nan
    for name, c2 in (("shaken", shaken), ("dead", dead)):
        store = hd.ingest(c2, tmp_path / f"{name}.zarr", **options).store
        assert "frames-missing" not in hd.open_dataset(store).attributes.doubts, name


def smoothed(c2: np.ndarray, side: int) -> np.ndarray:
    """Return means over squares of frames; pairs of the diagonal are those beside them."""
    np.fill_diagonal(c2, np.diagonal(c2, 1).mean())
    wide = np.pad(c2, side // 2, mode="edge")
    return np.lib.stride_tricks.sliding_window_view(wide, (side, side)).mean((2, 3))


@pytest.mark.parametrize("mean", [0.2, 2.0, 100.0])
def test_noise_is_as_smooth_as_speckle_makes_it_unless_c2_was_smoothed(mean):
    c2 = correlated(counted(mean, 1))
    measured = measure_smoothness(clean(c2, N, "bin 1").c2)
    assert measured.log_ratio == pytest.approx(0, abs=0.15)
    assert abs(measured.log_ratio) < 5 * measured.stderr
    if mean < 100:  # speckle alone is as smooth before
        of_means = measure_smoothness(clean(smoothed(c2, 3), N, "bin 1").c2)
        assert of_means.log_ratio < np.log(0.75)
        assert of_means.log_ratio < -6 * of_means.stderr
    assert measure_smoothness(c2[:40, :40].astype(np.float32)) is None


def test_a_model_is_not_blamed_where_c2_was_smoothed(tmp_path):
    c2 = np.stack([smoothed(correlated(counted(2.0, k)), 5) for k in range(2)])
    store = hd.ingest(c2, tmp_path / "A.zarr", q=photons.Q, phi=np.arange(2), dt=0.1).store
    result = hd.fit(store, "brownian")
    assert result.findings.at_least("warning").codes == ("c2-smoothed", "no-standard-error")
    assert np.isnan(result.parameters["stderr"]).all()
    assert "smoothed" in str(result.findings.of("no-standard-error")[0])


@pytest.mark.long(whole=True)
@pytest.mark.parametrize(
    ("mean", "errors"), [(0.06, (0.02, 0.006)), (0.03, (0.04, 0.01)), (0.02, (0.08, 0.02))]
)
def test_contrast_and_offset_of_few_photons_are_the_true_ones(tmp_path, mean, errors):
    c2 = np.stack([correlated(counted(mean, k)) for k in range(BINS)])
    np.savez(tmp_path / "A.npz", c2=np.triu(c2), q=photons.Q, phi=np.arange(BINS), dt=0.1)
    report = ingest.ingest(tmp_path / "A.npz")
    zeros = int(np.count_nonzero(np.triu(c2 == 0, 1)))
    assert report.n_pairs == BINS * N * (N - 1) // 2
    assert any(
        note.startswith(f"{zeros:,} pairs equal to 0: taken as measured") for note in report.notes
    )
    law = (1 / mean + CONTRAST) / np.sqrt(PIXELS)
    assert [row.sigma for row in report.bins] == pytest.approx([law] * BINS, rel=0.2)
    truth = {"D0": RATE / photons.Q**2, "alpha": 0, "D_offset": 0}
    result = hd.fit(report.store, hd.STATIC, fixed=truth)
    for name, expected, largest in zip(
        ("contrast", "offset"), (CONTRAST, 1.0), errors, strict=True
    ):
        values = result.scaling[name].values
        error = values.std(ddof=1) / np.sqrt(BINS)
        assert error < largest
        assert abs(values.mean() - expected) < 4 * error, (name, values)


def test_few_photons_of_baseline_0_get_baseline_1():
    c2 = correlated(counted(0.02, 1))
    assert (c2 == 0).mean() > 0.6
    above = np.triu(np.ones((N, N), bool), 1)
    for baseline, matrix in ((1, c2), (0, c2 - 1)):
        cleaned = clean(np.where(above, matrix, np.nan), N, "bin 1")
        assert cleaned.baseline == baseline
        np.testing.assert_allclose(cleaned.c2[above], c2[above], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("decay", [50.0, 2.0, 0.2])
def test_a_correlation_that_decays_to_exactly_0_has_baseline_0(decay):
    """Without noise c2 - 1 ends at 0, and 0 is what most pairs of few photons are, too."""
    lag = np.abs(np.subtract.outer(np.arange(60.0), np.arange(60.0)))
    cleaned = clean(0.2 * np.exp(-lag / decay), 60, "A")
    assert cleaned.baseline == 0
    assert np.nanmin(cleaned.c2) >= 1


@pytest.mark.parametrize("mean", [0.03, 0.01, 0.005])
def test_the_scatter_of_few_photons_is_that_of_their_number(mean):
    """With 0.01 counts in each of 1000 pixels more than half of all second differences are 0."""
    c2 = clean(correlated(counted(mean, 2)), N, "bin 1").c2
    assert measure_scatter(c2) == pytest.approx((1 / mean + CONTRAST) / np.sqrt(PIXELS), rel=0.3)


def test_the_scatter_of_few_photons_is_that_of_all_pairs_where_light_jumps():
    light = np.where(np.arange(N) % 3, 1.35, 0.3)
    rng = np.random.default_rng(4)
    c2 = clean(correlated(rng.poisson(0.04 * light, (PIXELS, N)).astype(float)), N, "bin 1").c2
    assert measure_scatter(c2) == pytest.approx(np.nanstd(c2), rel=0.15)


def test_a_single_pair_of_photons_is_no_outlier():
    c2 = clean(correlated(counted(0.004, 3)), N, "bin 1").c2
    sigma = (1 / 0.004 + CONTRAST) / np.sqrt(PIXELS)
    assert np.nanmax(c2) > 8 * sigma
    pairs = mask_matrix(c2, np.ones(N, bool))
    assert exclude_outliers(pairs, sigma, 0.1 * np.arange(N)) == 0
