"""The covariance of c2 for counted photons, against simulated pixels and simulated scans."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kurtosis

from homodyne_dask.assessment import speckle_covariance
from homodyne_dask.assessment.cell_residuals import Interval
from homodyne_dask.assessment.speckle_blocks import noise_of_cells
from homodyne_dask.assessment.speckle_covariance import (
    MEAN_COUNTS,
    Blocks,
    CellPairs,
    cell_noise,
    field_noise,
    left_by_fit,
    likely_noise,
    log_variances,
    nearest_correlation,
    pair_variance,
    whitened,
)
from tests.photons import excess
from tests.speckle_scans import Photons, pixel_sums, whole_record

SLOW, FAST = np.array([2e3, 0.0, 0.0]), np.array([3e4, -0.2, 0.0])
SHEARED = np.array([3e4, -0.3, 1000, 3e-4, 0.2, 2e-5, 5.0])


def record_of(photons: Photons, bin=0) -> Blocks:
    return whole_record(photons.g(bin), 1 / photons.modes)


def of_core(blocks: Blocks, first: int, stop: int) -> Blocks:
    """The same blocks, of which only these count as first frames."""
    return replace(blocks, stretch=blocks.stretch._replace(core=(first, stop)))


def score_fields(photons: Photons) -> np.ndarray:
    """1, f and the derivatives of exp(-k·lag) by k, alone and with offset and contrast taken out."""
    f = photons.g(0) ** 2
    lag = np.abs(np.subtract.outer(photons.time, photons.time))
    upper = np.triu_indices(photons.frames, 1)
    Z = np.stack([np.ones_like(f)[upper], f[upper]], axis=1)
    slope = (-lag * f)[upper]
    rest_of_slope = np.zeros_like(f)
    rest_of_slope[upper] = slope - Z @ np.linalg.lstsq(Z, slope, rcond=None)[0]
    fields = np.stack([np.ones_like(f), f, -lag * f, rest_of_slope])
    return np.triu(fields / np.abs(fields).max((1, 2), keepdims=True), 1)


def simulated_sums(photons: Photons, fields, pixels, seed=1):
    rng, f, sums = np.random.default_rng(seed), photons.g(0) ** 2, []
    for _ in range(0, pixels, 20_000):
        counts = photons.counts(rng, 0, 20_000)
        sums.append(pixel_sums(counts, photons.mean, f, 1 / photons.modes, fields))
    return np.concatenate(sums)


@pytest.mark.long(whole=True)
@pytest.mark.parametrize(
    "photons",
    [
        Photons(FAST, 40, mean=0.3),
        Photons(FAST, 40, mean=5.0),
        Photons(SLOW, 40, mean=5.0, modes=2),
        Photons(SHEARED, 40, q=(0.0054,), phi=(0.0,), mean=2.0),
    ],
    ids=["few counts", "many counts", "slow, two modes", "shear"],
)
def test_the_closed_form_is_the_covariance_of_simulated_pixels(photons):
    """Within 3 %, and four times what so many pixels leave open of variances of such skewed sums."""
    fields = score_fields(photons)
    closed = field_noise(record_of(photons), fields).at(photons.mean)
    pixels = 600_000 if photons.modes == 2 else 200_000  # the fewer modes, the more skewed the sums
    sums = simulated_sums(photons, fields, pixels)
    covariance, open_part = np.cov(sums.T), np.sqrt((kurtosis(sums) + 2).max() / len(sums))
    assert open_part < 0.025
    size = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    np.testing.assert_allclose(closed / size, covariance / size, atol=0.03 + 4 * open_part)


def fit_noise(residual, columns, noise, mean_counts=MEAN_COUNTS):
    residuals, noise = left_by_fit(residual.reshape(len(columns), -1), columns, noise)
    fits = whitened(residuals, noise, likely_noise(residuals, noise, mean_counts))
    return fits[0] if residual.ndim == 1 else fits


def cells_of(frames: int) -> CellPairs:
    first, edges = np.array([0, frames // 8, frames // 3]), np.array([1, 2, 4, 8, 16, 32])
    rows = np.repeat(np.stack([first, np.append(first[1:], frames)], axis=1), 5, axis=0)
    start, end = (
        np.concatenate([np.arange(*of_cell) + lag for of_cell, lag in pairs])
        for pairs in (zip(rows, np.tile(lags, 3), strict=True) for lags in (edges[:-1], edges[1:]))
    )
    return CellPairs(rows, np.minimum(start, frames), np.minimum(end, frames))


def cell_fields(frames: int) -> np.ndarray:
    cells = cells_of(frames)
    fields, start, end = np.zeros((15, frames, frames)), iter(cells.start), iter(cells.end)
    for field, (first, stop) in zip(fields, cells.rows, strict=True):
        for row in field[first:stop]:
            row[next(start) : next(end)] = 1
        field /= field.sum()
    return fields


@pytest.mark.parametrize("theta", [FAST, SLOW], ids=["fast", "slow"])
@pytest.mark.parametrize("mean", [0.3, 5.0])
def test_the_noise_of_cells_is_within_a_tenth_of_the_closed_form(theta, mean):
    photons = Photons(theta, 60, modes=3)
    record = record_of(photons)
    near = cell_noise(record, cells_of(60)).at(mean)
    whole = field_noise(record, cell_fields(60)).at(mean)
    np.testing.assert_allclose(np.diag(near) / np.diag(whole), 1, atol=0.1)
    assert np.linalg.eigvalsh(near).min() > 0
    size = np.sqrt(np.outer(np.diag(whole), np.diag(whole)))
    np.testing.assert_allclose(near / size, whole / size, atol=0.1)


def test_the_noise_of_cells_is_the_same_in_little_memory(monkeypatch):
    record, cells = record_of(Photons(FAST, 60)), cells_of(60)
    whole = cell_noise(record, cells)
    monkeypatch.setattr(speckle_covariance, "MOST_HELD", 20_000)
    for term, of_parts in zip(whole, cell_noise(record, cells), strict=True):
        np.testing.assert_allclose(of_parts, term, rtol=1e-12, atol=1e-15)


def test_frames_that_are_all_masked_have_no_noise_of_their_own():
    photons = Photons(FAST, 30)
    blocks = of_core(record_of(photons), 30, 30)
    assert not np.any(field_noise(blocks, score_fields(photons)))
    assert not np.any(noise_of_cells([blocks], [Interval(0, 30, 1, 4), Interval(0, 30, 4, 9)]))


def test_the_covariances_of_parts_of_a_record_add_up_to_that_of_the_whole(monkeypatch):
    monkeypatch.setattr("homodyne_dask.assessment.speckle_covariance.OF_STRETCHES", 30)
    photons = Photons(FAST, 30)
    record, fields = record_of(photons), score_fields(photons)
    whole = field_noise(record, fields)
    thirds = [field_noise(of_core(record, n, n + 10), fields) for n in (0, 10, 20)]
    for kind in range(3):
        np.testing.assert_allclose(sum(third[kind] for third in thirds), whole[kind], atol=1e-9)


def test_blocks_of_frames_have_the_noise_of_their_frames():
    photons = Photons(np.array([3e3, 0.0, 0.0]), 60)  # a decay of 33 frames
    fine = field_noise(record_of(photons), score_fields(photons))
    coarse = Photons(photons.theta, 30, spacing=0.2)
    blocks = whole_record(coarse.g(0), 0.25, frames_per_block=2)
    fields = score_fields(coarse)
    fields += np.array([1.0, 1.0, 0.0, 0.0])[:, None, None] * np.eye(30)  # pairs inside a block
    merged = field_noise(blocks, fields)
    for mean in (0.2, 2.0, 20.0):
        of_frames, of_blocks = np.diag(fine.at(mean)), np.diag(merged.at(mean))
        np.testing.assert_allclose(of_blocks[:2] / of_frames[:2], 1, atol=0.05)


@settings(max_examples=50, deadline=None)
@given(f=st.floats(0.0, 1.0), contrast=st.floats(0.01, 1.0), mean=st.floats(0.01, 100.0))
def test_the_variance_of_pairs_is_that_of_counted_photons(f, contrast, mean):
    expected = (1 / mean + contrast) ** 2 * excess(f, contrast, mean)
    variance = pair_variance(contrast, np.array([1.0, f, f * f])).at(mean)[0, 0]
    cubes = 2 * contrast**3 * f * f * (f - 2 / 3)  # f³ counts as two thirds of f²
    np.testing.assert_allclose(variance + cubes, expected, rtol=1e-9)


def test_pixels_and_counts_are_found_from_residuals_of_their_noise():
    photons = Photons(FAST, 80)
    noise = cell_noise(record_of(photons), cells_of(80))
    columns = np.stack([np.ones(15), np.linspace(0, 1, 15)], axis=1)
    covariance = noise.at(2.0) / 400
    rng, logs = np.random.default_rng(0), []
    for _ in range(200):
        residual = rng.multivariate_normal(np.zeros(15), covariance, method="cholesky")
        fit = fit_noise(residual, columns, noise)
        assert fit.freedom == 13
        np.testing.assert_allclose(fit.weight.sum(), 1)
        np.testing.assert_allclose(fit.whitened @ fit.whitened, 13)
        logs.append(np.ravel(log_variances(noise.variances(np.eye(15)[None, :1]), [fit])))
    size, relative = np.array(logs).T
    assert abs(size.mean() - np.log(covariance[0, 0])) < 0.2
    np.testing.assert_allclose(size.std(), np.sqrt(np.median(relative)), rtol=0.35)


def test_counts_that_are_known_leave_the_pixels_to_be_found():
    photons = Photons(FAST, 80)
    noise = cell_noise(record_of(photons), cells_of(80))
    rng, columns = np.random.default_rng(1), np.ones((15, 1))
    residual = rng.multivariate_normal(np.zeros(15), noise.at(2.0) / 400, method="cholesky")
    fit = fit_noise(residual, columns, noise, np.array([2.0]))
    assert fit.weight.tolist() == [1.0]
    assert 150 < fit.pixels[0] < 1100
    assert fit.log_likelihood <= fit_noise(residual, columns, noise).log_likelihood + 0.2


def test_bins_that_repeat_each_other_have_the_noise_that_each_has_alone():
    noise = cell_noise(record_of(Photons(FAST, 80)), cells_of(80))
    rng, x = np.random.default_rng(2), np.linspace(0, 1, 15)
    columns = np.stack([np.ones(15), x], axis=1)
    roots = [np.linalg.cholesky(noise.at(mu) / 400) for mu in (0.1, 2, 20)]
    residuals = [root @ rng.standard_normal(15) for root in roots]
    for fit, residual in zip(
        fit_noise(np.stack(residuals, 1), columns, noise), residuals, strict=True
    ):
        alone = fit_noise(residual, columns * [1.0, 0.3] + x[:, None], noise)
        some = alone.weight > 1e-4
        np.testing.assert_allclose(fit.square[some], alone.square[some], rtol=1e-8)
        np.testing.assert_allclose(fit.weight, alone.weight, atol=1e-4)
        np.testing.assert_allclose(np.abs(fit.whitened), np.abs(alone.whitened), atol=1e-6)


def test_a_root_that_is_no_correlation_is_replaced_by_the_nearest():
    g = Photons(FAST, 20).g(0)
    nearest, distance = nearest_correlation(g)
    np.testing.assert_allclose(nearest, g, atol=1e-12)
    assert distance < 1e-12
    lag = np.abs(np.subtract.outer(np.arange(20), np.arange(20)))
    beats = np.abs(np.cos(0.7 * lag)) * np.exp(-0.05 * lag)
    near, distance = nearest_correlation(beats)
    assert np.linalg.eigvalsh(near).min() > -1e-12
    np.testing.assert_allclose(np.diag(near), 1)
    assert 0.01 < distance < 0.5
