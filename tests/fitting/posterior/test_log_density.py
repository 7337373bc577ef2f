"""The density of a posterior: the prior of a periodic parameter, and the width of the likelihood.

It is in all directions as the bins scatter, or with few bins nearer to the mean.
"""

import numpy as np
import pytest

from homodyne_dask.fitting.posterior import log_density as adjustment
from homodyne_dask.fitting.posterior.log_density import Adjustment, Target
from homodyne_dask.fitting.surrogate.coordinates import coordinates
from homodyne_dask.models.parameter_priors import default_prior
from tests.fitting.posterior.samplers import sampler_of
from tests.synthetic import FLOW, angles, asked, measured, store


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


TRUTH = np.array([3e4, -0.3, 1e3])
BINS = 9


@pytest.fixture(scope="module")
def still(tmp_path_factory):
    scans = measured(TRUTH, 60, angles(BINS), seed=5)
    return store(scans, tmp_path_factory.mktemp("adjustment"), "S")


def ratios(covariance, hessian):
    """Variances of directions over those of independent noise, in ascending order."""
    values, vectors = np.linalg.eigh(hessian)
    root = vectors * np.sqrt(values)
    return np.linalg.eigvalsh(root.T @ covariance @ root)


def adjusted(scan, model, **options):
    """The adjustment of a fit, and the ratios of its directions."""
    found = sampler_of(scan, model, adjust="robust", **options).target.adjustment
    return found, ratios(np.linalg.inv(found.precision), found.hessian)


def test_with_bins_enough_directions_are_as_wide_as_the_bins_scatter(still):
    found, known = adjusted(still, "static", fixed={"D_offset": 1e3})
    assert found.kind == "robust"
    assert "drawn" not in found.note
    assert known.mean() == pytest.approx(found.factor)
    assert known[-1] > 1.05 * known[0]


def test_with_fewer_they_are_nearer_to_their_mean(still, monkeypatch):
    whole, known = adjusted(still, "static")
    monkeypatch.setattr(adjustment, "_FOR_ALL", 4)
    some, near = adjusted(still, "static")
    assert "drawn toward their mean size" in some.note
    assert some.dof > whole.dof
    share = 3 / (3 + BINS)
    np.testing.assert_allclose(near, (1 - share) * known + share * whole.factor, rtol=1e-6)


def test_with_few_they_are_all_alike(still, monkeypatch):
    monkeypatch.setattr(adjustment, "_FOR_SOME", 4)
    few, alike = adjusted(still, "static")
    assert few.kind == "magnitude"
    np.testing.assert_allclose(alike, few.factor, rtol=1e-6)
