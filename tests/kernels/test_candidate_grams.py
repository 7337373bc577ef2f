"""Many thetas at once give what the Gram gives one at a time; decayed sub-blocks are skipped."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homodyne_dask.kernels.backend_interface import MAX_CANDIDATES
from homodyne_dask.kernels.decayed_subblocks import sub_blocks, subblock_shape
from homodyne_dask.kernels.transport_backend import transport_candidate_grams, transport_gram
from homodyne_dask.kernels.transport_evaluation import transport_point
from tests.kernels.gram_errors import EXACT, STATIC, assert_gram, worst_error
from tests.synthetic import FAST_DECAY, FLOW, blocks, evaluator, measured, without_some


@pytest.mark.parametrize("convention", ["physical", "homodyne"])
@pytest.mark.parametrize("theta", [FLOW, STATIC], ids=["flow", "static"])
def test_the_sums_of_every_candidate_are_those_of_its_gram(convention, theta):
    scans = without_some(measured(theta, 150, (-40.0, 3.0, 61.0), convention=convention))
    problem = scans.problem(min_lag=2)
    thetas = [theta * factor for factor in (1.0, 0.3, 2.0)]
    points = [transport_point(problem, at, scans.time) for at in thetas]
    for _, block in blocks(scans, side=64):
        found = transport_candidate_grams(points, block)
        assert found.moments.shape[1:] == (3, 3, 3)
        for n, at in enumerate(points):
            one = transport_gram(at, block)[0]
            np.testing.assert_array_equal(found.pairs, one.pairs)
            head = one.moments[:, :3, :3]
            assert (worst_error(found.moments[:, n], head) <= EXACT).all()


def test_no_more_candidates_go_at_once_than_are_compiled_for():
    scans = measured(STATIC, 40, (0.0,))
    points = [
        transport_point(scans.problem(), STATIC * (1 + n), scans.time)
        for n in range(MAX_CANDIDATES)
    ]
    (_, block), *_ = blocks(scans, side=64)
    assert transport_candidate_grams(points, block).moments.shape == (1, MAX_CANDIDATES, 3, 3)


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


def test_of_a_window_of_frames_only_the_sub_blocks_with_its_pairs_are_listed():
    window, (R, S) = range(300, 420), subblock_shape(512)
    found = sub_blocks(0, 0, 512, 1, np.zeros((1, 1000)), (window.start, window.stop))
    listed = {(int(a), int(b)) for a, b in found.offsets[: found.n_total]}
    assert listed == {(i // R * R, j // S * S) for i in window for j in window if i < j}
