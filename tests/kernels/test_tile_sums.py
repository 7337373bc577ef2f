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
from tests.kernels.user_functions import STRETCHED
from tests.synthetic import FLOW, blocks, measured

PHI = (-40.0, 3.0, 61.0)


def test_what_is_packed_comes_out_as_it_was():
    tree = {"a": np.arange(6.0).reshape(2, 3), "b": (3, np.float32(0.5)), "c": None, "d": 1.5}
    numbers, form = packed(tree)
    assert numbers.shape == (9,)
    found: Any = unpacked(numbers, form)
    assert jax.tree.structure(found) == jax.tree.structure(tree)
    for left, right in zip(jax.tree.leaves(found), jax.tree.leaves(tree), strict=True):
        np.testing.assert_array_equal(left, right)


class InPlaceOfComputingError(Exception):
    """Raised where a kernel would compute."""


@pytest.mark.parametrize("model", [None, STRETCHED], ids=["transport", "of a user"])
def test_all_kernels_are_translated_for_cuda(model, monkeypatch):
    """No sum depends on the order of threads, as those of a scatter may, and products have full precision."""
    scans = measured(FLOW, 64, PHI)
    theta = FLOW if model is None else np.array([3e3, 0.8])
    problem = scans.problem() if model is None else Problem(model)
    problem = replace(problem, loss="huber", loss_scale=1.3)
    backend = backend_of(problem.model)
    at = backend.point(problem, theta, scans.time)
    pieces = [on_device(block, "cpu:0") for _, block in blocks(scans)]

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
            backend.tile_grams(points, TileWork(pieces, [None], 1, 64, fields, linear))
