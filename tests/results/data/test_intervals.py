"""Confidence intervals of the parameters."""

import numpy as np
import pytest

from homodyne_dask.errors import OptionError
from homodyne_dask.results.data.fitted_parameters import confidence_intervals, intervals_text
from tests.results.views.test_text_report import flow, measured


def test_an_interval_is_the_value_with_t_standard_errors_on_both_sides():
    ends = confidence_intervals(flow(), 95)
    # t of 8 degrees of freedom: 2.306
    low, high = float(ends["low"].sel(param="D0")), float(ends["high"].sel(param="D0"))
    assert (low, high) == pytest.approx((68612.3 - 2.306 * 1532, 68612.3 + 2.306 * 1532), rel=1e-5)
    assert np.isnan(ends["low"].sel(param="gamma_dot_t_offset"))
    narrow = confidence_intervals(flow(), 68.27)
    assert float(narrow["high"].sel(param="D0")) < high


def test_without_a_robust_error_there_is_none():
    assert np.isnan(confidence_intervals(measured())["low"]).all()
    assert intervals_text(measured(), 95).splitlines()[1].split() == ["D0", "-", "-", "1/s", "-"]


@pytest.mark.parametrize("percent", [0, 100, -5, float("nan")])
def test_a_percentage_that_makes_none_is_refused(percent):
    with pytest.raises(OptionError, match="is none"):
        confidence_intervals(flow(), percent)
