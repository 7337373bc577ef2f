"""The program for the tiles of a task, whose data are on a device, against the loop for the cores of a CPU.

The device is JAX's CPU.
"""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homodyne_dask.kernels.backend import backend_of
from homodyne_dask.kernels.backend_interface import Block, GramColumns, Problem, TileWork
from homodyne_dask.kernels.block_sums import FEW_COLUMNS, packed, unpacked
from homodyne_dask.kernels.compiled import Kernel
from homodyne_dask.kernels.devices import on_device
from homodyne_dask.kernels.gram import merge_tree
from homodyne_dask.kernels.transport_backend import TRANSPORT
from tests.kernels.gram_errors import CASES, EXACT, assert_gram, worst_error
from tests.kernels.user_functions import STRETCHED
from tests.synthetic import FLOW, blocks, measured, without_some

OF_REFERENCE = 1e-12
"""A single tile agrees with the CPU to EXACT: sums of the CPU cancel in part where f has almost decayed."""
FRAMES = 150
"""Most frames of a scan here."""
PHI = (-40.0, 3.0, 61.0)


def unevenly(scans):
    """The same data at times that are not evenly spaced."""
    steps = np.random.default_rng(5).uniform(0.5, 1.5, len(scans.time))
    return replace(scans, time=np.cumsum(steps) * scans.time[1])


def two_q(block: Block) -> Block:
    """The same block with another q: that of another group of bins."""
    return replace(block, q=1.7 * block.q)


def assert_same(left, right):
    """Every part of two Grams, moments to EXACT in units of √(M_ii M_jj), the rest to 1e-12."""
    np.testing.assert_array_equal(left.pairs, right.pairs)
    if left.moments.ndim == 4:  # candidates
        for n in range(left.moments.shape[1]):
            assert worst_error(left.moments[:, n], right.moments[:, n]).max() <= EXACT
    else:
        assert worst_error(left.moments, right.moments).max() <= EXACT
    if left.loss is not None:
        np.testing.assert_allclose(left.loss, right.loss, rtol=1e-12, atol=1e-300)


def tile_grams(points, pieces, columns=GramColumns.DERIVATIVES, known=None, **more):
    """The Grams of tiles whose data are on a device, in calls for at most two of them."""
    backend = backend_of(points[0].problem.model)
    there = [on_device(one, "cpu:0") for one in pieces]
    found, known = [], known or [None] * len(there)
    for n in range(0, len(there), 2):
        some = there[n : n + 2], known[n : n + 2]
        found += backend.tile_grams(points, TileWork(*some, 2, FRAMES, columns, **more))
    return [gram for gram, _ in found], [sums for _, sums in found]


def with_padded(block: Block) -> Block:
    """The same block with a padded bin."""
    weights = ((0, 1), (0, 0))
    return replace(
        block,
        c2=np.pad(block.c2, ((0, 1), (0, 0), (0, 0)), constant_values=np.nan),
        weight_rows=np.pad(block.weight_rows, weights),
        weight_columns=np.pad(block.weight_columns, weights),
    )


def compared(problem, thetas, scans):
    """Compare the Grams of every kind of all blocks; the padded bin changes nothing."""
    backend = backend_of(problem.model)
    points: list[Any] = [backend.point(problem, theta, scans.time) for theta in thetas]
    of_loss = replace(problem, loss="huber", loss_scale=1.3)
    points[0] = replace(points[0], problem=of_loss)
    linear = np.tile([0.1, 0.2], (len(scans.q), 1))
    pieces = [block for _, block in blocks(scans)]
    for some in (pieces, [two_q(block) for block in pieces]):
        padded = [with_padded(block) for block in some]
        here = [
            [backend.gram(points[0], block, None)[0] for block in some],
            [backend.robust_gram(points[0], block, linear) for block in some],
            [backend.candidate_grams(points, block) for block in some],
            [backend.wide_gram(points, block, None)[0] for block in some],
        ]
        there = [
            tile_grams(points[:1], padded)[0],
            tile_grams(points[:1], padded, linear_params=linear)[0],
            tile_grams(points, padded, GramColumns.POINTS)[0],
            tile_grams(points, padded, GramColumns.CHANGES)[0],
        ]
        for grams, wanted in zip(there, here, strict=True):
            for gram, one in zip(grams, wanted, strict=True):
                assert_same(gram, one)


