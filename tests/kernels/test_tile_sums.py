"""The program for the tiles of a task, whose data are on a device, against the loop for the cores of a CPU.

The device is JAX's CPU.
"""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from homodyne_dask.kernels.backend import backend_of
from homodyne_dask.kernels.backend_interface import Problem, TileWork
from homodyne_dask.kernels.column_sums import FEW_COLUMNS, packed, unpacked
from homodyne_dask.kernels.compiled import Kernel
from homodyne_dask.kernels.devices import on_device
from homodyne_dask.kernels.transport_backend import candidate_grams as transport_candidate_grams
from homodyne_dask.kernels.transport_backend import gram as transport_gram
from homodyne_dask.kernels.transport_evaluation import point as transport_point
from tests.kernels.gram_errors import CASES, EXACT, worst_error
from tests.kernels.user_functions import STRETCHED
from tests.synthetic import FLOW, blocks, measured, without_some

MIXED = 2e-5
"""The CPU also sums parts of a tile in float32."""
FRAMES = 150
"""Most frames of a scan here."""
PHI = (-40.0, 3.0, 61.0)


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


def tile_grams(points, pieces, fields="derivatives", known=None, **more):
    backend = backend_of(points[0].problem.model)
    there = [on_device(one, "cpu:0") for one in pieces]
    found, known = [], known or [None] * len(there)
    for n in range(0, len(there), 2):
        some = there[n : n + 2], known[n : n + 2]
        found += backend.tile_grams(points, TileWork(*some, 2, FRAMES, fields, **more))
    return [gram for gram, _ in found], [sums for _, sums in found]


def test_what_is_packed_comes_out_as_it_was():
    tree = {"a": np.arange(6.0).reshape(2, 3), "b": (3, np.float32(0.5)), "c": None, "d": 1.5}
    numbers, form = packed(tree)
    assert numbers.shape == (9,)
    found: Any = unpacked(numbers, form)
    assert jax.tree.structure(found) == jax.tree.structure(tree)
    for left, right in zip(jax.tree.leaves(found), jax.tree.leaves(tree), strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.slow
@pytest.mark.parametrize(("word", "theta"), CASES, ids=[w for w, _ in CASES])
def test_both_agree_in_mixed_precision(word, theta):
    scans = without_some(measured(theta, 150, PHI, offset=1.1))
    problem = scans.problem(precision="mixed")
    points = [transport_point(problem, theta * by, scans.time) for by in (1, 1.01)]
    pieces = [block for _, block in blocks(scans)]
    there = tile_grams(points[:1], pieces)[0], tile_grams(points, pieces, "points")[0]
    for block, gram, several in zip(pieces, *there, strict=True):
        assert_same(gram, transport_gram(points[0], block)[0], MIXED)
        assert_same(several, transport_candidate_grams(points, block), MIXED)


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
    for points, fields, linear in (
        ([at], "derivatives", None),
        ([at], "derivatives", np.zeros((3, 2))),
        (several[:8], "points", None),
        (several, "changes", None),
    ):
        with pytest.raises(InPlaceOfComputingError):
            tile_grams(points, pieces, fields, linear_params=linear)
