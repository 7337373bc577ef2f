"""The sample of pairs at which f is interpolated stands for all pairs of the record."""

import numpy as np
import pytest

from homodyne_dask.fitting.surrogate.pair_sample import sample_pairs
from tests.synthetic import angles, measured, store


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    scan = store(measured([2e4, -0.4, 500.0], 60, angles(4)), tmp_path_factory.mktemp("pairs"), "S")
    scan = scan.select(frames=(3, 60))
    return [sample_pairs(scan, 1, np.random.default_rng(seed)) for seed in range(40)]


def test_sums_over_a_sample_are_on_average_those_over_all_pairs(samples):
    i, j = np.triu_indices(57, 1)
    for of in (lambda i, j: np.ones(len(i)), lambda i, j: 1 / (1.0 + i), lambda i, j: j * 1.0):
        wanted = of(i, j).sum()
        found = [(s.number * of(s.i - 3.0, s.j - 3.0)).sum() for s in samples]
        error = np.std(found) / np.sqrt(len(found))
        assert np.mean(found) == pytest.approx(wanted, abs=4 * error + 0.01 * wanted)


def test_early_frames_are_sampled_more_than_late_ones(samples):
    first = np.mean([(s.i < 9).mean() for s in samples])
    assert first > 0.25  # a tenth of the frames
    for s in samples:
        assert (s.i >= 3).all()
        assert (s.j < 60).all()
        assert (s.j > s.i).all()
