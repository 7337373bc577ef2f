"""Draws of a posterior: their width and priors; the likelihood against passes over the data."""

import jax.numpy as jnp
import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.apps.posterior import interpolated_likelihood as basis
from homodyne_dask.apps.posterior.interpolated_likelihood import likelihood_of, sample_pairs
from homodyne_dask.apps.posterior.log_density import coordinates
from homodyne_dask.apps.posterior.sample_posterior import request_of
from homodyne_dask.errors import OptionError
from homodyne_dask.solver.reduce import reduce
from tests.apps.posterior.samplers import TRUTH, sampler_of
from tests.kernels.user_functions import stretched
from tests.results.made_results import changed
from tests.synthetic import FLOW, angles, asked, measured, module_scan, store

scan = module_scan(lambda: measured(TRUTH, 60, angles(8), sigma=0.1, seed=4), "S")


@pytest.fixture(scope="module")
def drawn(scan):
    """A fit, draws of its posterior, the bases they took, the first of 3 columns, and what was said."""
    chosen, said, choose = [], [], basis.choose_basis

    def small_at_first(*arguments):
        with pytest.MonkeyPatch.context() as patch:
            if not chosen:
                patch.setattr(basis, "SIZES", (3,))
            chosen.append(choose(*arguments))
        return chosen[-1]

    result = hd.fit(scan, "static", fixed={"D_offset": 500.0})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(basis, "choose_basis", small_at_first)
        found = hd.posterior(result, scan, draws=2000, progress=said.append)
    return result, found, chosen, said


@pytest.mark.long
def test_a_basis_that_is_too_small_at_first_is_chosen_anew(drawn):
    _, found, chosen, said = drawn
    assert said[0] == "one pass at the optimum"
    assert found.tree["posterior"]["J"].shape == (25, 80, 50)
    assert np.isfinite(found.tree["log_likelihood"].to_dataset().to_array().values).all()
    assert said.count("wide pass over the data") == len(chosen) > 1
    assert found.plain["columns"] == len(chosen[-1].thetas) - 1 > 3
    assert found.plain["largest_error"] < 0.05


@pytest.mark.long
def test_draws_of_contrast_and_offset_have_their_own_spread(drawn):
    result, found, _, _ = drawn
    assert found.plain["adjust"] == "robust"
    for name in ("offset", "contrast"):
        spread = found.tree["posterior"][name].values.std((0, 1))
        error = result.scaling[f"{name}_stderr_naive"].values
        np.testing.assert_allclose(spread / found.plain["design_effect"] ** 0.5, error, rtol=0.25)


@pytest.mark.long
def test_f_outside_of_the_columns_raises_chisqr(scan, monkeypatch):
    monkeypatch.setattr(basis, "SIZES", (1,))
    made = sampler_of(scan, "static")
    near = made.target.u.x * (1 + 0.02 * np.random.default_rng(1).standard_normal((320, 3)))
    of = made.likelihood(near)
    thetas = made.target.u.theta * np.array([[1.6, 1, 1], [0.5, 1, 1], [1, 1.4, 1], [1, 0.6, 1]])
    grams = made.sweep.candidates(thetas)
    exact = np.array([reduce(gram, made.request.scaling).chisqr for gram in grams])
    exact -= made.reduced.chisqr
    found = likelihood_of(made.request.problem, of, thetas).chisqr.sum(1)
    assert (exact > 20).all()
    assert (found > 0.8 * exact).all()


@pytest.mark.long
def test_a_posterior_is_of_float64_and_of_the_chunks_that_were_fitted(tmp_path):
    whole = store(measured(TRUTH, 60, angles(3), sigma=0.1), tmp_path, "S")
    result = hd.fit(whole, "static", precision="mixed", fixed={"D_offset": 500.0})
    request = request_of(result, whole)
    assert result.config["precision"] == "mixed"
    assert request.problem.precision == "float64"
    less = result.provenance.inputs | {"chunks_left_out": [[1, 0, 0, 0]]}
    assert len(request_of(changed(result, inputs=less), whole).scan.excluded) == 1
    assert not request.scan.excluded


@pytest.mark.long
def test_a_parameter_without_bounds_needs_a_prior(scan):
    def decay(theta, t1, t2, bin):
        return jnp.exp(-(t2 - t1) / theta[0])

    model = hd.separable(decay, parameters=[hd.Parameter("tau", "s", (1.0, np.inf))])
    result = hd.fit(scan, model, initial={"tau": 5.0})
    with pytest.raises(OptionError, match=r"the prior of tau is flat, 1 to inf.*give it bounds"):
        hd.posterior(result, scan, adjust="none", draws=200)
    known = {"tau": ("lognormal", 5.0, 2.0)}
    assert hd.posterior(result, scan, adjust="none", draws=200, priors=known).reliable


