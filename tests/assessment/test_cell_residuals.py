"""Means of f over cells of age and lag, against sums over all their pairs."""

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.assessment.cell_residuals import (
    Interval,
    averaged_cells,
    cell_points,
    stored_cells,
)
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.sweep.sweep import sweep_of
from tests.synthetic import angles, measured, plan_here, store

FRAMES = 300
CELLS = [
    Interval(0, 1, 1, 2),
    Interval(3, 4, 6, 8),
    Interval(48, 64, 16, 24),
    Interval(250, 268, 24, 32),
    Interval(264, 282, 12, 16),
    Interval(282, 300, 1, 2),
    Interval(282, 300, 8, 12),
    Interval(210, 228, 64, 96),
    Interval(200, 201, 90, 100),
    Interval(250, 268, 48, 64),
]


def decay(i, j):
    return np.exp(-(j - i) / 20 * (1 + i / FRAMES))


def masked_pairs(name, frames):
    i, j = np.triu_indices(frames, 1)
    lag, mask = j - i, np.zeros((frames, frames), bool)
    mask[i, j] = {
        "lags 1-9": lag < 10,
        "even lags": lag % 2 == 0,
        "a block": (i < frames // 3) & (j > frames // 2) & (j < 0.8 * frames),
        "a third": np.random.default_rng(3).random(len(i)) < 0.3,
        "a frame": (i == 40) | (j == 40),
    }[name]
    return mask


def averaged(scan, **options):
    request = prepare(scan, hd.STATIC, **options)
    sweep = sweep_of(plan_here(request), scan.selection, request.problem, None)
    return averaged_cells(sweep, request)


def pairs_of(cell, use):
    i, j = np.meshgrid(np.arange(cell.first, cell.stop), np.arange(len(use)), indexing="ij")
    inside = (j - i >= cell.shortest) & (j - i < cell.end) & use[i] & use[j]
    return i[inside], j[inside]


def assert_means(cells, c2, use, frames, min_lag):
    assert cells.intervals
    for n, cell in enumerate(cells.intervals):
        i, j = pairs_of(cell, use)
        assert cell.shortest >= min_lag
        assert frames[0] <= i.min() <= j.max() < frames[1]
        np.testing.assert_array_equal(cells.pairs[:, n], len(i))
        np.testing.assert_allclose(cells.c2[:, n], c2[:, i, j].mean(1), rtol=1e-6)


@pytest.mark.parametrize("masked", [(), (255,), (0, 1, 60, 270, 299)])
def test_means_over_cells_are_those_of_all_pairs_even_at_the_end_of_the_record(masked):
    use = np.ones(FRAMES, bool)
    use[list(masked)] = False
    points = cell_points(CELLS, use)
    means = points.mean(decay(points.i, points.j), len(CELLS))
    for n, cell in enumerate(CELLS):
        i, j = pairs_of(cell, use)
        np.testing.assert_allclose(points.weight[points.cell == n].sum(), len(i), atol=1e-9)
        if len(i):
            np.testing.assert_allclose(means[n], decay(i, j).mean(), rtol=1e-8)
        else:
            assert np.isnan(means[n])


def test_means_of_fringes_are_those_of_all_pairs(tmp_path):
    scan = store(measured(np.array([2e4, -0.2, 0.0]), 100, angles(2)), tmp_path)
    request = prepare(scan, "damped_cosine")
    cells = averaged_cells(
        sweep_of(plan_here(request), scan.selection, request.problem, None), request
    )
    (points,) = cells.points

    def fringes(i, j):
        return np.cos(2 * np.pi * 0.29 * (j - i))

    means = points.mean(fringes(points.i, points.j), len(cells.intervals))
    for n, cell in enumerate(cells.intervals):
        expected = fringes(*pairs_of(cell, np.ones(100, bool))).mean()
        assert means[n] == pytest.approx(expected, abs=1e-6), cell


@pytest.mark.parametrize("frames", [None, (0, 50), (13, 70)])
@pytest.mark.parametrize("min_lag", [1, 3])
def test_stored_averages_are_those_of_the_pairs_of_their_cells(frames, min_lag, tmp_path):
    scans = measured(np.array([2e4, -0.2, 0.0]), 80, angles(2))
    scan = store(scans, tmp_path).select(frames=frames)
    stored = stored_cells(scan, min_lag)
    use, (first, stop) = np.ones(80, bool), frames or (0, 80)
    assert_means(stored, scans.c2, use, (first, stop), min_lag)


@pytest.mark.parametrize(("frames", "min_lag"), [((40, 70), 1), ((58, 66), 1), ((33, 78), 5)])
@pytest.mark.parametrize("masked", [(), (45, 46, 62)])
def test_a_window_of_few_stored_intervals_is_averaged_from_its_pairs(
    frames, min_lag, masked, tmp_path
):
    scans = measured(np.array([2e4, -0.2, 0.0]), 100, angles(2))
    scans.c2[:, masked, :] = scans.c2[:, :, masked] = np.nan
    scan = store(scans, tmp_path).select(frames=frames)
    use = np.ones(100, bool)
    use[list(masked)] = False
    cells, (first, stop) = averaged(scan, min_lag=min_lag), frames
    inside = use & (np.arange(100) >= first) & (np.arange(100) < stop)
    np.testing.assert_array_equal(scan.use, inside)
    assert len(cells.age_edges) > len(stored_cells(scan, min_lag).age_edges)
    assert_means(cells, scans.c2, inside, frames, min_lag)


@pytest.mark.parametrize(
    ("selected", "min_lag", "read"),
    [
        ({}, 1, False),
        ({}, 5, True),
        ({"frames": (7, 93)}, 1, True),
        ({"exclude": {"frames": [(50, 53), (71, 72)]}}, 1, True),
    ],
)
def test_a_weighted_fit_loses_no_pair_of_its_selection(selected, min_lag, read, tmp_path):
    scans = measured(np.array([2e4, -0.2, 0.0]), 100, angles(2))
    scan = store(scans, tmp_path).select(**selected)
    cells = averaged(scan, min_lag=min_lag, weighting="speckle")
    i, j = np.nonzero(np.outer(scan.use, scan.use))
    assert (cells.known_shares is not None) == read
    np.testing.assert_array_equal(cells.pairs.sum(1), (j - i >= min_lag).sum())
    (points,) = cells.points
    weight = np.bincount(points.cell, points.weight, len(cells.intervals))
    np.testing.assert_allclose(weight, cells.pairs[0])


@pytest.mark.parametrize("frames", [100, 700])
@pytest.mark.parametrize(
    "masks", [["lags 1-9"], ["even lags"], ["a block", "a third", "lags 1-9", "a frame"]]
)
def test_means_of_f_are_those_over_the_known_pairs_of_each_bin(masks, frames, tmp_path):
    scans = measured(np.array([2e3, -0.2, 0.0]), frames, angles(len(masks)))
    for b, name in enumerate(masks):
        scans.c2[b, masked_pairs(name, frames)] = np.nan
    cells = averaged(store(scans, tmp_path))
    whole = np.ones(frames, bool)
    for b in range(len(masks)):
        points, has_value = cells.points_of(b), np.isfinite(scans.c2[b])
        means = points.mean(decay(points.i, points.j), len(cells.intervals))
        for n, cell in enumerate(cells.intervals):
            i, j = pairs_of(cell, whole)
            i, j = i[has_value[i, j]], j[has_value[i, j]]
            assert cells.pairs[b, n] == len(i)
            if len(i):
                np.testing.assert_allclose(cells.c2[b, n], scans.c2[b, i, j].mean(), rtol=1e-6)
                np.testing.assert_allclose(means[n], decay(i, j).mean(), atol=2e-5)
                assert points.j[points.cell == n].max() < frames


def test_single_unknown_pairs_of_a_long_record_are_not_read_for(tmp_path):
    scans = measured(np.array([2e3, -0.2, 0.0]), 300, angles(2))
    scan = store(scans, tmp_path, "whole")
    scans.c2[1, 30, 200] = scans.c2[0, 3, 140] = np.nan
    other = store(scans, tmp_path, "two")
    for data in (scan, other):
        assert averaged(data).known_shares is None
