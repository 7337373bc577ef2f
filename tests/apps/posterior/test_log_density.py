"""The width of the likelihood of a posterior.

It is in all directions as the bins scatter, with few bins nearer to the mean or that of speckle noise.
"""

import numpy as np
import pytest
from scipy.ndimage import uniform_filter

import homodyne_dask as hd
from homodyne_dask.apps.posterior import log_density as adjustment
from homodyne_dask.errors import OptionError
from tests.apps.posterior.samplers import sampler_of
from tests.photons import STILL, photographed
from tests.synthetic import angles, measured, module_scan, store

TRUTH = np.array([3e4, -0.3, 1e3])
BINS = 9
still = module_scan(lambda: measured(TRUTH, 60, angles(BINS), seed=5), "S")


def ratios(covariance, hessian):
    """Variances of directions over those of independent noise, in ascending order."""
    values, vectors = np.linalg.eigh(hessian)
    root = vectors * np.sqrt(values)
    return np.linalg.eigvalsh(root.T @ covariance @ root)


def adjusted(scan, model, **options):
    """The adjustment of a fit, and the ratios of its directions."""
    found = sampler_of(scan, model, adjust="robust", **options).target.adjustment
    return found, ratios(np.linalg.inv(found.precision), found.hessian)


@pytest.mark.long
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
    assert "shrunk toward their mean size" in some.note
    assert some.dof > whole.dof
    share = 3 / (3 + BINS)
    np.testing.assert_allclose(near, (1 - share) * known + share * whole.factor, rtol=1e-6)


def test_with_few_they_are_all_alike(still, monkeypatch):
    monkeypatch.setattr(adjustment, "_FOR_SOME", 4)
    few, alike = adjusted(still, "static")
    assert few.kind == "magnitude"
    np.testing.assert_allclose(alike, few.factor, rtol=1e-6)


HELD = {"fixed": {"D_offset": STILL[2]}}


@pytest.fixture(scope="module")
def one_ring():
    return photographed(STILL, 80, [0.0], 3, pixels=400)


@pytest.fixture(scope="module")
def ring(one_ring, tmp_path_factory):
    return store(one_ring, tmp_path_factory.mktemp("ring"), "S")


@pytest.fixture(scope="module")
def of_ring(ring):
    return hd.fit(ring, "static", **HELD).parameters


def widths_of(found):
    return np.sqrt(np.diag(np.linalg.inv(found.precision)))


@pytest.mark.long
def test_the_posterior_of_one_ring_is_as_wide_as_the_noise_of_speckle(ring, of_ring):
    found, _ = adjusted(ring, "static", **HELD)
    assert found.kind == "robust"
    assert found.note == "widths and correlations correspond to the speckle and counting noise"
    assert found.dof == np.nanmin(of_ring["dof"])
    value, stderr = (of_ring[key].values for key in ("value", "stderr"))
    # of ln D0 and alpha
    np.testing.assert_allclose(widths_of(found), stderr[:2] / [value[0], 1.0], rtol=1e-6)


def test_what_a_prior_adds_to_the_errors_of_one_ring_is_no_part_of_its_likelihood(ring, of_ring):
    """The prior is around what the data say, so that the optimum is the same."""
    alone, _ = adjusted(ring, "static", **HELD)
    value, stderr = (of_ring[key].values for key in ("value", "stderr"))
    prior = {"alpha": (value[1], stderr[1] / 2)}
    found, _ = adjusted(ring, "static", prior=prior, **HELD)
    np.testing.assert_allclose(widths_of(found), widths_of(alone), rtol=0.02)
    assert found.dof == pytest.approx(alone.dof, rel=0.05)


def test_one_ring_with_a_parameter_at_its_bound_has_the_size_of_the_noise_of_speckle(ring, of_ring):
    beyond = float(of_ring["optimum"].values[1]) + 0.1
    found, alike = adjusted(ring, "static", bounds={"alpha": (beyond, beyond + 1)}, **HELD)
    assert found.kind == "magnitude"
    assert found.note == "widths correspond on average to the speckle and counting noise"
    assert found.factor > 1.5
    np.testing.assert_allclose(alike, found.factor, rtol=1e-6)


def test_one_ring_whose_noise_is_not_of_speckle_has_no_width_but_a_naive_one(one_ring, tmp_path):
    upper = np.nan_to_num(one_ring.c2)
    whole = upper + np.swapaxes(upper, 1, 2) + np.eye(80) * np.nanmax(upper)
    scan = store(one_ring, tmp_path, c2=uniform_filter(whole, (0, 2, 2)))
    (absent,) = hd.fit(scan, "static", **HELD).findings.of("no-standard-error")
    assert absent.numbers["why"] == "deviating"
    with pytest.raises(OptionError, match="sample a fit of 8 or more independent bins"):
        adjusted(scan, "static", **HELD)
