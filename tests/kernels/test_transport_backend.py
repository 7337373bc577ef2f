"""The Gram of a block against the dense sums of the reference; many thetas at once give what each does."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from homodyne_dask import models
from homodyne_dask.kernels.backend import backend_of, compilations
from homodyne_dask.kernels.backend_interface import (
    Problem,
    coarse_min_lag,
    sub_blocks,
    subblock_shape,
)
from homodyne_dask.kernels.transport_backend import TRANSPORT
from homodyne_dask.models.transport import RATE_FLOOR
from tests import reference
from tests.kernels.gram_errors import CASES, EXACT, STATIC, assert_gram, worst_error
from tests.synthetic import FAST_DECAY, FLOW, GAP, Q, blocks, evaluator, measured, without_some

MIXED = 2e-3
"""float32 per pair: 7e-5 on the sums of f, more where ∂f/∂theta cancels."""
THETAS = np.array(
    [
        [2e4, -0.4, 1e3, 9e-4, -0.2, 1e-5, 3.0],
        [1e3, 0.5, -2e3, 1e-3, 0.1, -2e-3, -40.0],  # both rates change sign
    ]
)


@pytest.mark.long
@pytest.mark.parametrize("convention", ["physical", "homodyne"])
@pytest.mark.parametrize(("word", "theta"), CASES, ids=[w for w, _ in CASES])
@pytest.mark.parametrize("min_lag", [1, 2, 3, 4, 5])
def test_the_gram_is_the_references(convention, word, theta, min_lag):
    scans = measured(theta, 90, (-40.0, 3.0, 61.0), convention=convention, offset=1.1)
    scans = without_some(scans)
    for at in (theta, theta * 1.1 + 1e-5):
        gram = evaluator(scans, scans.problem(min_lag=min_lag))(at)
        assert_gram(gram, scans, at, min_lag)


@pytest.mark.long
@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    n=st.integers(2, 150),
    side=st.sampled_from([64, 128]),
    offset=st.integers(1, 127),
    bins=st.integers(1, 3),
    min_lag=st.integers(1, 5),
    case=st.sampled_from(CASES),
    convention=st.sampled_from(["physical", "homodyne"]),
    holes=st.booleans(),
)
def test_how_the_data_are_cut_changes_the_gram_only_by_rounding(
    n, side, offset, bins, min_lag, case, convention, holes
):
    assume(n > min_lag)
    theta = case[1]
    scans = measured(theta, n, (-40.0, 3.0, 61.0)[:bins], convention=convention, seed=n)
    scans = without_some(scans, seed=n) if holes else scans
    offset = min(offset, side)
    cuts = [offset + k * side for k in range(n // side + 1) if offset + k * side < n]
    found = evaluator(scans, scans.problem(min_lag=min_lag), side, cuts)(theta)
    assert_gram(found, scans, theta, min_lag)


@pytest.mark.long
def test_the_slope_by_phi0_in_the_homodyne_convention_is_short_of_the_smoothing_only():
    """PHYSICS.md §3 prescribes ∂f/∂phi0 = b·ΔG, where f takes sqrt(ΔG² + 1e-12)."""
    scans = measured(FLOW, 300, (-40.0, 3.0), convention="homodyne")
    gram = evaluator(scans, side=128)(FLOW)
    exact = [
        reference.gram(FLOW, *part, convention="homodyne", exact_phi0=True)[0]
        for part in scans.dense()
    ]
    off = worst_error(gram.moments, np.array(exact))
    assert 1e-9 < off[9].max() < 1e-6
    assert off[:9, :9].max() < EXACT


@pytest.mark.long
@pytest.mark.parametrize("convention", ["physical", "homodyne"])
@pytest.mark.parametrize(("word", "theta"), CASES, ids=[w for w, _ in CASES])
def test_mixed_precision_is_close(convention, word, theta):
    scans = without_some(measured(theta, 150, (-40.0, 3.0), convention=convention))
    gram = evaluator(scans, scans.problem(precision="mixed"), 128)(theta)
    assert_gram(gram, scans, theta, tolerance=MIXED)


@pytest.mark.long
def test_slots_without_a_bin_are_never_read():
    scans = measured(FLOW, 60, (0.0, 50.0))
    (_, block), *rest = blocks(scans, padded=5)
    assert not rest
    c2, weights = block.c2.copy(), block.weight_rows.copy()
    c2[2:], weights[2:] = 1e30, np.nan
    spoilt = replace(block, c2=c2, weight_rows=weights)
    gram = TRANSPORT.gram(TRANSPORT.point(scans.problem(), FLOW, scans.time), spoilt)[0]
    assert gram.moments.shape == (2, 10, 10)
    assert_gram(gram, scans, FLOW)


def test_what_lies_on_and_below_the_diagonal_is_no_data():
    scans = measured(FLOW, 60, (0.0,))
    (_, block), *_ = blocks(scans)
    c2 = block.c2.copy()
    c2[:, np.tril(np.ones((64, 64), bool))] = 7.0
    full = TRANSPORT.gram(
        TRANSPORT.point(scans.problem(), FLOW, scans.time), replace(block, c2=c2)
    )[0]
    assert_gram(full, scans, FLOW)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_no_number_counts_as_masked(value):
    scans = measured(FLOW, 30, (0.0,))
    c2 = scans.c2.copy()
    c2[0, 3, 9] = value
    masked = c2.copy()
    masked[0, 3, 9] = np.nan
    gram = evaluator(replace(scans, c2=c2))(FLOW)
    assert_gram(gram, replace(scans, c2=masked), FLOW)


@pytest.mark.long
def test_decay_within_one_frame_leaves_no_f_and_no_nan():
    theta = np.array([1e6, 2.0, 1e4, 1.0, 2.0, 0.1, 0.0])
    scans = measured(theta, 200, (0.0, 90.0), dt=10.0)
    gram = evaluator(scans, side=128)(theta)
    assert np.isfinite(gram.moments).all()
    assert_gram(gram, scans, theta)


def test_a_model_that_is_no_number_counts_no_pair_silently():
    """NaN in theta must show: as sums that are not finite, or as pairs that are missing."""
    scans = measured(FLOW, 30, (0.0,))
    theta = FLOW.copy()
    theta[0] = np.nan
    gram = evaluator(scans)(theta)
    assert not np.isfinite(gram.moments).all() or gram.pairs[0] == 30 * 29 // 2


def test_the_kernel_is_compiled_once_for_all_tiles_and_thetas():
    scans = measured(FLOW, 300, (0.0, 50.0))
    evaluate = evaluator(scans, side=128)
    evaluate(FLOW)
    before = compilations()
    for shift in (0.9, 1.1):
        evaluate(FLOW * shift)
    evaluator(scans, scans.problem(min_lag=3), side=128)(FLOW)
    assert compilations() == before


def test_coarse_cells_hold_only_pairs_that_are_far_enough_apart():
    for min_lag in range(1, 40):
        for factor in (1, 4, 16):
            lag = coarse_min_lag(min_lag, factor)
            assert factor * lag - (factor - 1) >= min_lag
            assert factor * (lag - 1) - (factor - 1) < min_lag


def test_a_coarse_block_is_the_model_at_averaged_integrals():
    """Block means see exp(-q²(mean C(t2) - mean C(t1))): exact for slow changes within a cell."""
    theta, factor = np.array([300.0, 0.0, 0.0]), 4
    scans = measured(theta, 256, (0.0,), noise=False)
    n = 256 // factor
    full = reference.f_physical(theta, scans.time, Q, 0.0, GAP)
    coarse = full.reshape(n, factor, n, factor).mean((1, 3)) * 0.2 + 1
    coarse[np.tril_indices(n)] = np.nan
    fine = replace(scans, c2=coarse[None].astype(np.float32))
    (_, block), *rest = blocks(
        replace(fine, time=scans.time[:n], sigma_row=scans.sigma_row[:, :n]), side=64
    )
    assert not rest
    gram = TRANSPORT.gram(TRANSPORT.point(scans.problem(), theta, scans.time, factor), block)[0]
    lag = coarse_min_lag(1, factor)
    kept = n - lag
    assert gram.pairs[0] == kept * (kept + 1) // 2
    w, wf, wff = gram.moments[0, 0, 0], gram.moments[0, 0, 2], gram.moments[0, 2, 2]
    wy, wfy = gram.moments[0, 0, 1], gram.moments[0, 1, 2]
    contrast = (wfy - wf * wy / w) / (wff - wf * wf / w)
    assert contrast == pytest.approx(0.2, rel=1e-2)


@pytest.mark.long
@pytest.mark.parametrize("precision", ["float64", "mixed"])
@pytest.mark.parametrize("theta", [STATIC, FLOW], ids=["static", "flow"])
def test_sums_of_the_data_kept_from_an_earlier_pass_change_no_bit(theta, precision):
    scans = without_some(measured(theta, 100, (0.0, 50.0)))
    problem = scans.problem(precision=precision, min_lag=2)
    for _, block in blocks(scans):
        _, kept = TRANSPORT.gram(TRANSPORT.point(problem, 0.7 * theta, scans.time), block)
        fresh, _ = TRANSPORT.gram(TRANSPORT.point(problem, theta, scans.time), block)
        again, _ = TRANSPORT.gram(TRANSPORT.point(problem, theta, scans.time), block, kept)
        assert fresh.moments.tobytes() == again.moments.tobytes()
        assert fresh.pairs.tolist() == again.pairs.tolist()


@pytest.mark.parametrize("convention", models.Convention)
@pytest.mark.parametrize(
    "model", [models.STATIC, models.LAMINAR_FLOW], ids=lambda model: model.name
)
def test_rates_of_draws_are_those_of_each_of_them(model, convention):
    time, frames, at = np.arange(90) * 0.1, (7, 80), np.array([0, 1, 5, 40, 72])
    problem, backend = Problem(model, convention, GAP), backend_of(model)
    thetas = np.repeat(THETAS[:, : model.size], 40, axis=0)  # more than are summed at once
    assert backend.rates is not None
    assert backend.rates_of_draws is not None
    found = backend.rates_of_draws(problem, thetas, time, frames, at)
    for n in (0, 79):
        one = backend.rates(backend.point(problem, thetas[n], time), time, frames)
        assert found.keys() == one.keys() - {"J_integral"}
        for name, drawn in found.items():
            np.testing.assert_allclose(drawn[n], one[name].value[at], rtol=1e-11, atol=1e-14)
    assert found["J"].min() == RATE_FLOOR


@pytest.mark.long
@pytest.mark.parametrize("convention", ["physical", "homodyne"])
@pytest.mark.parametrize("theta", [FLOW, STATIC], ids=["flow", "static"])
def test_the_sums_of_every_candidate_are_those_of_its_gram(convention, theta):
    scans = without_some(measured(theta, 150, (-40.0, 3.0, 61.0), convention=convention))
    problem = scans.problem(min_lag=2)
    thetas = [theta * factor for factor in (1.0, 0.3, 2.0)]
    points = [TRANSPORT.point(problem, at, scans.time) for at in thetas]
    for _, block in blocks(scans, side=64):
        found = TRANSPORT.candidate_grams(points, block)
        assert found.moments.shape[1:] == (3, 3, 3)
        for n, at in enumerate(points):
            one = TRANSPORT.gram(at, block)[0]
            np.testing.assert_array_equal(found.pairs, one.pairs)
            head = one.moments[:, :3, :3]
            assert (worst_error(found.moments[:, n], head) <= EXACT).all()


@pytest.mark.long
@pytest.mark.parametrize("convention", ["physical", "homodyne"])
@pytest.mark.parametrize("min_lag", [1, 3])
def test_sub_blocks_without_any_f_left_change_nothing(convention, min_lag):
    scans = without_some(measured(FAST_DECAY, 600, (-40.0, 3.0), convention=convention))
    gram = evaluator(scans, scans.problem(min_lag=min_lag), side=256)(FAST_DECAY)
    assert_gram(gram, scans, FAST_DECAY, min_lag)


@given(
    i=st.integers(0, 5), j=st.integers(0, 5), rate=st.floats(1e-3, 10), min_lag=st.integers(1, 300),
    n=st.integers(2, 1536), span=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_sub_blocks_left_out_hold_no_f_above_the_limit(i, j, rate, min_lag, n, span):
    T, shape = 256, subblock_shape(256)
    kC = rate * np.cumsum(np.random.default_rng(n).random(n))
    first, stop = sorted(round(share * n) for share in span)
    found = sub_blocks(i * T, j * T, T, min_lag, kC[None], (first, stop))
    every = {(a, b) for a in range(0, T, shape[0]) for b in range(0, T, shape[1])}
    active = {(int(a), int(b)) for a, b in found.offsets[: found.n_active]}
    listed = {(int(a), int(b)) for a, b in found.offsets[: found.n_total]}
    assert len(active) == found.n_active
    assert len(listed) == found.n_total
    frames = np.arange(n)

    def selected(some):
        return some[(some >= first) & (some < stop)]

    for a, b in every - active:
        rows = selected(frames[i * T + a : i * T + a + shape[0]])
        columns = selected(frames[j * T + b : j * T + b + shape[1]])
        lag = columns[None, :] - rows[:, None]
        decay = np.exp(-(kC[columns][None, :] - kC[rows][:, None])[lag >= min_lag])
        assert (decay < 1.0001e-16).all()
        assert (a, b) in listed or decay.size == 0
