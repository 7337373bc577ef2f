"""Quantities of a fit and their errors, and whether those of several fits agree."""

import numpy as np
import pytest
from scipy import stats

from homodyne_dask.models.rate_forms import rate_stderr
from homodyne_dask.results.data.findings import OF_MISFIT, Findings, finding
from homodyne_dask.results.data.fit_result import covariance_table, parameter_table
from homodyne_dask.results.data.fit_rows import Quantity, fit_row, quantities_of
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.data.numbers_and_intervals import half_width
from homodyne_dask.results.data.rate_curves import rates_in
from homodyne_dask.results.data.series import homogeneity_test, power_law_of_q
from tests.results.made_results import (
    FLOW,
    FLOW_COVARIANCE,
    changed,
    config_of,
    flow_result,
    rate_dof,
    result_for,
)


@pytest.mark.parametrize(
    ("stderr", "words"), [(1.5, "-2.0 ± 1.5 at bound"), (np.nan, "-2 at bound")]
)
def test_a_value_at_a_bound_is_shown_with_the_error_that_tests_of_agreement_use(stderr, words):
    assert str(Quantity("1/s", -2.0, stderr, np.nan, 8.0, at_bound=True)) == words


def rates_at_mean_age(result):
    result = changed(result, inputs=result.provenance.inputs | {"frame_time": 0.1})
    return fit_row("", None, result, at={"age": 3.0}).quantities


@pytest.mark.parametrize(("method", "known"), [("cluster-robust", False), ("speckle", True)])
def test_the_scatter_of_bins_gives_a_rate_an_error_from_four_degrees_of_freedom_on(
    flowing, method, known
):
    freedom = rate_dof(J=3.0, J_integral=3.0, gamma_dot=5.0, strain=5.0)
    result = result_for(flowing, FLOW, covariance=FLOW_COVARIANCE, rate_dof=freedom)
    result = changed(result, parameters=result.parameters.assign_attrs(method=method))
    at_mean_age, curves = rates_at_mean_age(result), rates_in(FitView(result, flowing))
    assert np.isfinite(at_mean_age["J"].stderr) == known
    assert np.isfinite(curves["J_high_95"].values).all() == known
    assert at_mean_age["gamma_dot"].dof == 5
    assert np.isfinite(curves["gamma_dot_high_95"].values).all()


def test_rounding_is_no_error_and_a_gradient_of_zero_has_none():
    covariance = np.array([[1e16, -1e16], [-1e16, 1e16]])
    gradient = np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    np.testing.assert_array_equal(rate_stderr(gradient, covariance), [np.nan, 1e8, 0.0])


def test_an_error_of_few_degrees_of_freedom_has_its_interval_beside_it():
    few = Quantity("", 100.0, 10.0, np.nan, dof=5.0)
    assert few.interval == "74 to 126 (dof 5.0)"
    assert (few.low_95, few.high_95) == pytest.approx((100 - 25.70582, 100 + 25.70582), rel=1e-6)
    assert few._replace(dof=50.0).interval == ""
    assert few._replace(stderr=np.nan, dof=np.nan).interval == ""


def test_no_interval_is_shown_of_a_misfit_and_no_error_where_only_a_limit_is_known(flowing):
    found = finding("limits-only", ["D0"], limits={"D0": [None, 1760.4, "Å²/s"]})
    few = {"stderr": np.full(7, 0.1), "dof": np.full(7, 5.0)}
    for findings in ((), (found, finding("model-misfit-shape", share=0.1, p=0.001))):
        result = result_for(
            flowing, FLOW, covariance=FLOW_COVARIANCE, table=few, findings=Findings(findings)
        )
        quantities, report = quantities_of(result), result.report()
        row = next(line for line in report.splitlines() if line.startswith("D0 "))
        assert bool(findings) == (str(quantities["D0"]) == "below 1.76e+03") == ("±" not in row)
        assert "±" in str(quantities["J"])
        assert bool(findings) == (OF_MISFIT in " ".join(report.split()))


