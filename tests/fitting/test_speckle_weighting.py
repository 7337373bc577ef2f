"""Fits weighted by the covariance of speckle, on counted photons and against dense algebra."""

from dataclasses import replace

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.assessment.fit_end import FitEnd
from homodyne_dask.assessment.shared_speckle import SharedSpeckle
from homodyne_dask.fitting import speckle_weighting
from homodyne_dask.fitting.minimize import FitRecord
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.fitting.speckle_weighting import SpeckleWeighting, minimize_weighted
from homodyne_dask.results.data.findings import MISFIT
from homodyne_dask.sweep.sweep import sweep_of
from tests.applications import public
from tests.speckle_scans import (
    FLOW,
    RING,
    SHEAR,
    STATIC,
    STILL,
    Photons,
    intervals_hold_the_truth,
    seen_twice,
)
from tests.synthetic import measured, module_scan, plan_here, store

BRIGHT = replace(RING, mean=8.0)
TWELVE = Photons(FLOW, q=(0.0054,) * 12, phi=tuple(np.arange(-82.5, 90, 15)), mean=8.0)
SIX = Photons(FLOW, q=(0.0054,) * 6, phi=(-75, -45, -15, 15, 45, 75), mean=8.0)


def fitted(scan, options=STATIC, **more):
    model, others = options["model"], {k: v for k, v in options.items() if k != "model"}
    return hd.fit(scan, model, weighting="speckle", **others | more)


bright = module_scan(lambda: BRIGHT.scan(1))


@pytest.fixture(scope="module")
def result(bright):
    return fitted(bright)


def test_errors_are_smaller_than_those_of_pairs_and_named_by_their_method(bright, result):
    pairs = hd.fit(bright, **STATIC)
    ratio = result.parameters["stderr"].values[:2] / pairs.parameters["stderr"].values[:2]
    assert (ratio < 0.7).all()
    assert result.converged
    assert result.parameters["method"].values.tolist() == ["speckle", "speckle", ""]
    assert (result.parameters["dof"].values[:2] > 50).all()
    value, stderr = (result.parameters[name].values[:2] for name in ("value", "stderr"))
    assert (np.abs(value - STILL[:2]) < 4 * stderr).all()
    assert 0.7 < result.redchi < 1.3
    assert result.config["averages"] == "stored"


def test_weights_gain_little_where_residuals_are_white_whatever_counts_say(tmp_path):
    scan = measured(STILL, 100, q=0.01, dt=0.1, sigma=0.02)
    counted = {"sigma": None, "counts": np.full((1, 100), 2.0), "pixels": np.array([1225])}
    found = hd.fit(store(scan, tmp_path, **counted), **STATIC)
    assert (found.errors.noise["weighted_ratio"].values[:2] > 0.85).all()


def test_noise_weights_where_pairs_do_not_determine_all_parameters(tmp_path):
    """Such fits ended with χ² of pairs as if these were independent, and right models were called wrong."""
    still = replace(RING, q=(0.01,) * 3, phi=(0.0, 30.0, 60.0), pixels=600)
    result = fitted(store(still.scan(3), tmp_path), {"model": hd.STATIC})
    assert result.redchi < 1.5
    assert not result.findings.at_least("error")


@pytest.mark.long
def test_a_wrong_model_is_seen(tmp_path):
    static = {"model": hd.STATIC, "fixed": {"D_offset": 1000.0}}
    found = fitted(store(SIX.scan(1), tmp_path), static)
    assert found.misfit
    assert not MISFIT.isdisjoint(found.findings.codes)


@pytest.mark.long
def test_the_posterior_is_as_wide_as_the_errors_and_reads_no_pair(bright, result):
    table = result.parameters
    found = public("posterior")(result, bright, draws=500)
    free = found.theta[:, :2]
    np.testing.assert_allclose(free.std(axis=0), table["stderr"].values[:2], rtol=0.25)
    away = np.median(free, axis=0) - table["value"].values[:2]
    assert (np.abs(away) < 0.5 * table["stderr"].values[:2]).all()
    assert "covariance of their speckle and counting noise" in " ".join(str(found).split())


def test_no_pair_is_read(bright, result, monkeypatch):
    def refuse(*_):
        raise AssertionError("a block is read")

    monkeypatch.setattr("homodyne_dask.sweep.blocks.read_block", refuse)
    assert fitted(bright).parameters["value"].equals(result.parameters["value"])


