"""Rates of free form: splines, the kernel with any number of tables, fits, smoothing, and what is refused."""

import warnings

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import OptionError
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.kernels.backend_interface import Problem
from homodyne_dask.kernels.transport_backend import TRANSPORT
from homodyne_dask.models import Convention
from homodyne_dask.models.rate_forms import Smoothness, SplineForm
from homodyne_dask.models.transport import LAMINAR_FLOW_FREE, STATIC_FREE
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.solver.penalty_strength import penalized
from homodyne_dask.solver.reduce import reduce
from homodyne_dask.sweep.sweep import sweep_of
from tests.applications import public
from tests.synthetic import FLOW, GAP, angles, blocks, fit_here, measured, of_rate, plan_here, store

FORM = SplineForm(7, 0.0, 13.0)


def test_splines_sum_to_one_and_are_constant_outside():
    t = np.linspace(-3, 20, 60)
    assert np.allclose(FORM.basis(t).sum(0), 1)
    assert np.allclose(FORM.basis(np.array([20.0])), FORM.basis(np.array([13.0])))


def test_a_straight_line_is_in_the_splines_and_costs_no_roughness():
    t = np.linspace(0, 13, 50)
    c = FORM.projected(t, 3 + 2 * t)
    assert np.allclose(c @ FORM.basis(t), 3 + 2 * t)
    assert np.allclose(np.diff(c, 2), 0, atol=1e-9)


@pytest.mark.parametrize("exponent", [0.0, 2.0])
def test_a_penalty_is_a_quadratic_form_with_the_slope_that_it_says(exponent):
    form, rng = SplineForm(9, 0.0, 10.0), np.random.default_rng(0)
    smoothness = Smoothness({"J": slice(1, 10)}, {"J": form}, {}, np.arange(3))
    theta, strengths, exponents = rng.normal(size=11), np.array([3.0]), np.array([exponent])
    S = smoothness.matrices(11, exponents)[0]
    assert smoothness.penalties(theta, exponents) == pytest.approx(theta @ S @ theta)
    assert smoothness.slope(strengths, exponents, theta) == pytest.approx(3 * S @ theta)
    assert np.linalg.matrix_rank(S) == 7
    assert form.ages == pytest.approx(np.array([0.5, 1, 2, 3, 4, 5, 6]) / 6, abs=0.2)


def _free(model, n):
    return model.with_splines(dict.fromkeys(model.splines, SplineForm(n, 0.0, 39 / 3)))


def _columns(model, convention, theta, scans, b):
    """X = [1, y - 1, f, ∂f/∂theta] of the pairs of a bin, derivatives by central differences."""

    def f(at):
        return hd.predict(
            model, at, scans.time, q=scans.q[b], phi=scans.phi[b], gap=GAP, convention=convention
        )[0][i, j]

    i, j = np.triu_indices(len(scans.time), 1)
    y = scans.c2[b][i, j].astype(float)
    steps = 1e-5 * np.maximum(np.abs(theta), 1e-5)
    slopes = [
        (f(theta + h * e) - f(theta - h * e)) / (2 * h)
        for h, e in zip(steps, np.eye(len(theta)), strict=True)
    ]
    return np.stack([np.ones(len(i)), y - 1, f(theta), *slopes]), scans.sigma_row[b, i] ** -2 * (
        scans.sigma_row[b, j] ** -2
    )


@pytest.mark.long(whole=True)
@pytest.mark.parametrize(
    ("model", "convention"), [(STATIC_FREE, "physical"), (LAMINAR_FLOW_FREE, "homodyne")]
)
def test_the_gram_is_that_of_the_jacobian(model, convention):
    scans, free = measured(FLOW, 40, (10.0, 80.0)), _free(model, 6)
    theta = free.from_law(FLOW if model.shear else FLOW[:3], np.maximum(scans.time, 1 / 6))
    problem = Problem(free, Convention(convention), GAP)
    at = TRANSPORT.point(problem, theta, scans.time)
    linear = Problem(free, Convention(convention), GAP, loss="huber", loss_scale=1e6)
    of_loss = TRANSPORT.point(linear, theta, scans.time)
    total = robust = 0.0
    for _, block in blocks(scans, 16):
        total = total + TRANSPORT.gram(at, block)[0].moments
        params = np.tile([0.0, 0.2], (len(block.q), 1))
        robust = robust + TRANSPORT.robust_gram(of_loss, block, params).moments
    for b in range(2):
        X, w = _columns(free, convention, theta, scans, b)
        expected = (X * w) @ X.T
        size = np.sqrt(np.diag(expected))
        assert np.allclose(
            total[b] / np.outer(size, size), expected / np.outer(size, size), atol=1e-6
        )
        assert np.allclose(total[b], robust[b], rtol=1e-9, atol=1e-9 * np.abs(total[b]).max())