@pytest.mark.slow
def test_a_robust_posterior_is_wider_by_the_design_effect_and_has_tails(scan):
    result = hd.fit(scan, "static", fixed={"D_offset": 500.0})
    found = hd.posterior(result, scan, draws=4000)
    assert found.plain["adjust"] == "robust"
    assert found.plain["dof"] == pytest.approx(np.nanmin(result.parameters["dof"].values))
    free = ~result.parameters["fixed"].values
    away = (found.theta - result.parameters["value"].values)[:, free]
    wide = np.quantile(np.abs(away), 0.5, axis=0) / result.parameters["stderr"].values[free]
    np.testing.assert_allclose(wide, 0.72, atol=0.08)  # half of a t of some 5 degrees of freedom


@pytest.mark.long
def test_the_prior_of_a_fit_is_that_of_its_posterior_and_counts_once(scan):
    whole = hd.fit(scan, "static", fixed={"D_offset": 500.0})
    value, error = (whole.parameters[n].values for n in ("value", "stderr_naive"))
    known = {"alpha": (value[1] + error[1], error[1])}
    result = hd.fit(scan, "static", fixed={"D_offset": 500.0}, prior=known)
    away = (result.parameters["value"].values[1] - known["alpha"][0]) / known["alpha"][1]
    assert result.chisqr - result.diagnosis.left_out["chisqr"].sum() == pytest.approx(
        away**2, rel=1e-6
    )
    found = hd.posterior(result, scan, draws=8000, adjust="none")
    assert found.summary["prior"].sel(param="alpha").item().startswith("normal")
    after = result.parameters
    mean, sd = found.theta[:, 1].mean(), found.theta[:, 1].std()
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
def test_what_has_no_posterior_is_a_sentence(scan, word):
    options, more, sentence = WRONG[word]
    result = hd.fit(scan, "static", **options)
    with pytest.raises(OptionError, match=sentence):
        hd.posterior(result, scan, **more)


def test_other_data_are_refused(scan, tmp_path):
    other = store(measured(TRUTH, 60, angles(8), sigma=0.1, seed=5), tmp_path, "S")
    result = hd.fit(scan, "static")
    with pytest.raises(OptionError, match="is not the store that was fitted"):
        hd.posterior(result, other)
    with pytest.raises(OptionError, match="used frames"):
        hd.posterior(result, scan.select(frames=(0, 40)))


STRETCHED = hd.separable(
    stretched,
    parameters=[
        hd.Parameter("rate", "Å²/s", (1.0, 1e6), scale="log"),
        hd.Parameter("gamma", "", (0.1, 2)),
    ],
)
CASES = {
    "individual": ("static", {}),
    "shared": ("static", {"scaling": "shared"}),
    "Fourier series": ("static", {"scaling": "fourier1"}),
    "fixed": ("static", {"scaling": "fixed", "contrast": 0.2, "offset": 1.0}),
    "priors of contrast and offset": (
        "static", {"contrast": {"prior": (0.25, 0.002)}, "offset": {"prior": (1.0, 0.0005)}},
    ),
    "shared, with a prior": ("static", {"scaling": "shared", "contrast": {"prior": (0.25, 0.001)}}),
    "mixed precision": ("static", {"precision": "mixed"}),
    "homodyne": ("static", {"convention": "homodyne"}),
    "user-defined": (STRETCHED, {}),
}  # fmt: skip
still = module_scan(
    lambda: measured(TRUTH, 70, angles(9), contrast=0.2 + 0.02 * np.cos(np.arange(9)), seed=4)
)


QUICK = ("individual", "priors of contrast and offset")


