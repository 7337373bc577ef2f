"""Strengths of smoothing of rates that the data show, and of one that they do not."""

import warnings

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.solver.penalty_strength import penalized
from homodyne_dask.solver.reduce import reduce
from homodyne_dask.sweep.sweep import sweep_of
from tests.synthetic import FLOW, GAP, angles, measured, plan_here, store


@pytest.mark.parametrize("rate", [0.0, 1e-160, 1e-155, 1e-100, 1e-30, 1e-4])
def test_a_shear_rate_that_no_pair_shows_has_a_finite_smoothing(rate, tmp_path):
    """The curvature of χ² was above zero by its rounding only, and the strengths overflowed."""
    scan = store(measured(FLOW, 12, angles(4)), tmp_path)
    request = prepare(scan, hd.LAMINAR_FLOW, rates="spline", gap=GAP)
    sweep = sweep_of(plan_here(request), scan.selection, request.problem, None)
    places = request.problem.model.places
    theta = np.zeros(request.problem.model.size)
    theta[places["J"]], theta[places["gamma_dot"]] = 2500.0, rate
    reduced = reduce(sweep.gram(theta), request.scaling, request.sum_rounding)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        penalty = penalized(request.search, theta, reduced).penalty
    assert penalty is not None
    assert (penalty.strengths.values > 0).all()
    assert np.isfinite(penalty.weight).all()