def test_weights_are_the_same_in_whatever_order_their_bins_are_computed(tmp_path, monkeypatch):
    scan = store(SIX.scan(1), tmp_path)
    at_once = fitted(scan)
    orders = []

    def backwards(function, values):
        orders.append(list(values))
        return [function(value) for value in reversed(orders[-1])][::-1]

    monkeypatch.setattr(speckle_weighting, "on_cores", backwards)
    one_by_one = fitted(scan)
    assert len(orders) >= 2
    assert len(orders[0]) > 1
    assert one_by_one.parameters.equals(at_once.parameters)


def minimized(photons, folder):
    scan = store(photons.scan(3), folder)
    request = prepare(scan, hd.STATIC, fixed={"D_offset": 0.0}, weighting="speckle")
    sweep = sweep_of(plan_here(request), scan.selection, request.problem, None)
    weighting = SpeckleWeighting.of(request, sweep)
    *_, state = minimize_weighted(weighting, FitRecord(0.0))
    return scan, weighting, state


def test_chisqr_hessian_and_errors_are_those_of_whitened_least_squares_to_rounding(
    tmp_path, monkeypatch
):
    independent = SharedSpeckle(np.arange(2))  # what bins may share, unseen, adds 1 %
    monkeypatch.setattr(speckle_weighting, "shared_speckle", lambda *_: independent)
    _, weighting, state = minimized(replace(BRIGHT, frames=40, q=(0.009, 0.012)), tmp_path)
    columns, chisqr, hessian = weighting.columns(state.theta), 0.0, np.zeros((2, 2))
    for b, noise in weighting.bins.items():
        root = np.linalg.cholesky(noise.measured)
        one, y, f, *slopes = np.linalg.solve(root, noise.cells.share @ columns[b]).T
        Z = np.linalg.qr(np.stack([one, f], axis=1))[0]
        left, J = (of - Z @ (Z.T @ of) for of in (y, np.array(slopes[:2]).T))
        chisqr += left @ left
        hessian += state.reduced.contrast[b] ** 2 * J.T @ J
    size = np.sqrt(np.diag(hessian))
    np.testing.assert_allclose(state.reduced.chisqr, chisqr, rtol=1e-10)
    scaled = (state.reduced.hessian[:2, :2] - hessian) / np.outer(size, size)
    np.testing.assert_allclose(scaled, 0, atol=1e-10)
    errors = weighting.errors(FitEnd(weighting.request, state)).covariance[:2, :2]
    expected = np.linalg.inv(hessian / np.outer(size, size)) / np.outer(size, size)
    np.testing.assert_allclose(errors / expected, 1, rtol=1e-8)  # inverted, of correlation 0.95


