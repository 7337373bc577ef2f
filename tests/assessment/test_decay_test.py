"""Rings without a signal end as such; blocks of frames, for the test of a decay and the noise of one bin."""

import json
from dataclasses import replace

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.assessment import assess as estimate
from homodyne_dask.assessment.cell_residuals import Interval
from homodyne_dask.assessment.decay_test import _dyadic, frame_moments
from homodyne_dask.assessment.speckle_blocks import (
    BinFrames,
    BinModel,
    FittedPoint,
    FrameStretch,
    blocks_of,
    noise_of_cells,
)
from homodyne_dask.kernels.backend import evaluation_of
from homodyne_dask.kernels.backend_interface import Problem
from homodyne_dask.models import BROWNIAN, STATIC
from tests import reference
from tests.synthetic import CREEP, Q, angles, fit_here, measured, store

THETA = [20000.0, -0.4, 1000.0]
SIGMA = 0.02


def noise(folder, bins=3, n=40, seed=0, contrast=0.0, theta=THETA):
    scans = measured(theta, n, angles(bins), sigma=SIGMA, contrast=contrast, seed=seed)
    return store(scans, folder)


def test_a_decay_before_the_first_lag_is_not_seen(tmp_path):
    scan = noise(tmp_path, contrast=0.2, theta=[1e9, 0.0, 0.0])
    result = fit_here(scan, hd.STATIC, fixed={"alpha": 0.0, "D_offset": 0.0}, max_passes=30)
    assert result.outcome.name == "NO_DECAY"
    assert not result.converged
    assert np.isnan(result.parameters["value"].values[0])
    assert (result.parameters["value"].values[1:] == 0.0).all()
    assert result.errors.covariance_naive is None
    assert result.scaling["undetermined"].values.all()
    result.to_json(tmp_path / "summary.json")
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["parameters"]["D0"]["value"] is None
    assert hd.load_result(tmp_path).report(all=True) == result.report(all=True)


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("bins", [1, pytest.param(9, marks=pytest.mark.slow)])
def test_a_weak_decay_of_five_standard_errors_is_seen(bins, tmp_path):
    f = reference.f_physical(THETA, np.arange(40) / 3, Q, 0.0)[np.triu_indices(40, 1)]
    contrast = 5 * SIGMA / np.sqrt(bins * ((f - f.mean()) ** 2).sum())
    result = fit_here(
        noise(tmp_path, bins, seed=4, contrast=contrast), hd.STATIC,
        fixed={"alpha": -0.4, "D_offset": 1000.0},
    )  # fmt: skip
    assert result.outcome.name == "CONVERGED", str(result)


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_decay_in_the_one_bin_across_a_strong_flow_is_seen(seed, tmp_path):
    flow = [500.0, 0.0, 0.0, 0.05, 0.0, 0.0, 0.0]
    phi = (0, 20, 40, 60, 75, 90, 105, 120, 140, 160)
    scan = store(measured(flow, 40, phi, dt=0.2, contrast=0.3, sigma=0.01, seed=seed), tmp_path)
    fixed = dict(zip(hd.LAMINAR_FLOW.names[1:], flow[1:], strict=True))
    result = fit_here(scan, hd.LAMINAR_FLOW, gap="200 um", fixed=fixed)
    assert result.outcome.name == "CONVERGED", str(result)
    assert result.scaling["undetermined"].values.sum() == 0


def test_a_negative_contrast_is_no_decay(tmp_path):
    scan = noise(tmp_path, contrast=-0.05)
    result = fit_here(scan, hd.STATIC, fixed={"alpha": -0.4, "D_offset": 1000.0})
    assert result.outcome.name == "NO_DECAY"
    assert result.findings.of("no-decay")[0].numbers["rises"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "bins"), [("static", 1), ("static", 3), ("static", 9), ("laminar_flow", 9)]
)
def test_noise_alone_is_taken_for_a_decay_as_rarely_as_stated(model, bins, tmp_path):
    gap = "200 um" if model == "laminar_flow" else None
    outcomes = [
        fit_here(
            noise(tmp_path, bins, seed=seed), hd.MODELS[model], gap=gap, max_passes=40
        ).outcome.name
        for seed in range(20)
    ]
    assert outcomes.count("CONVERGED") < 2, outcomes


def test_the_variance_is_the_sum_over_pairs_of_pairs_that_share_a_block():
    s = np.triu(np.random.default_rng(0).standard_normal((5, 5)))
    pairs = list(zip(*np.triu_indices(5), strict=True))
    wanted = sum(s[pair] * s[other] for pair in pairs for other in pairs if set(pair) & set(other))
    assert _dyadic(s) == pytest.approx(wanted)


@pytest.mark.long
@pytest.mark.usefixtures("noise_not_of_speckle")
def test_blocks_of_frames_are_those_of_the_window_alone(tmp_path, monkeypatch):
    seen = []

    def kept(sweep, request, theta, linear):
        of_blocks = frame_moments(sweep, request, theta, linear)
        seen.append((of_blocks, sweep.gram(theta, linear).moments))
        return of_blocks

    monkeypatch.setattr(estimate, "frame_moments", kept)
    scans = measured((20000.0, 0.0, 0.0), 240, np.zeros(3), sigma=0.01)
    fixed = {"alpha": 0.0, "D_offset": 0.0}
    fit_here(store(scans, tmp_path).select(frames=(200, 240)), STATIC, fixed=fixed)
    [(moments, of_all)] = seen
    assert moments.shape[1:] == (10, 10, 3, 3)
    np.testing.assert_allclose(moments.sum((1, 2)), of_all[:, :3, :3], rtol=1e-9)


@pytest.mark.usefixtures("noise_not_of_speckle")
def test_noise_that_pairs_share_with_their_frames_is_no_decay(tmp_path):
    scans = measured(CREEP, 40, angles(3), sigma=0.002, contrast=0.0, seed=4)
    of_frame = 0.01 * np.random.default_rng(4).standard_normal((3, 40))
    c2 = scans.c2 + of_frame[:, :, None] + of_frame[:, None, :]
    scan = store(replace(scans, c2=c2.astype(np.float32)), tmp_path)
    result = fit_here(scan, STATIC, fixed={"D_offset": CREEP[2]})
    assert result.outcome.name == "NO_DECAY"


def test_a_cell_beyond_the_middle_of_the_last_block_has_noise():
    time, theta = np.arange(200) * 0.1, np.array([5e4, 0.0, 0.0])
    point = evaluation_of(BROWNIAN).point(Problem(BROWNIAN), theta, time)
    model = BinModel(FittedPoint(point, time, np.ones(3, bool), np.ones(3)), 0.0054, 0.0)
    frames = BinFrames((0, 200), np.ones(200, bool), np.ones(200), 1)
    edges = np.concatenate([[0, 4, 6, 8], np.arange(12, 201, 4)])
    blocks = blocks_of(model, frames, [FrameStretch(edges, (0, 200), (0, 200))], 0.3)
    noise = noise_of_cells(blocks, [Interval(6, 8, 100, 192), Interval(6, 8, 192, 200)])
    whole = noise.at(1.0)
    assert np.isfinite(whole).all()
    assert (np.linalg.eigvalsh(whole) > 0).all()
