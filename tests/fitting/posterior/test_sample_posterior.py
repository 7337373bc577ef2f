"""The width of a posterior, its priors, and sentences for what has none."""

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import OptionError
from homodyne_dask.fitting.posterior.sample_posterior import posterior_draws
from tests.fitting.posterior.samplers import TRUTH
from tests.synthetic import angles, measured, module_scan, store

still = module_scan(lambda: measured(TRUTH, 60, angles(8), sigma=0.1, seed=4), "S")


@pytest.mark.slow
def test_a_robust_posterior_is_wider_by_the_design_effect_and_has_tails(still):
    result = hd.fit(still, "static", fixed={"D_offset": 500.0})
    found = posterior_draws(result, still, draws=4000)
    assert found.adjust == "robust"
    assert found.dof == pytest.approx(np.nanmin(result.parameters["dof"].values))
    free = ~result.parameters["fixed"].values
    away = (found.flat - result.parameters["value"].values)[:, free]
    wide = np.quantile(np.abs(away), 0.5, axis=0) / result.parameters["stderr"].values[free]
    np.testing.assert_allclose(wide, 0.72, atol=0.08)  # half of a t of some 5 degrees of freedom


@pytest.mark.long
def test_a_prior_is_part_of_the_density(still):
    result = hd.fit(still, "static", fixed={"D_offset": 500.0})
    value = result.parameters["value"].values
    narrow = {"D0": (value[0], 1e-4 * value[0])}
    found = posterior_draws(result, still, priors=narrow, draws=1000, adjust="none")
    assert found.flat[:, 0].std() == pytest.approx(1e-4 * value[0], rel=0.1)
    assert found.priors["D0"].startswith("normal")
    assert found.priors["alpha"].startswith("uniform, -2 to 2")
    np.testing.assert_array_equal(found.flat[:, 2], 500.0)


@pytest.mark.long
def test_the_prior_of_a_fit_is_that_of_its_posterior_and_counts_once(still):
    whole = hd.fit(still, "static", fixed={"D_offset": 500.0})
    value, error = (whole.parameters[n].values for n in ("value", "stderr_naive"))
    known = {"alpha": (value[1] + error[1], error[1])}
    result = hd.fit(still, "static", fixed={"D_offset": 500.0}, prior=known)
    away = (result.parameters["value"].values[1] - known["alpha"][0]) / known["alpha"][1]
    assert result.chisqr - result.diagnosis.left_out["chisqr"].sum() == pytest.approx(
        away**2, rel=1e-6
    )
    found = posterior_draws(result, still, draws=8000, adjust="none")
    assert found.priors["alpha"].startswith("normal")
    after = result.parameters
    mean, sd = found.flat[:, 1].mean(), found.flat[:, 1].std()
    assert mean == pytest.approx(after["value"].values[1], abs=0.1 * error[1])
    assert sd == pytest.approx(after["stderr_naive"].values[1], rel=0.06)


AT_BOUND = {"fixed": {"alpha": -0.4, "D_offset": 500.0}, "bounds": {"D0": (1.0, 1000.0)}}
WRONG = {
    "passes": ({"max_passes": 1}, {}, "needs a fit that converged; this fit ended"),
    "all at bounds": (AT_BOUND, {}, "all free parameters ended at a bound"),
    "loss": ({"loss": "huber"}, {}, "a fit with loss 'huber' has no likelihood"),
    "bounds": ({"contrast": {"bounds": (0, 1)}}, {}, "fit with a prior of it instead"),
    "adjust": ({}, {"adjust": "robst"}, "adjust = 'robst' is unknown; did you mean 'robust'"),
    "draws": ({}, {"draws": 3}, "draws = 3 .*a whole number of at least 100"),
    "seed": ({}, {"seed": -1}, "seed = -1 .*a whole number"),
    "unknown prior": ({}, {"priors": {"D00": (1, 2)}}, "unknown parameter 'D00'"),
    "prior outside": ({}, {"priors": {"D0": ("uniform", -5, -1)}}, "outside the bounds"),
}


@pytest.mark.long
@pytest.mark.parametrize("word", WRONG)
def test_what_has_no_posterior_is_a_sentence(still, word):
    options, more, sentence = WRONG[word]
    result = hd.fit(still, "static", **options)
    with pytest.raises(OptionError, match=sentence):
        posterior_draws(result, still, **more)


def test_other_data_are_refused(still, tmp_path):
    other = store(measured(TRUTH, 60, angles(8), sigma=0.1, seed=5), tmp_path, "S")
    result = hd.fit(still, "static")
    with pytest.raises(OptionError, match="is not the store that was fitted"):
        posterior_draws(result, other)
    with pytest.raises(OptionError, match="used frames"):
        posterior_draws(result, still.select(frames=(0, 40)))


@pytest.mark.long
def test_the_public_function_returns_a_posterior_with_bands(still):
    result = hd.fit(still, "static")
    found = hd.posterior(result, draws=200, progress=(said := []).append)
    assert "one pass at the optimum" in said
    assert found.tree["posterior"]["J"].shape == (1, 200, 50)
    assert np.isfinite(found.tree["log_likelihood"].to_dataset().to_array().values).all()
