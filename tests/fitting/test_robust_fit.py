"""A fit with a loss, from a store: passes, checkpoints, too few bins, profiles, report and refusals."""

from dataclasses import replace

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.cluster.workers import this_process
from homodyne_dask.errors import OptionError
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.sweep.layout import layout, runs
from homodyne_dask.sweep.plan import make_plan
from homodyne_dask.sweep.sweep import sweep_of
from tests.result_bits import result_bits
from tests.speckle_scans import RING, STATIC
from tests.synthetic import STRONG_FLOW, angles, fit_here, measured, store, with_outliers

START = dict(zip(hd.LAMINAR_FLOW.names, STRONG_FLOW * 1.1, strict=True))
LOSS = {"gap": "200 um", "loss": "huber", "loss_scale": 1.345, "initial": START}


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    clean = measured(STRONG_FLOW, 60, angles(9), contrast=0.3, sigma=0.005)
    return store(with_outliers(clean), tmp_path_factory.mktemp("outliers"), keep_outliers=True)


@pytest.fixture(scope="module")
def result(scan, tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "fit.ckpt"
    return fit_here(scan, hd.LAMINAR_FLOW, path, **LOSS)


@pytest.mark.long
def test_a_fit_with_outliers_finds_the_truth_and_the_report_names_the_loss(result, tmp_path):
    table = result.parameters
    error = np.sqrt(np.diag(result.errors.covariance_naive))
    pull = (table["optimum"].values - STRONG_FLOW) / error
    assert result.converged
    assert np.abs(pull).max() < 4
    assert np.isfinite(np.diag(result.covariance)).all()
    assert 0.8 < result.statistics.mean_weight < 0.98
    said = result.report(all=True)
    assert "huber, scale 1.345 σ, mean weight " in said
    assert result.diagnosis.scalings is None
    result.to_json(tmp_path / "result.json")
    assert hd.load_result(tmp_path / "result.json").report(all=True) == said


@pytest.mark.long
def test_resuming_after_any_pass_gives_the_same_bits(scan, result, tmp_path):
    path = tmp_path / "fit.ckpt"
    assert fit_here(scan, hd.LAMINAR_FLOW, path, stop_after=1, **LOSS) is None
    for passes in range(2, result.passes):
        given = LOSS | {"resume": True, "stop_after": passes}
        assert fit_here(scan, hd.LAMINAR_FLOW, path, **given) is None
    again = fit_here(scan, hd.LAMINAR_FLOW, path, resume=True, **LOSS)
    assert result_bits(again) == result_bits(result)


@pytest.mark.long
@pytest.mark.usefixtures("noise_not_of_speckle")
def test_with_few_bins_of_unknown_noise_a_profile_is_followed_in_naive_errors(scan):
    few = replace(scan, bins=scan.bins[::2])
    found = fit_here(few, hd.LAMINAR_FLOW, profile=("phi0",), **LOSS)
    assert found.covariance is None
    rise = found.errors.profiles["phi0"]["chisqr"].values - found.chisqr
    expected = found.errors.profiles["phi0"]["parabola"].values - found.chisqr
    np.testing.assert_allclose(rise, expected, rtol=0.3, atol=1e-9)


@pytest.mark.long
def test_outliers_that_all_bins_share_are_seen_though_bins_do_not_differ(tmp_path):
    bad = [20, 33, 47]
    ring = replace(RING, q=(0.01,) * 9, phi=tuple(range(0, 180, 20)), frames=60, pixels=200)
    scans = ring.scan(0)
    scans.c2[:, bad] += 0.3
    scans.c2[:, :, bad] += 0.3
    found = fit_here(store(scans, tmp_path), **STATIC, initial={"D0": 1e4}, loss="soft_l1")
    assert found.parameters.attrs["method"] == "cluster-robust"
    assert found.misfit
    assert found.findings.of("frames-differ")


@pytest.mark.long
def test_a_scale_far_below_the_noise_gives_no_errors_and_says_so(scan):
    found = fit_here(
        scan, hd.LAMINAR_FLOW, gap="200 um", initial=START, loss="huber", loss_scale=0.05
    )
    assert found.errors.covariance_naive is None
    assert found.covariance is None
    assert "give a larger loss_scale" in str(found)


@pytest.mark.long
def test_however_blocks_are_dealt_out_the_bits_are_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "homodyne_dask.sweep.layout.PAIRS_PER_SECOND", 1e6
    )  # else so small a scan is one task
    scan = store(
        with_outliers(measured(STRONG_FLOW, 1100, angles(2))), tmp_path, keep_outliers=True
    )
    request = prepare(scan, hd.LAMINAR_FLOW, **LOSS)
    work, beta = layout(scan, 1), np.array([[0.0, 0.2], [0.01, 0.19]])
    plan = make_plan(work, this_process(), "flow", 7, 2)
    sweep = sweep_of(plan, scan.selection, request.problem, None)
    found = []
    for threads in (1, 7):
        sweep.tasks = runs(work, threads)
        found.append((len(sweep.tasks), sweep.gram(STRONG_FLOW, beta).moments.tobytes()))
    assert found[0][0] < found[1][0]
    assert found[0][1] == found[1][1]


REFUSED = [
    ("a scale without a loss", {"loss_scale": 2.0}, "choose a loss"),
    ("no scale", {"loss": "huber", "loss_scale": 0.0}, "give a positive number"),
    ("a word", {"loss": "huber", "loss_scale": "big"}, "give a positive number"),
    ("float32", {"loss": "huber", "precision": "mixed"}, "use precision 'float64'"),
]


@pytest.mark.parametrize(("word", "given", "says"), REFUSED, ids=[w for w, *_ in REFUSED])
def test_what_makes_no_sense_is_refused(scan, word, given, says):
    with pytest.raises(OptionError, match=says):
        hd.fit(scan, hd.LAMINAR_FLOW, gap="200 um", **given)


@pytest.mark.slow
def test_two_workers_give_the_bits_of_none(scan, result):
    with hd.local_cluster(processes=2, threads=1) as client:
        assert result_bits(hd.fit(scan, hd.LAMINAR_FLOW, client=client, **LOSS)) == result_bits(
            result
        )
