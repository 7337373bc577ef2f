import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homodyne_dask.errors import SourceError
from homodyne_dask.store import schema
from homodyne_dask.store.cells import age_edges, lag_edges
from ingest import store_writer as block_means
from ingest.bin_task import exclude_outliers
from ingest.clean import clean, measure_contrast, measure_scatter
from tests.ingest_files import decay, noisy

SHAPES = {
    "upper, zeros below": lambda c: np.triu(c),
    "upper, NaN below": lambda c: np.where(np.tri(len(c), k=-1), np.nan, c),
    "lower, zeros above": lambda c: np.tril(c),
    "lower, NaN above": lambda c: np.where(np.tri(len(c), k=-1).T, np.nan, c),
    "full": lambda c: c,
    "full, rounded": lambda c: c * (1 + 1e-7 * np.tri(len(c), k=-1)),
    "full, float64": lambda c: c.astype(np.float64),
    "full, Fortran order": lambda c: np.asfortranarray(c),
    "upper, no diagonal": lambda c: np.triu(c, 1),
}


@pytest.mark.parametrize("n", [3, 17, 600])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_way_to_hold_a_matrix_gives_the_same_upper_half(shape, n):
    c2 = noisy(n)
    expected = np.where(np.tri(n), np.float32(np.nan), c2)
    cleaned = clean(SHAPES[shape](c2), n, "bin 1")
    assert cleaned.c2.tobytes() == expected.astype(np.float32).tobytes()
    assert (cleaned.baseline, cleaned.dead.size) == (1, 0)
    assert (cleaned.zeros, cleaned.infinite, cleaned.one_sided) == (0, 0, 0)


@pytest.mark.parametrize("shape", SHAPES)
def test_0_is_missing_in_an_empty_half_and_in_a_dead_frame_only(shape):
    c2 = noisy(40)
    c2[3, 7] = c2[7, 3] = c2[20, 39] = c2[39, 20] = 0
    c2[[5, 39]] = c2[:, [5, 39]] = 0
    cleaned = clean(SHAPES[shape](c2), 40, "bin 1")
    assert (cleaned.zeros, cleaned.dead.tolist(), cleaned.baseline) == (1, [5, 39], 1)
    assert (cleaned.infinite, cleaned.one_sided) == (0, 0)
    assert cleaned.c2[3, 7] == 0
    assert np.count_nonzero(~np.isnan(cleaned.c2)) == 38 * 37 // 2


@settings(deadline=None, max_examples=60)
@given(st.integers(4, 40), st.integers(0, 2**32 - 1), st.data())
def test_what_is_no_data_becomes_nan_and_zeros_stay_and_both_are_counted(n, seed, data):
    c2 = noisy(n, seed).astype(np.float64)
    pairs = st.tuples(st.integers(0, n - 2), st.integers(1, n - 1)).filter(lambda p: p[0] < p[1])
    holes = data.draw(st.lists(pairs, max_size=2, unique=True))
    values = data.draw(st.lists(st.sampled_from([0.0, np.nan, np.inf, -np.inf, 1e300]), min_size=2))
    for pair, value in zip(holes, values, strict=False):
        c2[pair] = c2[pair[::-1]] = value
    written = [value for _, value in zip(holes, values, strict=False)]
    cleaned = clean(c2, n, "bin 1")
    assert cleaned.zeros == np.count_nonzero(cleaned.c2 == 0) == written.count(0.0)
    assert cleaned.infinite == sum(np.isinf(value) or value == 1e300 for value in written)
    known_pairs = np.argwhere(~np.isnan(cleaned.c2))
    assert len(known_pairs) == n * (n - 1) // 2 - len(written) + written.count(0.0)
    assert all(i < j for i, j in known_pairs)