@pytest.mark.long(whole=True)
@pytest.mark.parametrize(
    "word", [pytest.param(w, marks=[] if w in QUICK else pytest.mark.slow) for w in CASES]
)
def test_chisqr_contrast_and_offset_are_those_of_a_pass(still, word):
    model, options = CASES[word]
    sampler = sampler_of(still, model, **options)
    _, mixture, near = sampler.explored()
    of = sampler.likelihood(near)
    assert of.basis.error < 0.05
    u = sampler.target.u
    x = sampler.target.z.to_x(mixture.draws(40, np.random.default_rng(0)))
    thetas = u.to_theta(x[u.inside(x)][:12])
    found = likelihood_of(sampler.request.problem, of, thetas)
    mixed, compared = word == "mixed precision", 0
    for n, theta in enumerate(thetas):
        exact = reduce(
            sampler.sweep.gram(theta), sampler.request.scaling, sampler.request.sum_rounding
        )
        change = exact.chisqr - sampler.reduced.chisqr
        if change > 60:  # no draw of the posterior, whose tails are less wide than a proposal's
            continue
        compared += 1
        error = 0.02 * (1 + np.sqrt(max(change, 0))) + (0.5 if mixed else 0)
        assert found.chisqr[n].sum() == pytest.approx(change, abs=error)
        bins = exact.chisqr_per_bin - sampler.reduced.chisqr_per_bin
        np.testing.assert_allclose(found.chisqr[n], bins, atol=error)
        np.testing.assert_allclose(found.linear_params[n], exact.linear_params, atol=2e-5)
    assert compared >= 8


@pytest.mark.long
def test_the_spread_of_contrast_and_offset_is_that_of_their_normal_equations(still):
    sampler = sampler_of(still, "static")
    of = sampler.likelihood(sampler.explored()[2])
    theta = sampler.target.u.theta[None]
    spread = np.asarray(likelihood_of(sampler.request.problem, of, theta).spread)[0]
    covariance = spread @ np.swapaxes(spread, 1, 2)
    np.testing.assert_allclose(covariance, sampler.reduced.inverse, rtol=1e-6)


@pytest.mark.long
def test_the_curvature_of_an_adjusted_likelihood_is_that_of_the_robust_covariance(still):
    sampler = sampler_of(still, "static", adjust="robust", fixed={"D_offset": 500.0})
    coordinates_u, adjustment = sampler.target.u, sampler.target.adjustment
    assert adjustment.kind == "robust"
    result = hd.fit(still, "static", fixed={"D_offset": 500.0})
    error = result.parameters["stderr"].values[coordinates_u.free]
    slope = coordinates_u.slope()
    covariance = np.linalg.inv(slope.T @ adjustment.precision @ slope)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), error, rtol=1e-6)
    rng = np.random.default_rng(1)
    d = 1e-3 * rng.standard_normal((20, len(coordinates_u.x))) * error @ slope.T
    u = adjustment.centre + d
    chisqr = np.einsum("ni,ij,nj->n", d, adjustment.hessian, d) - adjustment.below
    found = adjustment.log_likelihood(u, chisqr)
    wanted = -0.5 * np.einsum("ni,ij,nj->n", d, adjustment.precision, d)
    p, dof = len(coordinates_u.x), adjustment.dof
    np.testing.assert_allclose(found, wanted * (dof + p) / dof, rtol=1e-3)


def test_coordinates_have_their_slopes_and_lead_back():
    search = asked(measured(FLOW, 40, angles(3)))
    u = coordinates(search, FLOW, search.laws)
    assert len(u.laws) == 2
    assert (u.upper - u.lower)[6] == 180
    x = FLOW * (1 + 0.1 * np.random.default_rng(2).standard_normal((50, 7)))
    for n, step in enumerate(np.diag(1e-6 * np.abs(FLOW))):
        change = (u.from_x(FLOW + step) - u.from_x(FLOW - step)) / (2 * step[n])
        np.testing.assert_allclose(u.slope()[:, n], change, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(u.to_x(u.from_x(x)), x, rtol=1e-8)


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    scan = store(measured([2e4, -0.4, 500.0], 60, angles(4)), tmp_path_factory.mktemp("pairs"), "S")
    scan = scan.select(frames=(3, 60))
    return [sample_pairs(scan, 1, np.random.default_rng(seed)) for seed in range(40)]


def test_sums_over_a_sample_are_on_average_those_over_all_pairs(samples):
    i, j = np.triu_indices(57, 1)
    for of in (lambda i, j: np.ones(len(i)), lambda i, j: 1 / (1.0 + i), lambda i, j: j * 1.0):
        wanted = of(i, j).sum()
        found = [(s.number * of(s.i - 3.0, s.j - 3.0)).sum() for s in samples]
        error = np.std(found) / np.sqrt(len(found))
        assert np.mean(found) == pytest.approx(wanted, abs=4 * error + 0.01 * wanted)


def test_early_frames_are_sampled_more_than_late_ones(samples):
    first = np.mean([(s.i < 9).mean() for s in samples])
    assert first > 0.25  # a tenth of the frames
    for s in samples:
        assert (s.i >= 3).all()
        assert (s.j < 60).all()
        assert (s.j > s.i).all()
