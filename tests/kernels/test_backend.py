"""J, shear rate and strain of many thetas are those of each."""

import numpy as np
import pytest

from homodyne_dask.kernels.backend import backend_of
from homodyne_dask.kernels.problem import Problem
from homodyne_dask.models import LAMINAR_FLOW, STATIC, Convention
from homodyne_dask.models.transport import RATE_FLOOR
from tests.synthetic import GAP

THETAS = np.array(
    [
        [2e4, -0.4, 1e3, 9e-4, -0.2, 1e-5, 3.0],
        [1e3, 0.5, -2e3, 1e-3, 0.1, -2e-3, -40.0],  # both rates change sign
    ]
)


@pytest.mark.parametrize("convention", Convention)
@pytest.mark.parametrize("model", [STATIC, LAMINAR_FLOW], ids=lambda model: model.name)
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
