"""What curve_fit takes for p0, sigma and y, beside what scipy does."""

import numpy as np
import pytest
import xarray

import homodyne_dask as hd
from homodyne_dask.errors import HomodyneDaskError, OptionError


def proportional(x, a):
    return a * x


@pytest.fixture
def data():
    x = np.arange(1.0, 9.0)
    noise = 0.1 * np.random.default_rng(0).standard_normal(8)
    return xarray.Dataset({"y": ("x", 2 * x + noise)}, coords={"x": x})


@pytest.mark.parametrize("p0", [1.0, np.float64(1.0), [1.0], np.array([1.0])])
def test_one_number_is_the_initial_value_of_one_parameter(data, p0):
    assert hd.curve_fit(proportional, data, p0=p0).popt[0] == pytest.approx(2, abs=0.1)


def test_numbers_for_too_few_parameters_are_refused(data):
    with pytest.raises(OptionError, match="p0 has 1 values for 2 parameters"):
        hd.curve_fit(lambda x, a, b: a * x + b, data, p0=1.0)


def test_sigma_for_a_part_of_the_points_is_refused(data):
    """The points without one were left out without a word."""
    sigma = xarray.DataArray(np.full(8, 0.1), dims="x", coords={"x": data.x})
    whole = hd.curve_fit(proportional, data, sigma=sigma)
    assert whole.ndata == 8
    for wrong in (sigma[:5], sigma.assign_coords(x=data.x + 1)):
        with pytest.raises(OptionError, match="sigma and the data differ in their coordinates"):
            hd.curve_fit(proportional, data, sigma=wrong)


@pytest.mark.parametrize("name", ["x", "y"])
@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_an_infinite_value_is_refused_as_in_scipy_and_nan_is_left_out(data, name, value):
    data = data.reset_coords()
    data = xarray.Dataset({key: ("i", np.array(data[key])) for key in ("x", "y")})
    data[name][3] = value
    with pytest.raises(HomodyneDaskError, match=f"'{name}' is infinite at some points"):
        hd.curve_fit(proportional, data)
    data[name][3] = np.nan
    assert hd.curve_fit(proportional, data).ndata == 7