def test_agreement_with_few_degrees_of_freedom_is_that_of_welch():
    rng = np.random.default_rng(3)
    groups = [rng.normal(0.3 * n, 1 + n, 4 + n) for n in range(4)]
    value, stderr, dof = np.array(
        [(g.mean(), g.std(ddof=1) / len(g) ** 0.5, len(g) - 1) for g in groups]
    ).T
    wanted = stats.f_oneway(*groups, equal_var=False)
    assert homogeneity_test(value, stderr, dof).p == pytest.approx(wanted.pvalue, rel=1e-9)
    certain = homogeneity_test(value, stderr, np.full(4, np.nan))
    mean = np.average(value, weights=stderr**-2.0)
    assert certain.mean == pytest.approx(mean)
    assert certain.p == pytest.approx(stats.chi2.sf((((value - mean) / stderr) ** 2).sum(), 3))


def test_of_few_values_nothing_is_said_or_nothing_tested():
    nan, one, two = np.nan, np.array([1.0, 1.0]), np.array([1.0, 2.0])
    assert homogeneity_test(two, np.array([0.1, nan]), np.full(2, nan)) is None
    assert power_law_of_q(two, np.array([1.0, -1.0]), np.ones(2)) is None
    assert power_law_of_q(one, two, np.ones(2)) is None
    law = power_law_of_q(two, two**2, 0.1 * two**2)
    assert law.exponent == pytest.approx(2.0)
    assert (law.freedom, law.chisqr) == (0, pytest.approx(0.0, abs=1e-20))
    assert np.isnan(law.p)


def test_the_exponent_is_that_of_a_weighted_line_through_logarithms():
    x, y = np.array([1.0, 2.0, 3.0, 5.0]), np.array([2.0, 3.0, 7.0, 9.0])
    stderr = np.array([0.1, 0.2, 0.3, 0.1])
    slope, covariance = np.polyfit(np.log(x), np.log(y), 1, w=y / stderr, cov="unscaled")
    found = power_law_of_q(x, y, stderr)
    assert found.exponent == pytest.approx(slope[0])
    residual = (
        np.log(y) - np.polyval(np.polyfit(np.log(x), np.log(y), 1, w=y / stderr), np.log(x))
    ) * y
    chisqr = ((residual / stderr) ** 2).sum()
    assert (found.chisqr, found.freedom) == (pytest.approx(chisqr), 2)
    assert found.p == pytest.approx(stats.chi2.sf(chisqr, 2))
    assert found.stderr == pytest.approx((covariance[0, 0] * chisqr / 2) ** 0.5)
    certain = power_law_of_q(x, y, 100 * stderr)  # beyond which nothing scatters
    assert certain.stderr == pytest.approx(100 * covariance[0, 0] ** 0.5)


def drawn(rng, dof, n=5):
    size = (4000, n)
    return rng.standard_normal(size), np.sqrt(rng.chisquare(dof, size) / dof)


def test_the_error_of_a_mean_allows_for_errors_of_few_degrees_of_freedom():
    dof = np.full(5, 8.0)
    found = [
        homogeneity_test(y, s, dof)
        for y, s in zip(*drawn(np.random.default_rng(1), 8), strict=True)
    ]
    scatter = np.std([one.mean for one in found if one])
    typical = np.sqrt(np.mean([one.stderr**2 for one in found if one]))
    assert typical == pytest.approx(scatter, rel=0.06)


def test_an_exponent_has_the_degrees_of_freedom_of_the_errors_that_it_follows_from():
    q, rng = np.array([1.0, 1.3, 1.7, 2.2, 2.9]), np.random.default_rng(2)
    size, inside, rejected = 0.05, [], []
    for y, s in zip(*drawn(rng, 5), strict=True):
        law = power_law_of_q(
            q, q**2 * np.exp(size * y), size * s * q**2 * np.exp(size * y), dof=5.0
        )
        assert law is not None
        rejected.append(law.p < 0.05)
        inside.append(abs(law.exponent - 2) < half_width(95, law.dof) * law.stderr)
    assert np.mean(inside) == pytest.approx(0.95, abs=0.03)
    assert np.mean(rejected) < 0.08


