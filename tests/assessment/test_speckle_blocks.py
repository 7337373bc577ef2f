"""Blocks of frames for the noise of one bin."""

import numpy as np

from homodyne_dask.assessment.cell_residuals import Interval
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
from homodyne_dask.models import BROWNIAN


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
