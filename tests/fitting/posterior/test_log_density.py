"""The density of a posterior: a prior of a periodic parameter holds one period on."""

import numpy as np

from homodyne_dask.fitting.posterior.log_density import Adjustment, Target
from homodyne_dask.fitting.surrogate.coordinates import coordinates
from homodyne_dask.models.parameter_priors import default_prior
from tests.synthetic import FLOW, angles, asked, measured


def test_a_direction_beyond_the_end_of_its_bounds_is_the_one_a_period_back():
    search = asked(measured(FLOW, 40, angles(3)))
    theta = np.append(FLOW[:6], 89.0)
    at = coordinates(search, theta)
    priors = {
        p.name: default_prior(p)
        for p in measured(FLOW, 40, angles(3)).model.parameters
    }  # fmt: skip
    unit = np.eye(7)
    adjustment = Adjustment("none", "", 1.0, np.inf, at.of(theta), 0.0, unit, unit)
    target = Target(at, adjustment, priors)
    beyond, back = theta + 3 * unit[6], theta - 177 * unit[6]
    assert np.isfinite(target.log_prior(beyond))
    assert target.log_prior(beyond) == target.log_prior(back)
    assert target.log_prior(theta - 2 * theta[0] * unit[0]) == -np.inf
