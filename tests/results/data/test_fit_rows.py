"""What is said of a scan after those before it."""

import numpy as np
import pytest

from homodyne_dask.models.rate_forms import rate_stderr
from homodyne_dask.results.data.fit_rows import FitRow, Quantity, changes, fit_row
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.data.rate_curves import rates_in
from tests.results.made_results import FLOW, FLOW_COVARIANCE, rate_dof, result_for


def row(contrast: float, redchi: float = 1.0, words: str = "converged", **more) -> FitRow:
    at = {"number": 1, "contrast": contrast}
    return FitRow("A.h5", at=at, outcome=words.upper(), outcome_words=words, redchi=redchi, **more)


STEADY = [row(c, x) for c, x in ((0.30, 1.0), (0.31, 1.02), (0.29, 0.99), (0.30, 1.01))]
SCATTERED = [row(c) for c in (0.1, 0.2, 0.3, 0.4)]


@pytest.mark.parametrize(
    ("now", "before", "said"),
    [
        (row(0.33, 1.1), STEADY, ()),
        (row(0.15, 1.0), STEADY, ("contrast 0.15 (median of the scans before: 0.3)",)),
        (row(0.30, 1.5), STEADY, ("reduced χ² 1.5 (median of the scans before: 1)",)),
        (row(0.15), STEADY[:2], ()),
        (row(0.5), SCATTERED, ()),
        (row(0.3, words="max passes"), [], ("max passes",)),
        (FitRow("B.h5", message="no"), STEADY, ()),
    ],
)
def test_what_changed_is_said(now, before, said):
    assert changes(now, before) == said


@pytest.mark.parametrize(
    ("stderr", "words"), [(1.5, "-2.0 ± 1.5 at bound"), (np.nan, "-2 at bound")]
)
def test_a_value_at_a_bound_is_shown_with_the_error_that_tests_of_agreement_use(stderr, words):
    assert str(Quantity("1/s", -2.0, stderr, np.nan, 8.0, at_bound=True)) == words


def rates_at_mean_age(result):
    result.provenance.inputs["frame_time"] = 0.1
    return fit_row("", None, result, at={"age": 3.0}).quantities


def test_a_rate_of_parameters_without_errors_has_none(flowing):
    """NaN counted as 0: J had the error 0, or that of the other parameters."""
    covariance = FLOW_COVARIANCE.copy()
    covariance[:2] = covariance[:, :2] = np.nan
    found = rates_at_mean_age(result_for(flowing, FLOW, covariance=covariance))
    assert np.isnan(found["J"].stderr)
    assert np.isnan(found["J"].dof)
    assert found["gamma_dot"].stderr > 0


@pytest.mark.parametrize(("method", "known"), [("cluster-robust", False), ("speckle", True)])
def test_the_scatter_of_bins_gives_a_rate_an_error_from_four_degrees_of_freedom_on(
    flowing, method, known
):
    freedom = rate_dof(J=3.0, J_integral=3.0, gamma_dot=5.0, strain=5.0)
    result = result_for(flowing, FLOW, covariance=FLOW_COVARIANCE, rate_dof=freedom)
    result.parameters.attrs["method"] = method
    at_mean_age, curves = rates_at_mean_age(result), rates_in(FitView(result, flowing))
    assert np.isfinite(at_mean_age["J"].stderr) == known
    assert np.isfinite(curves["J_high_95"].values).all() == known
    assert at_mean_age["gamma_dot"].dof == 5
    assert np.isfinite(curves["gamma_dot_high_95"].values).all()


def test_rounding_is_no_error_and_a_gradient_of_zero_has_none():
    """Parameters of 1e8 that leave 0.1: their covariance knows nothing below 1."""
    covariance = np.array([[1e16, -1e16], [-1e16, 1e16]])
    gradient = np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    np.testing.assert_array_equal(rate_stderr(gradient, covariance), [np.nan, 1e8, 0.0])


def test_an_error_of_few_degrees_of_freedom_has_its_interval_beside_it():
    few = Quantity("", 100.0, 10.0, np.nan, dof=5.0)
    assert few.interval == "74 to 126 (dof 5.0)"
    assert few._replace(dof=50.0).interval == ""
    assert few._replace(stderr=np.nan, dof=np.nan).interval == ""