@pytest.mark.long
def test_all_tiles_in_few_calls_give_the_same_grams():
    scans = without_some(measured(FLOW, 100, PHI, offset=1.1))
    at = TRANSPORT.point(scans.problem(min_lag=2), FLOW, scans.time)
    pieces = [block for _, block in blocks(scans)]
    grams, of_data = tile_grams([at], pieces)
    for gram, sums, block in zip(grams, of_data, pieces, strict=True):
        wanted, of_block = TRANSPORT.gram(at, block)
        assert_same(gram, wanted)
        np.testing.assert_allclose(sums, of_block, rtol=1e-12)
    assert_gram(merge_tree(grams), scans, FLOW, 2, OF_REFERENCE)
    again, same = tile_grams([at], pieces, known=of_data)
    alone = [tile_grams([at], [block])[0][0] for block in pieces]
    for found in (again, alone):
        assert [g.moments.tobytes() for g in found] == [g.moments.tobytes() for g in grams]
    np.testing.assert_array_equal(same, of_data)


def test_what_is_packed_comes_out_as_it_was():
    tree = {"a": np.arange(6.0).reshape(2, 3), "b": (3, np.float32(0.5)), "c": None, "d": 1.5}
    numbers, form = packed(tree)
    assert numbers.shape == (9,)
    found: Any = unpacked(numbers, form)
    assert jax.tree.structure(found) == jax.tree.structure(tree)
    for left, right in zip(jax.tree.leaves(found), jax.tree.leaves(tree), strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.slow
@pytest.mark.parametrize("convention", ["physical", "homodyne"])
@pytest.mark.parametrize(("word", "theta"), CASES, ids=[w for w, _ in CASES])
def test_both_give_the_same_grams_of_every_kind(word, theta, convention):
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
def test_both_agree_however_the_data_are_cut(
    n, bins, min_lag, case, convention, holes, uneven, selected
):
    _, theta = case
    scans = measured(theta, n, PHI[:bins], convention=convention, offset=1.1)
    scans = without_some(scans) if holes else scans
    scans = unevenly(scans) if uneven and n > 2 and convention == "physical" else scans
    problem = scans.problem(min_lag=min_lag)
    first, stop = selected[0], min(selected[1], n)
    outside = ~np.isin(np.arange(n), np.arange(first, stop))
    scans.c2[:, outside], scans.c2[:, :, outside] = np.nan, np.nan
    at = TRANSPORT.point(problem, theta, scans.time, 1, (first, stop))
    pieces = [block for _, block in blocks(scans)]
    for gram, block in zip(tile_grams([at], pieces)[0], pieces, strict=True):
        assert_same(gram, TRANSPORT.gram(at, block)[0])


class InPlaceOfComputingError(Exception):
    """Raised where a kernel would compute."""


@pytest.mark.parametrize("model", [None, STRETCHED], ids=["transport", "of a user"])
def test_all_kernels_are_translated_for_cuda(model, monkeypatch):
    """No sum depends on the order of threads, as those of a scatter may, and products have full precision."""
    scans = measured(FLOW, 64, PHI)
    theta = FLOW if model is None else np.array([3e3, 0.8])
    problem = scans.problem() if model is None else Problem(model)
    problem = replace(problem, loss="huber", loss_scale=1.3)
    at = backend_of(problem.model).point(problem, theta, scans.time)
    pieces = [block for _, block in blocks(scans)]

    def translated(kernel, *args, **static):
        text = kernel.lowered_for_accelerator(args, static, ("cuda",)).as_text()
        assert "custom_call" not in text
        lines = text.splitlines()
        assert all("unique_indices = true" in line for line in lines if 'scatter"' in line)
        dots = [line for line in lines if "dot_general" in line]
        assert bool(dots) == (static["columns"] > FEW_COLUMNS)
        assert all("HIGHEST" in line for line in dots)
        raise InPlaceOfComputingError

    monkeypatch.setattr(Kernel, "__call__", translated)
    several = [at] * FEW_COLUMNS
    for points, columns, linear in (
        ([at], GramColumns.DERIVATIVES, None),
        ([at], GramColumns.DERIVATIVES, np.zeros((3, 2))),
        (several[:8], GramColumns.POINTS, None),
        (several, GramColumns.CHANGES, None),
    ):
        with pytest.raises(InPlaceOfComputingError):
            tile_grams(points, pieces, columns, linear_params=linear)