@pytest.mark.parametrize(
    ("word", "raw", "message"),
    [
        ("asymmetric", noisy(10) + 0.125 * np.tri(10, k=-8), r"largest \|C - Cᵀ\| is 0.125"),
        ("another size", noisy(9), "not a 10×10"),
        ("complex", noisy(10).astype(complex), "not a 10×10 matrix"),
        ("all zero", np.zeros((10, 10)), "contains no data"),
        ("all NaN", np.full((10, 10), np.nan), "contains no data"),
        ("half a half", noisy(10) * (np.triu(np.ones((10, 10))) + np.eye(10)[::-1]), "neither"),
    ],
)
def test_what_is_no_two_time_matrix_is_refused(word, raw, message):
    with pytest.raises(SourceError, match=message):
        clean(raw, 10, "bin 1")


@pytest.mark.parametrize("offset", [-1, -1.06, -0.98])
def test_baseline_0_becomes_baseline_1(offset):
    c2 = noisy(60).astype(np.float64)
    cleaned = clean(c2 + offset, 60, "bin 1")
    assert cleaned.baseline == 0
    np.testing.assert_allclose(np.triu(cleaned.c2, 1), np.triu(c2 + offset + 1, 1), rtol=1e-6)


@pytest.mark.parametrize("sigma", [0.001, 0.02, 0.3])
@pytest.mark.parametrize("n", [120, 900])
def test_scatter_is_the_noise_within_5_percent(n, sigma):
    c2 = clean(noisy(n, 1, sigma), n, "bin 1").c2
    c2[5, 60:90] = 1e30
    assert measure_scatter(c2) == pytest.approx(sigma, rel=0.05)


@pytest.mark.parametrize("n", [3, 4, 6])
def test_scatter_of_too_few_frames_is_unknown(n):
    assert measure_scatter(clean(noisy(n), n, "bin 1").c2) is None


def test_contrast_is_the_first_lag_over_the_longest_and_no_outlier_moves_it():
    noiseless = decay(400)
    c2 = clean(noisy(400), 400, "bin 1").c2
    expected = np.diagonal(noiseless, 1).mean() - noiseless[0, -1]
    c2[7, 8], c2[0, 399] = 1e30, -1e30
    assert measure_contrast(c2) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("n", [3, 4, 5, 16, 17, 100, 300, 2950])