Q, AGE = 0.0054, 14.95


def stretched(model, theta, names):
    """A fit of one ring by a stretched exponential, with correlated errors."""
    base, size = flow_result(), np.abs(theta) * 0.05
    covariance = np.outer(size, size) * (0.4 + 0.6 * np.eye(len(theta)))
    columns = {"param": names, "value": theta, "stderr": size, "stderr_naive": size / 3}
    columns |= {"dof": [12.0] * 3, "at_bound": [False] * 3, "fixed": [False] * 3}
    columns |= {"unit": ["1/s", "", ""], "method": ["speckle"] * 3}
    known = {name: covariance_table(of, names) for name, of in
             (("covariance", covariance), ("covariance_naive", covariance / 9))}  # fmt: skip
    config = config_of(model)
    return changed(base, parameters=parameter_table(columns), config=config, truth=None, **known)


LAWS = {
    "stretched_q": ("q_exponent", lambda rate, n: rate * (Q / 0.01) ** n),
    "stretched_ageing": ("mu", lambda rate, n: rate * AGE**n),
}


@pytest.mark.parametrize("model", LAWS)
def test_the_error_of_gamma_is_that_of_finite_differences(model):
    power, law = LAWS[model]
    theta = np.array([0.5, 1.4, 0.9])
    result = stretched(model, theta, ["rate", power, "stretching"])
    Gamma, D = (result.derived[name] for name in ("Gamma", "D"))
    step = 1e-6 * np.eye(2)
    slope = [(law(*(theta[:2] + h)) - law(*(theta[:2] - h))) / 2e-6 for h in step]
    V = result.covariance.values[:2, :2]
    assert Gamma.value == pytest.approx(law(*theta[:2]), rel=1e-12)
    assert Gamma.stderr == pytest.approx(np.sqrt(slope @ V @ slope), rel=1e-6)
    assert (D.value, D.stderr) == pytest.approx((Gamma.value / Q**2, Gamma.stderr / Q**2))
    assert D.dof == 12


def test_no_number_is_invented_where_there_is_no_error_or_no_q():
    result = stretched(
        "stretched_q", np.array([0.5, 1.4, 0.9]), ["rate", "q_exponent", "stretching"]
    )
    none = changed(result, covariance=None, covariance_naive=None).derived["Gamma"]
    assert np.isnan([none.stderr, none.stderr_naive, none.dof, none.low_95]).all()
    unknown = result.scaling.assign(q=("bin", np.full(9, np.nan)))
    assert not changed(result, scaling=unknown).derived


def test_the_error_of_the_exponent_knows_of_scatter_beyond_the_errors_and_only_of_more():
    """Errors five times too small: the error is that of the scatter, and p says so."""
    rng = np.random.default_rng(5)
    q = np.geomspace(0.003, 0.01, 6)
    found = [
        power_law_of_q(q, y, y * error)
        for error in (0.01, 0.05)
        for y in 100 * np.exp(0.05 * rng.standard_normal((200, 6)))
    ]
    small, right = found[:200], found[200:]
    for laws in (small, right):
        pulls = np.array([law.exponent / law.stderr for law in laws])
        assert (np.abs(pulls) < 2).mean() > 0.85
    assert np.mean([law.p < 0.001 for law in small]) > 0.9
    assert np.mean([law.p < 0.05 for law in right]) < 0.1


def test_a_rate_of_parameters_without_errors_has_none(flowing):
    """NaN counted as 0: J had the error 0, or that of the other parameters."""
    covariance = FLOW_COVARIANCE.copy()
    covariance[:2] = covariance[:, :2] = np.nan
    found = rates_at_mean_age(result_for(flowing, FLOW, covariance=covariance))
    assert np.isnan(found["J"].stderr)
    assert np.isnan(found["J"].dof)
    assert found["gamma_dot"].stderr > 0