@pytest.fixture(scope="module")
def stepped(tmp_path_factory):
    scans = measured((2500.0, 0.0, 0.0), 90, angles(8), contrast=0.3, sigma=0.05)
    J = 2500 * (1 + 2 / (1 + np.exp(-(scans.time - 15) / 1.5)))
    return store(of_rate(scans, J, 0.05, seed=4), tmp_path_factory.mktemp("stepped")), J


@pytest.fixture(scope="module")
def fitted(stepped):
    return fit_here(stepped[0], "static", rates="spline", knots=12)


@pytest.mark.long
def test_a_step_is_found_without_a_formula(stepped, fitted):
    scan, J = stepped
    form = SplineForm(**fitted.config["splines"]["J"])
    basis = form.basis(np.maximum(scan.time, 1 / 6))
    found = fitted.parameters["value"].values @ basis
    covariance = fitted.covariance.values
    error = np.sqrt(np.einsum("kn,kl,ln->n", basis, covariance, basis))
    assert fitted.converged
    assert np.median(np.abs(found / J - 1)) < 0.05
    assert np.mean(np.abs(found - J) < 2.5 * error) > 0.9


@pytest.mark.long
def test_a_rate_that_bends_early_is_smooth_later(fitted, tmp_path):
    """The penalty of a step has no age, that of ageing grows with it."""
    ageing = measured((2e4, -0.6, 0.0), 60, angles(8), contrast=0.3, sigma=0.03)
    found = fit_here(store(ageing, tmp_path), "static_free", knots=12)
    assert float(fitted.diagnosis.smoothing["exponent"][0]) == 0
    assert float(found.diagnosis.smoothing["exponent"][0]) >= 1


@pytest.mark.long(whole=True)
@pytest.mark.parametrize(
    ("model", "rates"), [("static_free", None), ("brownian", "spline"), ("power_law", "J=spline")]
)
def test_names_of_models_and_the_option_mean_the_same(model, rates, stepped, fitted):
    again = fit_here(stepped[0], model, rates=rates, knots=12)
    assert np.array_equal(again.parameters["value"], fitted.parameters["value"])


@pytest.mark.long
def test_coefficients_are_not_negative_and_bounds_hold_for_the_rate(stepped):
    result = fit_here(stepped[0], "static_free", knots=6, bounds={"J": (0, 4000)})
    assert (result.parameters["value"].values <= 4000).all()


@pytest.mark.long
def test_a_stored_result_knows_its_splines(fitted, stepped, tmp_path):
    fitted.to_json(tmp_path / "fit.json")
    read = hd.load_result(tmp_path / "fit.json")
    t = stepped[0].time
    one, other = (FitView(r, stepped[0]).model for r in (fitted, read))
    bins = np.arange(2)
    assert np.array_equal(one.shape(bins, t[:5], t[20:25]), other.shape(bins, t[:5], t[20:25]))


@pytest.mark.long
def test_a_posterior_is_refused_in_a_sentence(fitted, stepped):
    posterior = public("posterior")
    with pytest.raises(OptionError, match="smoothed by a penalty"):
        posterior(fitted, stepped[0])


@pytest.mark.long
def test_resuming_gives_the_same_bits(fitted, stepped, tmp_path):
    path = tmp_path / "free.ckpt"
    asked = {"rates": "spline", "knots": 12, "checkpoint": path}
    assert fit_here(stepped[0], "static", stop_after=2, **asked) is None
    again = fit_here(stepped[0], "static", resume=True, **asked)
    assert np.array_equal(again.parameters["value"], fitted.parameters["value"])
    assert again.diagnosis.smoothing.equals(fitted.diagnosis.smoothing)


def test_of_a_flow_whose_rates_of_free_form_are_all_fixed_the_direction_is_found(tmp_path):
    """Its search asked for the exponent of a power law that it has not."""
    flow = measured((2500.0, 0, 0, 2e-4, 0, 0, 30.0), 30, angles(6), sigma=0.01)
    fixed = {"J": 2500.0, "gamma_dot": 2e-4}
    result = hd.fit(store(flow, tmp_path), "laminar_flow", rates="spline", gap=GAP, fixed=fixed)
    assert result.params["phi0"].value == pytest.approx(30, abs=5)


@pytest.mark.long
def test_a_prediction_spreads_the_splines_over_its_times(fitted, stepped):
    """The model of that name has no places of splines: those of a fit follow its frames."""
    scan, names = stepped[0], fitted.parameters["param"].values.tolist()
    of_fit = FitView(fitted, scan).model.shape(np.arange(1), scan.time[:1], scan.time[[10, 89]])
    for params in (
        fitted.parameters["value"].values,
        dict(zip(names, fitted.parameters["value"].values.tolist(), strict=True)),
    ):
        f = hd.predict("static_free", params, scan.time, q=scan.q[0])[0]
        assert f[0, [10, 89]] == pytest.approx(of_fit[0], rel=1e-9)
    with pytest.raises(OptionError, match="20 parameters"):
        hd.predict("static_free", [1.0, 2.0], scan.time, q=0.01)


@pytest.mark.long(whole=True)
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
