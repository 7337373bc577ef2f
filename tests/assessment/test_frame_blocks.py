"""Blocks of frames: in the test for a decay, whose pairs share them, and for the noise of one bin."""

from dataclasses import replace

import numpy as np
import pytest

from homodyne_dask.assessment import assess as estimate
from homodyne_dask.assessment.cell_residuals import Interval
from homodyne_dask.assessment.decay_test import _dyadic
from homodyne_dask.assessment.frame_blocks import frame_moments
from homodyne_dask.assessment.speckle_blocks import (
    BinFrames,
    BinModel,
    FittedPoint,
    FrameStretch,
    blocks_of,
    noise_of_cells,
)
from homodyne_dask.kernels.backend import evaluation_of
from homodyne_dask.kernels.problem import Problem
from homodyne_dask.models import BROWNIAN, STATIC
from tests.synthetic import CREEP, angles, fit_here, measured, store


def test_the_variance_is_the_sum_over_pairs_of_pairs_that_share_a_block():
    s = np.triu(np.random.default_rng(0).standard_normal((5, 5)))
    pairs = list(zip(*np.triu_indices(5), strict=True))
    wanted = sum(s[one] * s[two] for one in pairs for two in pairs if set(one) & set(two))
    assert _dyadic(s) == pytest.approx(wanted)


@pytest.mark.usefixtures("noise_not_of_speckle")
def test_blocks_of_frames_are_those_of_the_window_alone(tmp_path, monkeypatch):
    """Else a short window of a long record takes memory for all pairs of short blocks of all of it."""
    seen = []

    def kept(sweep, request, state):
        seen.append((frame_moments(sweep, request, state), state.reduced.gram.moments))
        return seen[-1][0]

    monkeypatch.setattr(estimate, "frame_moments", kept)
    scans = measured((20000.0, 0.0, 0.0), 240, np.zeros(3), sigma=0.01)
    fixed = {"alpha": 0.0, "D_offset": 0.0}
    fit_here(store(scans, tmp_path).select(frames=(200, 240)), STATIC, fixed=fixed)
    [(moments, of_all)] = seen
    assert moments.shape[1:] == (10, 10, 3, 3)
    np.testing.assert_allclose(moments.sum((1, 2)), of_all[:, :3, :3], rtol=1e-9)


@pytest.mark.usefixtures("noise_not_of_speckle")
def test_noise_that_pairs_share_with_their_frames_is_no_decay(tmp_path):
    """As noise of single pairs it is one, by the naive error."""
    scans = measured(CREEP, 40, angles(3), sigma=0.002, contrast=0.0, seed=4)
    of_frame = 0.01 * np.random.default_rng(4).standard_normal((3, 40))
    c2 = scans.c2 + of_frame[:, :, None] + of_frame[:, None, :]
    scan = store(replace(scans, c2=c2.astype(np.float32)), tmp_path)
    result = fit_here(scan, STATIC, fixed={"D_offset": CREEP[2]})
    assert result.outcome.name == "NO_DECAY"


def test_a_cell_beyond_the_middle_of_the_last_block_has_noise():
    """It had no pair of blocks, and the covariance of all cells was not a number."""
    time, theta = np.arange(200) * 0.1, np.array([5e4, 0.0, 0.0])
    point = evaluation_of(BROWNIAN).point(Problem(BROWNIAN), theta, time)
    model = BinModel(FittedPoint(point, time, np.ones(3, bool), np.ones(3)), 0.0054, 0.0)
    frames = BinFrames((0, 200), np.ones(200, bool), np.ones(200), 1)
    edges = np.concatenate([[0, 4, 6, 8], np.arange(12, 201, 4)])
    blocks = blocks_of(model, frames, FrameStretch(edges, (0, 200), (0, 200)), 0.3)
    noise = noise_of_cells(blocks, [Interval(6, 8, 100, 192), Interval(6, 8, 192, 200)])
    whole = noise.at(1.0)
    assert np.isfinite(whole).all()
    assert (np.linalg.eigvalsh(whole) > 0).all()