def test_edges_cover_every_frame_once_and_never_step_wide(n):
    lags, ages = lag_edges(n), age_edges(n)
    for edges in (lags, ages):
        assert (edges[0], edges[-1]) == (0, n)
        assert (np.diff(edges) > 0).all()
    first_lags = [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]
    assert lags[:-1].tolist()[:13] == [edge for edge in first_lags if edge < n]
    assert np.diff(ages).max() <= max(1, n // 16)


def holed(n):
    c2 = clean(noisy(n, 2), n, "bin 1").c2
    c2[3, 5:40:3] = np.nan
    use = np.ones(n, dtype=bool)
    use[[0, 11]] = False
    return c2, use


@pytest.mark.parametrize("n", [3, 37, 50])
def test_cuts_are_the_means_of_a_slow_double_loop(n):
    c2, use = holed(n) if n > 12 else (clean(noisy(n), n, "b").c2, np.ones(n, dtype=bool))
    time = np.cumsum(np.random.default_rng(0).uniform(0.5, 1.5, n))
    ages, lags = age_edges(n), lag_edges(n)
    cells = {}
    for i in range(n):
        for j in range(i + 1, n):
            cell = np.searchsorted(ages, i, "right") - 1, np.searchsorted(lags, j - i, "right") - 1
            cells.setdefault(cell, []).append((i, j))
    t1, t2 = block_means.cell_times(time, ages, lags)
    mean, count = block_means.cell_averages(block_means.mask_matrix(c2.copy(), use), ages, lags)
    for cell in np.ndindex(count.shape):
        pairs = cells.get(cell, [])
        values = [c2[i, j] for i, j in pairs if use[i] and use[j] and not np.isnan(c2[i, j])]
        assert count[cell] == len(values)
        check_mean(mean[cell], values)
        check_mean(t1[cell], [time[i] for i, _ in pairs])
        check_mean(t2[cell], [time[j] for _, j in pairs])


def test_means_of_frames_are_those_of_all_their_known_pairs():
    c2, use = holed(37)
    means = block_means.frame_means(block_means.mask_matrix(c2.copy(), use))
    both = np.where(np.tri(37, dtype=bool).T, c2, c2.T)
    is_known = np.isfinite(both) & np.outer(use, use) & ~np.eye(37, dtype=bool)
    alike = [k for k in range(37) if is_known[k].any() and np.isfinite(means[k])]
    assert len(alike) > 4
    for i in alike:
        check_mean(means[i], both[i, is_known[i]])
    for i in range(2, 35):
        pairs_beside = is_known[[i - 2, i - 1, i + 1, i + 2]].sum() / 4
        change = is_known[i].sum() / pairs_beside - 1
        assert np.isnan(means[i]) == (abs(change) > 0.02) or not is_known[i].any()


def check_mean(mean, values):
    if len(values):
        assert mean == pytest.approx(np.mean(values, dtype=np.float64), rel=1e-6)
    else:
        assert np.isnan(mean)


@pytest.mark.parametrize(
    ("n", "frames"), [(127, {}), (128, {4: 32}), (511, {4: 127}), (523, {4: 130, 16: 32})]
)
def test_levels_are_the_means_of_a_slow_double_loop(n, frames):
    c2, use = holed(n)
    c2[20:24, 36:39] = np.nan
    c2[20:24, 40:42] = np.nan
    means_by_level = block_means.level_means(block_means.mask_matrix(c2.copy(), use))
    assert {level: len(mean) for level, mean in means_by_level.items()} == frames
    assert schema.factors(n) == [1, *frames]
    c2[~use] = c2[:, ~use] = np.nan
    for level, mean in means_by_level.items():
        for i, j in np.ndindex(len(mean), min(len(mean), 40)):
            block = c2[i * level : (i + 1) * level, j * level : (j + 1) * level]
            known_values = block[~np.isnan(block)]
            enough = i < j and known_values.size >= level**2 / 2
            check_mean(mean[i, j], known_values.tolist() if enough else [])
    if frames:
        assert np.isnan(means_by_level[4][5, [9, 10]]).tolist() == [True, False]


def test_pairs_far_from_their_neighbours_are_left_out_and_no_others():
    n, rng = 150, np.random.default_rng(3)
    c2 = clean(noisy(n), n, "bin 1").c2
    c2[5:9, 40:44] = np.nan
    sigma = measure_scatter(c2)
    above = np.triu(np.ones((n, n), bool), 2) & ~np.isnan(c2)
    hit = above & (rng.random((n, n)) < 0.02)
    spoilt = np.where(hit, c2 + sigma * rng.uniform(20, 200, (n, n)), c2).astype(np.float32)
    spoilt[0, n - 1], spoilt[70, 90], hit[70, 90] = 1e30, 1e30, True
    pairs = block_means.mask_matrix(spoilt.copy(), np.ones(n, bool))
    was_known = pairs.is_known.copy()
    number = exclude_outliers(pairs, sigma, np.arange(n) * 0.1)
    excluded = was_known & ~pairs.is_known
    assert number == excluded.sum()
    # the corner has no neighbour, and three outliers of five hide each other
    assert (excluded & hit).sum() > 0.99 * hit.sum()
    assert (excluded & ~hit).sum() < 0.01 * hit.sum()
    assert (pairs.value[~pairs.is_known] == 0).all()
    clean_pairs = block_means.mask_matrix(c2.copy(), np.ones(n, bool))
    assert exclude_outliers(clean_pairs, sigma, np.arange(n) * 0.1) == 0
    uneven = block_means.mask_matrix(spoilt.copy(), np.ones(n, bool))
    assert exclude_outliers(uneven, sigma, np.cumsum(rng.uniform(0.5, 1.5, n))) == 0
