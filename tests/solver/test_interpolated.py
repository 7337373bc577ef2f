"""Data that the model interpolates, or nearly: χ² is never negative, fits claim no more than data hold."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import homodyne_dask as hd
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.models.parameters import search
from homodyne_dask.solver.covariance import uncertainty
from homodyne_dask.solver.influence import compare_scalings, leave_one_out
from homodyne_dask.solver.levenberg_marquardt import Outcome
from homodyne_dask.solver.normal_equations import joint_equations
from homodyne_dask.solver.reduce import reduce
from homodyne_dask.solver.scaling_modes import Scaling, scaling_of, scaling_prior
from tests.synthetic import FLOW, angles, asked, evaluator, measured, solve, store

BINS, P = 3, 2
EPS = np.finfo(float).eps
SEEDS = st.integers(0, 2**32 - 1)


def rounded(moments, rng):
    size = np.sqrt(np.einsum("kaa->ka", moments))
    noise = EPS * rng.uniform(-1, 1, moments.shape) * size[:, :, None] * size[:, None, :]
    return moments + (noise + np.swapaxes(noise, 1, 2)) / 2


def interpolated(rng, points, robust=False):
    """The Gram of y = offset + contrast f at a few points of each bin, and (offset - 1, contrast)."""
    linear_params = np.array([rng.uniform(-0.2, 0.2), rng.uniform(0.02, 0.8)])
    f = np.exp(-rng.uniform(0, 3, (BINS, points)))
    y = linear_params[0] + linear_params[1] * f
    X = np.concatenate(
        [np.stack([np.ones_like(f), y, f], 1), rng.standard_normal((BINS, P, points))], 1
    )
    weight = 10 ** rng.uniform(0, 8)
    moments = rounded(weight * np.einsum("kap,kbp->kab", X, X), rng)
    pairs = np.full(BINS, points)
    if robust:
        squares = np.full(BINS, EPS**2 * weight)
        loss = np.stack([squares, *2 * [np.full(BINS, 1.0 * points)], squares], 1)
        return Gram(moments, pairs, loss), np.tile(linear_params, (BINS, 1))
    return Gram(moments, pairs), np.tile(linear_params, (BINS, 1))


def scalings(linear_params):
    yield Scaling()
    yield scaling_of("shared", angles(BINS))
    yield Scaling(prior=scaling_prior({"bounds": (0.0, 1.0)}, {}))
    yield Scaling("fixed", fixed_params=linear_params)


@settings(deadline=None)
@given(SEEDS, st.integers(2, 7), st.booleans())
def test_chisqr_of_interpolated_data_is_zero_also_under_a_loss(seed, points, robust):
    gram, linear_params = interpolated(np.random.default_rng(seed), points, robust)
    for scaling in scalings(linear_params):
        reduced = reduce(gram, scaling, linear_params=linear_params)
        assert reduced.chisqr == 0
        assert (reduced.chisqr_per_bin == 0).all()
        assert reduced.linear_reduction >= 0
        assert robust or 0 < reduced.variance(P) <= reduced.rounding


@settings(deadline=None)
@given(SEEDS, st.integers(3, 30), st.floats(-5.5, 0))
def test_what_lies_above_rounding_is_chisqr_to_the_last_digit(seed, points, size):
    rng = np.random.default_rng(seed)
    f, r = rng.uniform(0.1, 0.9, points), 10**size * rng.standard_normal(points)
    X = np.stack([np.ones(points), 0.01 + 0.2 * f + r, f])
    scaling = Scaling("fixed", fixed_params=np.array([[0.01, 0.2]]))
    chisqr = reduce(Gram((X @ X.T)[None], np.array([points])), scaling).chisqr
    assert chisqr == pytest.approx(r @ r, abs=1e-13 * points)
    assert chisqr > 0


@settings(deadline=None)
@given(SEEDS, st.integers(3, 7))
def test_what_follows_from_it_is_a_number_or_absent(seed, points):
    gram, _ = interpolated(np.random.default_rng(seed), points)
    reduced, moved = reduce(gram, "individual"), np.ones(P, bool)
    joint = joint_equations(reduced, moved)
    errors = uncertainty(("a", "b"), joint, np.arange(BINS))
    assert errors.robust is None
    assert errors.naive is None or (np.diag(errors.naive) > 0).all()
    assert leave_one_out(joint).shape == (BINS, P)
    for mode in compare_scalings(reduced, Scaling(), angles(BINS), moved):
        assert mode.chisqr >= 0
        assert not mode.aic < 0


@pytest.mark.long
@pytest.mark.parametrize("loss", ["linear", "huber"])
def test_the_result_of_an_exact_decay_has_chisqr_zero_and_prints(tmp_path, loss):
    scans = measured([60000, 0, 0], 6, angles(9), dt=0.1)
    lag = np.arange(6)[None] - np.arange(6)[:, None]
    c2 = np.where(lag > 0, 1 + 0.25 * 0.5**lag, np.nan)
    scan = store(replace(scans, c2=np.tile(c2.astype(np.float32), (9, 1, 1))), tmp_path)
    result = hd.fit(scan, hd.STATIC, fixed={"alpha": 0.0, "D_offset": 0.0}, loss=loss)
    assert result.outcome is Outcome.CONVERGED
    assert result.chisqr == result.redchi == 0
    assert (result.scaling["redchi"] == 0).all()
    assert result.scaling["contrast"].values == pytest.approx(0.25, rel=1e-6)
    assert str(result)
    result.to_json(tmp_path / "result.json")


@pytest.mark.parametrize("rate", [1e-3, 1e-4])
def test_noise_is_not_taken_for_rounding_where_f_hardly_varies(rate):
    """Precise averages of a slow decay: contrast and offset are in the thousands and cancel."""
    n, sigma = 400, 1e-4
    t = np.linspace(0, 1, n)
    y = 0.3 * (1 - t) + sigma * np.random.default_rng(1).standard_normal(n)
    f = np.exp(-2 * rate * t)
    X = np.stack([np.ones(n), y, f, -2 * t * f]) / sigma
    _, [expected], *_ = np.linalg.lstsq(X[[0, 2]].T, X[1], rcond=None)
    found = reduce(Gram((X @ X.T)[None], np.array([n])), "individual")
    assert found.chisqr == pytest.approx(expected, rel=0.5)  # sums of 1e13


TRUTHS = {
    "static": [60000.0, -1.0, 500.0],
    "creep": [20000.0, -0.3, 500.0],
    "slow": [600.0, -0.3, 5.0],
    "flow": FLOW,
}
MODES = [("individual", 2), ("individual", 9), ("shared", 4), ("shared", 9), ("fourier1", 5)]
CASES = list(product(("static", "creep", "flow"), (3, 4, 5, 6), MODES, (True, False)))


def mistakes(number, truth, frames, mode_and_bins, noise):
    mode, bins = mode_and_bins
    theta = np.array(TRUTHS[truth])
    scans = measured(theta, frames, angles(bins), sigma=0.01, noise=noise, seed=number)
    evaluate, scaling = evaluator(scans, side=8, padded=9), scaling_of(mode, scans.phi)
    states = solve(evaluate, asked(scans), theta * 1.1, scaling)
    last = states[-1]
    found = [state.outcome.name for state in states if (state.reduced.chisqr_per_bin < 0).any()]
    if last.outcome not in (Outcome.CONVERGED, Outcome.SINGULAR):
        found.append(last.outcome.name)
    everything = np.ones(len(last.theta), bool)
    names = tuple("abcdefg"[: len(everything)])
    errors = uncertainty(names, joint_equations(last.reduced, everything), np.arange(bins))
    if len(everything) + last.reduced.linear > last.reduced.ndata:
        if errors.naive is not None:
            found.append("errors of more parameters than data")
        if last.outcome is Outcome.CONVERGED:
            found.append("converged with more parameters than data")
    return found


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "which",
    [
        pytest.param(n, marks=pytest.mark.slow if n % 17 else pytest.mark.long(whole=True))
        for n in range(120)
    ],
)
def test_a_fit_of_few_frames_ends_and_claims_no_more_than_its_data_hold(which):
    assert len(CASES) == 120
    assert mistakes(which, *CASES[which]) == []


RANKS = [
    (truth, frames, mode, bins)
    for truth, (frames, bins), mode in product(
        TRUTHS, ((3, 1), (3, 2), (3, 9), (4, 1)), ("individual", "shared")
    )
    if not (truth != "flow" and frames == 4 and mode == "shared")
]


@pytest.mark.long
@pytest.mark.parametrize("precision", ["float64", "mixed"])
@pytest.mark.parametrize(("truth", "frames", "mode", "bins"), RANKS)
def test_rounding_is_taken_for_no_direction_that_the_data_determine(
    truth, frames, mode, bins, precision
):
    """Bins without shear have one f: n(n - 1)/2 values, of which contrast and offset take two."""
    theta, pairs = np.array(TRUTHS[truth]), frames * (frames - 1) // 2
    scans = measured(theta, frames, angles(bins), sigma=0.01, seed=frames)
    problem = scans.problem(precision=precision)
    reduced = reduce(
        evaluator(scans, problem, side=8, padded=9)(theta * 1.003),
        scaling_of(mode, scans.phi),
        problem.sum_rounding,
    )
    known = pairs - 2 if truth != "flow" else bins * pairs - 2 * (bins if mode[0] == "i" else 1)
    names = search(scans.model.parameters).names
    errors = uncertainty(
        names, joint_equations(reduced, np.ones(len(theta), bool)), np.arange(bins)
    )
    if known < len(theta):
        assert errors.naive is None
        assert len(errors.doubts) >= len(theta) - known