def test_values_and_errors_are_those_of_dense_generalised_least_squares(tmp_path):
    """The weights are taken over; everything else is brute force over all pairs of every cell."""
    photons = replace(BRIGHT, frames=40, q=(0.009, 0.012))
    scan, weighting, state = minimized(photons, tmp_path)
    c2, members = scan.cuts().c2, []
    for cell in weighting.averaged.intervals:
        i, j = np.meshgrid(np.arange(cell.first, cell.stop), np.arange(40), indexing="ij")
        inside = (j - i >= cell.shortest) & (j - i < cell.end)
        members.append((i[inside], j[inside]))

    def f(theta):
        g = [replace(photons, theta=np.array([*theta, 0.0])).g(b) for b in range(2)]
        return np.array([[np.mean(of[i, j] ** 2) for i, j in members] for of in g])

    def fit_linear(theta):
        left, total = [], 0.0
        for b, of in enumerate(f(theta)):
            Z, W = np.stack([np.ones(len(of)), of], axis=1), weighting.weights[b]
            Z, y = np.where(np.isfinite(c2[b])[:, None], Z, 0), np.nan_to_num(c2[b])
            left.append(np.linalg.solve(Z.T @ W @ Z, Z.T @ W @ y))
            r = y - Z @ left[-1]
            total += r @ W @ r
        return np.array(left), total

    theta = state.theta[:2]
    scaling, chisqr = fit_linear(theta)
    # the fit's means of f over cells are within 1e-6 of sums over all pairs
    np.testing.assert_allclose(state.reduced.chisqr, chisqr, rtol=1e-5)
    np.testing.assert_allclose(state.reduced.offset, scaling[:, 0], rtol=1e-6)
    np.testing.assert_allclose(state.reduced.contrast, scaling[:, 1], rtol=1e-5)
    error = np.sqrt(np.diag(np.linalg.inv(state.reduced.hessian[:2, :2])))
    around = np.array([[fit_linear(theta + s * e)[1] for s in (-0.1, 0.1)] for e in np.diag(error)])
    slope, curve = (around[:, 1] - around[:, 0]) / 0.2, around.sum(1) - 2 * chisqr
    np.testing.assert_allclose(slope, 0, atol=2e-3)  # of χ², per standard error
    expected = 2 * np.diag(state.reduced.hessian)[:2] * error**2
    np.testing.assert_allclose(curve / 0.01, expected, rtol=0.1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("frames", "more"),
    [
        (None, {"min_lag": 3}),
        ((37, 91), {}),
        ((20, 50), {"fixed": {"D_offset": 0.0, "alpha": 0.0}}),
        (None, {"prior": {"alpha": (0.0, 0.01)}}),
        (None, {"bounds": {"alpha": (0.2, 1.0)}}),
        (None, {"scaling": "shared"}),
        (None, {"scaling": "fixed", "contrast": 0.25, "offset": 1.0}),
        (None, {"contrast": {"prior": (0.25, 0.001)}}),
        (None, {"rates": "spline", "fixed": {}}),
        (None, {"profile": ("D0",)}),
        (None, {"convention": "homodyne"}),
    ],
    ids=str,
)
def test_options_of_a_fit_hold(bright, frames, more):
    result = fitted(bright.select(frames=frames), **more)
    table = result.parameters
    assert result.converged
    if "bounds" in more:
        assert table["at_bound"].values[1]
        return
    free = ~table["fixed"].values
    assert np.isfinite(table["stderr"].values[free]).all() or "rates" in more
    if "profile" in more:
        points = result.errors.profiles["D0"]
        assert points["chisqr"].values.max() > result.chisqr + 3


def test_a_fit_in_which_no_parameter_moved_has_a_result(bright):
    values = dict(zip(STATIC["model"].names, STILL, strict=True))
    result = fitted(bright, fixed=values)
    assert result.converged
    assert np.isfinite(result.chisqr)
    assert np.isnan(result.parameters["stderr"].values).all()


def test_masked_frames_and_rings_of_several_q(tmp_path):
    scans = replace(BRIGHT, q=(0.008, 0.01, 0.012)).scan(5)
    scans.c2[:, 30:33, :] = scans.c2[:, :, 30:33] = np.nan
    scans.c2[1, :, 70] = scans.c2[1, 70, :] = np.nan
    result = fitted(store(scans, tmp_path), {"model": hd.BROWNIAN})
    table = result.parameters
    assert result.converged
    assert abs(table["value"].values[0] - STILL[0]) < 4 * table["stderr"].values[0]


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("masked", [0, 20])
def test_opposite_angles_that_see_one_pattern_count_once(masked, tmp_path):
    """masked: frames at the end that only one of them lacks."""
    one = replace(BRIGHT, mean=50.0, frames=60).scan(2)
    both = seen_twice(one)
    both.c2[1, 60 - masked :] = both.c2[1, :, 60 - masked :] = np.nan
    stores = [store(scan, tmp_path, name) for scan, name in ((one, "one"), (both, "both"))]
    alone, both = map(fitted, stores)
    ratio = both.parameters["stderr"].values[:2] / alone.parameters["stderr"].values[:2]
    assert (ratio > 0.8).all()
    if not masked:
        draws = public("posterior")(both, stores[1], draws=500).theta[:, :2]
        stderr = both.parameters["stderr"].values[:2]
        np.testing.assert_allclose(draws.std(axis=0), stderr, rtol=0.25)


def test_no_checkpoint_is_written_nor_resumed(bright, tmp_path):
    file = tmp_path / "checkpoint.json"
    fitted(bright, checkpoint=file)
    assert not file.exists()
    hd.fit(bright, **STATIC, checkpoint=file, max_passes=1)
    with pytest.raises(hd.HomodyneDaskError, match="writes no checkpoint"):
        fitted(bright, checkpoint=file, resume=True)


