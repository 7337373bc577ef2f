"""Rings without a signal end as such, and their parameters are not reported as measured."""

import json

import numpy as np
import pytest

import homodyne_dask as hd
from tests import reference
from tests.synthetic import Q, angles, fit_here, measured, store

THETA = [20000.0, -0.4, 1000.0]
SIGMA = 0.02


def noise(folder, bins=3, n=40, seed=0, contrast=0.0, theta=THETA):
    scans = measured(theta, n, angles(bins), sigma=SIGMA, contrast=contrast, seed=seed)
    return store(scans, folder)


@pytest.fixture(scope="module")
def nothing(tmp_path_factory):
    """A scan whose decay is over before the first lag, and its fit."""
    scan = noise(tmp_path_factory.mktemp("nothing"), contrast=0.2, theta=[1e9, 0.0, 0.0])
    return scan, fit_here(scan, hd.STATIC, fixed={"alpha": 0.0, "D_offset": 0.0}, max_passes=30)


def test_a_decay_before_the_first_lag_is_not_seen(nothing):
    _, result = nothing
    assert result.outcome.name == "NO_DECAY"
    assert not result.converged
    assert np.isnan(result.parameters["value"].values[0])
    assert (result.parameters["value"].values[1:] == 0.0).all()
    assert result.errors.covariance_naive is None
    assert result.scaling["undetermined"].values.all()
    text = result.report(all=True)
    assert text.split("\n\n")[1].startswith("no decay seen: ")
    assert "No parameter is determined" in " ".join(text.split())
    assert "no decay" in text.split("label")[1]


def test_a_result_without_a_decay_is_read_as_it_was_written(nothing, tmp_path):
    _, result = nothing
    result.to_json(tmp_path / "summary.json")
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["parameters"]["D0"]["value"] is None
    assert hd.load_result(tmp_path).report(all=True) == result.report(all=True)


@pytest.mark.parametrize("bins", [1, pytest.param(9, marks=pytest.mark.slow)])
def test_a_weak_decay_of_five_standard_errors_is_seen(bins, tmp_path):
    f = reference.f_physical(THETA, np.arange(40) / 3, Q, 0.0)[np.triu_indices(40, 1)]
    contrast = 5 * SIGMA / np.sqrt(bins * ((f - f.mean()) ** 2).sum())
    result = fit_here(
        noise(tmp_path, bins, seed=4, contrast=contrast), hd.STATIC,
        fixed={"alpha": -0.4, "D_offset": 1000.0},
    )  # fmt: skip
    assert result.outcome.name == "CONVERGED", str(result)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_decay_in_the_one_bin_across_a_strong_flow_is_seen(seed, tmp_path):
    """The shear of the others is over within a frame."""
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
    assert "c2 rises where the model falls" in " ".join(str(result).split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "bins"), [("static", 1), ("static", 3), ("static", 9), ("laminar_flow", 9)]
)
def test_noise_alone_is_taken_for_a_decay_as_rarely_as_stated(model, bins, tmp_path):
    """One in a hundred, so hardly two of twenty."""
    gap = "200 um" if model == "laminar_flow" else None
    outcomes = [
        fit_here(
            noise(tmp_path, bins, seed=seed), hd.MODELS[model], gap=gap, max_passes=40
        ).outcome.name
        for seed in range(20)
    ]
    assert outcomes.count("CONVERGED") < 2, outcomes
