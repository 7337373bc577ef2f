"""The loop for accelerators, whole tiles and all bins at once, against that for the cores of a CPU.

It runs on JAX's CPU: an array of JAX is computed where it is, by that loop.
"""

from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import homodyne_dask as hd
from homodyne_dask.kernels.backend import backend_of
from homodyne_dask.kernels.compiled import Kernel
from homodyne_dask.kernels.problem import Block, Problem
from homodyne_dask.kernels.transport_backend import candidate_grams as transport_candidate_grams
from homodyne_dask.kernels.transport_backend import gram as transport_gram
from homodyne_dask.kernels.transport_evaluation import point as transport_point
from homodyne_dask.models.spline_rates import on_times, with_free_rates
from tests.kernels.gram_errors import CASES, STATIC, worst_error
from tests.kernels.user_functions import INTEGRATED, STRETCHED
from tests.synthetic import FLOW, blocks, measured, without_some

EXACT = 1e-12
MIXED = 2e-5
"""In float32 the order in which a tile is summed shows."""
PHI = (-40.0, 3.0, 61.0)


def beside(block: Block, device: jax.Device | None = None) -> Block:
    """The same block with its data on a device of JAX, and a padded bin."""
    c2, weights = np.pad(block.c2, ((0, 1), (0, 0), (0, 0))), ((0, 1), (0, 0))
    return replace(
        block,
        c2=jax.device_put(c2, device or jax.devices("cpu")[0]),
        weight_rows=np.pad(block.weight_rows, weights),
        weight_columns=np.pad(block.weight_columns, weights),
    )


def unevenly(scans):
    """The same data at times that are not evenly spaced."""
    steps = np.random.default_rng(5).uniform(0.5, 1.5, len(scans.time))
    return replace(scans, time=np.cumsum(steps) * scans.time[1])


def two_q(block: Block) -> Block:
    """The same block with another q: that of another group of bins."""
    return replace(block, q=1.7 * block.q)


def assert_same(left, right, tolerance=EXACT):
    """Every part of two Grams, moments to a tolerance in units of √(M_ii M_jj), the rest to 1e-12."""
    np.testing.assert_array_equal(left.pairs, right.pairs)
    if left.moments.ndim == 4:  # candidates
        for n in range(left.moments.shape[1]):
            assert worst_error(left.moments[:, n], right.moments[:, n]).max() <= tolerance
    else:
        assert worst_error(left.moments, right.moments).max() <= tolerance
    if left.loss is not None:
        np.testing.assert_allclose(left.loss, right.loss, rtol=1e-12, atol=1e-300)


def all_grams(backend, points, block, linear_params):
    """The Grams that passes make of a block, by name."""
    gram, sums = backend.gram(points[0], block, None)
    again, same = backend.gram(points[0], block, sums)
    np.testing.assert_array_equal(again.moments, gram.moments)
    np.testing.assert_array_equal(same, sums)
    found = {"gram": gram, "candidates": backend.candidate_grams(points, block)}
    found["wide"] = backend.wide_gram(points, block, None)[0]
    return found | {"robust": backend.robust_gram(points[0], block, linear_params)}


def compared(problem, thetas, scans, side=64, tolerance=EXACT):
    """Compare the Grams of both loops on every block; the padded bin changes nothing."""
    backend = backend_of(problem.model)
    points = [backend.point(problem, theta, scans.time) for theta in thetas]
    of_loss = replace(problem, loss="huber", loss_scale=1.3)
    points[0] = replace(points[0], problem=of_loss)
    linear = np.tile([0.1, 0.2], (len(scans.q), 1))
    for _, block in blocks(scans, side):
        for cut in (block, two_q(block)):
            here = all_grams(backend, points, cut, linear)
            there = all_grams(backend, points, beside(cut), linear)
            for name, gram in there.items():
                assert_same(gram, here[name], tolerance)


def test_the_loop_of_whole_tiles_gives_the_same_gram():
    scans = without_some(measured(FLOW, 100, PHI, offset=1.1))
    at = transport_point(scans.problem(min_lag=2), FLOW, scans.time)
    for _, block in blocks(scans):
        gram, sums = transport_gram(at, beside(block))
        wanted, of_data = transport_gram(at, block)
        assert_same(gram, wanted)
        np.testing.assert_allclose(sums[:3], of_data, rtol=1e-12)
        assert not sums[3].any()
        assert transport_gram(at, beside(block))[0].moments.tobytes() == gram.moments.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("convention", ["physical", "homodyne"])
