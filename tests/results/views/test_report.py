"""The report, pinned by text files: a change of wording is a change of a file under tests/results/reports.

To accept new wording: HOMODYNE_DASK_ACCEPT=1 python -m pytest tests/results/views/test_report.py, then
read the difference.
"""

from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from homodyne_dask.results.data import numbers_and_intervals as numbers
from homodyne_dask.results.data.derived_quantities import Quantity
from homodyne_dask.results.data.fitted_parameters import pulls
from homodyne_dask.results.data.numbers_and_intervals import half_width
from homodyne_dask.results.views import report_content
from homodyne_dask.results.views.report_content import derived_sentences, facts
from tests.documents import kept_in
from tests.results.made_results import (
    NAN,
    TRUTH,
    changed,
    flow_result,
    static_result,
)

REPORTS = Path(__file__).parent / "reports"


def test_a_limit_of_a_rate_is_quoted_without_an_error(monkeypatch):
    limit = Quantity("1/s", 1e-6, NAN, NAN, NAN, formula="at 30 s", upper_limit=1e-5)
    monkeypatch.setattr(report_content, "derived_quantities", lambda _: {"gamma_dot": limit})
    assert derived_sentences(flow_result()) == ["gamma_dot below 1e-05 1/s at 30 s"]


@pytest.mark.parametrize("make", [flow_result, static_result])
def test_a_report_reads_as_its_file(make):
    path = REPORTS / f"{make.__name__}.txt"
    text = make().report(all=True) + "\n"
    assert text == kept_in(path, text)


def test_a_pull_is_a_normal_deviate_of_the_probability_by_t_and_of_the_shorter_turn():
    made = flow_result()
    values = made.parameters["value"].copy()
    values.loc["phi0"] = -89.9  # for a truth of 90.05, 0.05° away
    truth = TRUTH | {"parameters": TRUTH["parameters"] | {"phi0": 90.05}}
    turned = changed(made, truth=truth, parameters=made.parameters.assign(value=values))
    assert abs(pulls(turned)["phi0"]) < 5
    assert pulls(turned)["D0"] == pulls(made)["D0"]
    found, D0 = pulls(made), made.parameters.sel(param="D0")
    beyond = scipy.stats.t.sf((68612.3 - 68480) / 1532, float(D0["dof"]))
    assert found["D0"] == pytest.approx(scipy.stats.norm.isf(beyond))
    assert "gamma_dot_t_offset" not in found  # at a bound, without stderr
    few = changed(made, parameters=made.parameters.assign(dof=made.parameters["dof"] * 0 + 1.0))
    far = {**TRUTH, "parameters": TRUTH["parameters"] | {"D0": 68612.3 + 12.7 * 1532}}
    assert pulls(changed(few, truth=far))["D0"] == pytest.approx(-1.96, abs=0.01)


def test_every_interval_is_that_of_t_with_the_dof_of_the_error():
    made = flow_result()
    low, high = (made.ci()[end].values for end in ("low", "high"))
    table = made.parameters
    t = scipy.stats.t.isf(0.025, table["dof"].values) * table["stderr"].values
    np.testing.assert_allclose(high - low, 2 * t)
    np.testing.assert_allclose(half_width(95, np.array([3.0, np.inf])), [3.1824463, 1.9599640])
    assert np.isnan(half_width(95, np.nan))


@pytest.mark.parametrize("other", [{"convention": "homodyne"}, {"gap_angstrom": 1e6}])
def test_no_truth_is_compared_with_a_fit_of_something_else(other):
    result = flow_result()
    assert not pulls(changed(result, config=result.config | other))


@pytest.mark.parametrize(
    ("value", "error", "both", "alone"),
    [
        (68612.3, 1532, "68600 ± 1500", "1500"),
        (1.0, 0.0996, "1.00 ± 0.10", "0.10"),
        (999.6, 99.6, "1000 ± 100", "100"),
        (-0.001, 0.01, "-0.001 ± 0.010", "0.010"),
        (-0.0001, 0.01, "-0.0001 ± 0.010", "0.010"),
        (9.03e-4, 1.2e-5, "(9.03 ± 0.12)e-04", "1.2e-05"),
        (3e-3, 6.1e-4, "0.00300 ± 0.00061", "0.00061"),
        (1e-9, 1e-3, "1e-09 ± 0.0010", "0.0010"),
        (3.2e8, 4.4e6, "(3.200 ± 0.044)e+08", "4400000"),
        (-3.0, 4e8, "(-3e-08 ± 4.0)e+08", "4.0e+08"),
        (0.0, 5.0, "0 ± 5.0", "5.0"),
        (12.3456789, NAN, "12.3457", "-"),
        (12.3456789, 0.0, "12.3457", "0.0"),
        (NAN, 9.96, "-", "10"),
    ],
)
def test_an_error_has_two_digits_and_a_value_as_many_places(value, error, both, alone):
    assert numbers.value_and_error(value, error) == both
    assert numbers.format_error(error) == alone


def test_pairs_left_out_are_those_of_the_selection_that_were_not_counted():
    result = flow_result()
    possible = sum(j - i >= 1 for i in range(300) for j in range(i + 1, 300)) * 9
    said = dict(facts(result))["excluded"]
    assert said.startswith(numbers.format_count(possible - result.ndata))
    later = changed(result, config=result.config | {"min_lag": 3})
    possible = sum(j - i >= 3 for i in range(300) for j in range(i + 1, 300)) * 9
    assert dict(facts(later))["excluded"].startswith(numbers.format_count(possible - result.ndata))
    assert dict(facts(later))["excluded"].endswith("lags below 3")