@pytest.mark.long
def test_weights_of_many_bins_gain_as_much_as_those_of_few(tmp_path):
    """Blocks of several frames lost it: from 8 bins on errors were as large as those of pairs."""
    eight = replace(SIX, q=(0.0054,) * 8, phi=tuple(np.arange(-78.75, 90, 22.5)), pixels=200)
    scan, start = store(eight.scan(0), tmp_path), {"initial": {"D0": 3e4, "alpha": -0.3}}
    fits = [hd.fit(scan, **SHEAR, **start, weighting=of) for of in ("pairs", "speckle")]
    pairs, speckle = (of.errors.noise["stderr"].values[:2] for of in fits)
    assert (speckle < 0.6 * pairs).all()
    assert not fits[1].misfit


@pytest.mark.long
def test_with_many_bins_errors_are_cluster_robust(tmp_path):
    nine = replace(BRIGHT, q=tuple(np.linspace(0.008, 0.012, 9)), frames=60, pixels=200)
    result = fitted(store(nine.scan(0), tmp_path))
    assert result.parameters.attrs["method"] == "cluster-robust"
    ratio = result.parameters["stderr"].values[:2] / result.errors.noise["stderr"].values[:2]
    assert ((ratio > 0.4) & (ratio < 2.5)).all()


def test_a_comparison_of_models_needs_pairs_and_says_so(bright):
    with pytest.raises(hd.HomodyneDaskError, match="comparison"):
        hd.compare_models(bright, weighting="speckle")


CASES = [
    ("1 ring, 0.05 counts", replace(RING, mean=0.05, pixels=6000), STATIC, (1.1, 1.1)),
    ("1 ring, 8 counts", BRIGHT, STATIC, (0.7, 0.7)),
    ("1 ring, 50 counts", replace(RING, mean=50.0), STATIC, (0.6, 0.6)),
    ("1 ring, neighbours share half", replace(BRIGHT, shared=0.5), STATIC, (0.8, 0.8)),
    ("1 ring, beam of 2 % noise", replace(BRIGHT, beam=0.02), STATIC, (0.8, 0.8)),
    ("1 ring, contrast that drifts by 5 %", replace(BRIGHT, drift=0.05), STATIC, (0.8, 0.8)),
    ("1 ring, dead frames", replace(BRIGHT, dead=(13, 14, 50, 77)), STATIC, (0.8, 0.8)),
    ("flow, 12 angles, 1 count", replace(TWELVE, mean=1.0), SHEAR, (0.95, 0.95, 1.0, 0.95, 1.0)),
    ("flow, 12 angles, 8 counts", TWELVE, SHEAR, (0.55, 0.5, 0.65, 0.6, 0.75)),
]  # fmt: skip
"""With the most that the scatter may be of that of least squares over pairs, with the noise of 100 scans."""
REPEATS = 100
HELD = {0.6827: (57.0, 80.0), 0.95: (88.0, 100.0)}
"""Per cent of repeats in which intervals may hold the truth: 62 to 75 and 91 to 98.5, and chance."""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("photons", "options", "most"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_estimates_scatter_less_and_their_intervals_hold_the_truth(
    photons, options, most, tmp_path
):
    truth = dict(zip(hd.LAMINAR_FLOW.names, photons.theta, strict=False))
    free = [p.name for p in options["model"].parameters if p.name not in options["fixed"]]
    true, found = np.array([truth[name] for name in free]), {"pairs": [], "speckle": []}
    for seed in range(REPEATS):
        scan = store(photons.scan(seed), tmp_path)
        tables = []
        for weighting in found:
            start = dict(zip(free, true, strict=True))
            table = hd.fit(scan, **options, weighting=weighting, initial=start).parameters
            tables.append(table.sel(param=free))
        if any(table["at_bound"].values.any() for table in tables):
            continue
        for kept, table in zip(found.values(), tables, strict=True):
            kept.append([table[of].values for of in ("value", "stderr", "dof")])
    pairs, speckle = (np.array(kept) for kept in found.values())
    assert len(pairs) > 0.8 * REPEATS
    away = np.abs(speckle[:, 0] - true)
    ratio = np.sqrt((away**2).mean(0) / ((pairs[:, 0] - true) ** 2).mean(0))
    print("scatter", np.round(ratio, 2))
    assert (ratio < most).all(), ratio
    assert np.isfinite(speckle[:, 1]).mean() > 0.95
    intervals_hold_the_truth(away / speckle[:, 1], speckle[:, 2], HELD)