@pytest.mark.parametrize(("word", "theta"), CASES, ids=[w for w, _ in CASES])
def test_both_loops_give_the_same_grams_of_every_kind(word, theta, convention):
    scans = without_some(measured(theta, 100, PHI, convention=convention, offset=1.1))
    compared(scans.problem(min_lag=2), [theta, theta * 1.02], scans)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(2, 150),
    bins=st.sampled_from([1, 3]),
    min_lag=st.integers(1, 5),
    case=st.sampled_from(CASES),
    convention=st.sampled_from(["physical", "homodyne"]),
    holes=st.booleans(),
    uneven=st.booleans(),
    selected=st.tuples(st.integers(0, 40), st.integers(60, 150)),
)
def test_both_loops_agree_however_the_data_are_cut(
    n, bins, min_lag, case, convention, holes, uneven, selected
):
    _, theta = case
    scans = measured(theta, n, PHI[:bins], convention=convention, offset=1.1)
    scans = without_some(scans) if holes else scans
    scans = unevenly(scans) if uneven and n > 2 and convention == "physical" else scans
    problem = scans.problem(min_lag=min_lag)
    at = transport_point(problem, theta, scans.time, 1, (selected[0], min(selected[1], n)))
    for _, block in blocks(scans):
        assert_same(transport_gram(at, beside(block))[0], transport_gram(at, block)[0])


@pytest.mark.slow
@pytest.mark.parametrize(("word", "theta"), CASES, ids=[w for w, _ in CASES])
def test_both_loops_agree_in_mixed_precision(word, theta):
    scans = without_some(measured(theta, 150, PHI, offset=1.1))
    problem = scans.problem(precision="mixed")
    points = [transport_point(problem, theta * by, scans.time) for by in (1, 1.01)]
    for _, block in blocks(scans):
        here, there = (
            (transport_gram(points[0], on)[0], transport_candidate_grams(points, on))
            for on in (block, beside(block))
        )
        for gram, wanted in zip(there, here, strict=True):
            assert_same(gram, wanted, MIXED)


@pytest.mark.slow
@pytest.mark.parametrize("model", [INTEGRATED, STRETCHED], ids=["with integrals", "of times"])
def test_both_loops_agree_for_functions_of_a_user(model):
    scans = without_some(measured(STATIC, 90, PHI, offset=1.1))
    theta = np.array([3e3, -0.2]) if model is INTEGRATED else np.array([3e3, 0.8])
    compared(Problem(model, min_lag=2), [theta, theta * 1.02], scans)


@pytest.mark.slow
def test_both_loops_agree_for_rates_without_a_formula():
    scans = without_some(measured(FLOW, 120, PHI))
    model = on_times(with_free_rates(hd.LAMINAR_FLOW, "spline"), scans.time, 6)
    rng = np.random.default_rng(2)
    theta = np.concatenate([rng.uniform(1e3, 2e3, 6), rng.uniform(-1e-3, 1e-3, 6), [4.0]])
    problem = replace(scans.problem(min_lag=3), model=model)
    compared(problem, [theta, theta * 1.02], scans)


class InPlaceOfComputingError(Exception):
    """Raised where a kernel would compute."""


@pytest.mark.parametrize("model", [None, STRETCHED], ids=["transport", "of a user"])
def test_all_kernels_are_translated_for_cuda(model, monkeypatch):
    """No sum depends on the order of threads, as those of a scatter may, and products have full precision."""
    scans = measured(FLOW, 64, PHI)
    theta = FLOW if model is None else np.array([3e3, 0.8])
    problem = scans.problem() if model is None else Problem(model)
    problem = replace(problem, loss="huber", loss_scale=1.3)
    backend, [(_, block)] = backend_of(problem.model), blocks(scans)
    at, there = backend.point(problem, theta, scans.time), beside(block)

    def translated(kernel, *args, **static):
        text = kernel.lowered_for_accelerator(args, static, ("cuda",)).as_text()
        assert "custom_call" not in text
        lines = text.splitlines()
        assert all("unique_indices = true" in line for line in lines if 'scatter"' in line)
        dots = [line for line in lines if "dot_general" in line]
        assert dots
        assert all("HIGHEST" in line for line in dots)
        raise InPlaceOfComputingError

    monkeypatch.setattr(Kernel, "__call__", translated)
    for make in (
        lambda: backend.gram(at, there, None),
        lambda: backend.robust_gram(at, there, np.zeros((3, 2))),
        lambda: backend.candidate_grams([at] * 3, there),
        lambda: backend.wide_gram([at] * 3, there, None),
    ):
        with pytest.raises(InPlaceOfComputingError):
            make()
