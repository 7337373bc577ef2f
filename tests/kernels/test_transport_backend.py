"""The Gram of a block against the dense sums of the reference; many thetas at once give what each does."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homodyne_dask import models
from homodyne_dask.kernels.backend import backend_of, compilations
from homodyne_dask.kernels.backend_interface import (
    Problem,
    coarse_min_lag,
    sub_blocks,
    subblock_shape,
)
from homodyne_dask.kernels.transport_backend import gram as transport_gram
from homodyne_dask.kernels.transport_evaluation import point as transport_point
from homodyne_dask.models.transport import RATE_FLOOR
from tests.kernels.gram_errors import CASES, assert_gram
from tests.synthetic import FLOW, GAP, blocks, evaluator, measured, without_some

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
def test_slots_without_a_bin_are_never_read():
    scans = measured(FLOW, 60, (0.0, 50.0))
    (_, block), *rest = blocks(scans, padded=5)
    assert not rest
    c2, weights = block.c2.copy(), block.weight_rows.copy()
    c2[2:], weights[2:] = 1e30, np.nan
    spoilt = replace(block, c2=c2, weight_rows=weights)
    gram = transport_gram(transport_point(scans.problem(), FLOW, scans.time), spoilt)[0]
    assert gram.moments.shape == (2, 10, 10)
    assert_gram(gram, scans, FLOW)


def test_what_lies_on_and_below_the_diagonal_is_no_data():
    scans = measured(FLOW, 60, (0.0,))
    (_, block), *_ = blocks(scans)
    c2 = block.c2.copy()
    c2[:, np.tril(np.ones((64, 64), bool))] = 7.0
    full = transport_gram(
        transport_point(scans.problem(), FLOW, scans.time), replace(block, c2=c2)
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
