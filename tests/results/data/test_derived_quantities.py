"""What follows from the parameters of a fit."""

import numpy as np
import pytest

from homodyne_dask.results.data.fit_result import covariance_table, parameter_table
from tests.results.made_results import changed, config_of, flow_result

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
