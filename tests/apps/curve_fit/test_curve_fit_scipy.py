"""curve_fit called as scipy's: arrays, functions of NumPy, p0 and sigma; popt and pcov are scipy's."""

import math
from functools import partial, wraps

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import xarray
from numpy import exp

import homodyne_dask as hd
from homodyne_dask.errors import HomodyneDaskError

RNG = np.random.default_rng(5)
X = np.linspace(0.1, 4, 60)
Y = 2.5 * np.exp(-1.3 * X) + 0.5 + 0.02 * RNG.standard_normal(60)
SIGMA = 0.02 * RNG.uniform(0.5, 2, 60)
PLANE = np.stack([X, np.cos(3 * X)])
Z = 2 * X - 3 * np.cos(3 * X) + 1 + 0.1 * RNG.standard_normal(60)


def decay(x, a, b, c):
    return a * np.exp(-b * x) + c


def plane(xy, a, b, c):
    x, y = xy
    return a * x + b * y + c


def of_many(x, a, b, c):
    far = np.where(x > 2, np.log1p(x), np.sqrt(np.abs(x)))
    return a * far + b * scipy.special.erf(x) + np.clip(c, -10, 10) * np.maximum(x, 1.0) ** 0.5


def helped(x, a, b):
    return a * np.stack([decay(x, 1, b, 0), exp(-x)]).sum(axis=0)


def summed(x, a, b):
    _, (weight,) = np.polynomial.legendre.leggauss(1)
    with np.errstate(all="ignore"):
        return a * weight * np.exp(-b * x)


@wraps(np.log)
def lower_log(x):
    return np.log(np.maximum(x, 1e-3))


FUNCTIONS = {"decay": decay, "power of 2": partial(np.power, 2.0)}


class Helper:
    def __call__(self, x, a, b):
        return FUNCTIONS["decay"](x, a, b, 0.5)


def shifted(function):
    return lambda x, a, b: function(x, a, b, 0.5)


class Line:
    slope = 2.0

    def at(self, x, a):
        return self.slope * np.multiply(a, x)


def some_named(x, a, *rest):
    return a * np.exp(-rest[0] * x) + rest[1]


CASES = [
    ("x and y", (decay, X, Y), {}),
    ("initial values", (decay, X, Y, [2, 1, 0.4]), {}),
    ("one initial value", (lambda x, a: a * x, X, Y, np.float64(1.0)), {}),
    ("lists, one bound", (decay, X.tolist(), Y.tolist(), (2, 1, 0.4)), {"bounds": (0, np.inf)}),
    ("sigma", (decay, X, Y, [2, 1, 0.4], SIGMA), {}),
    ("absolute sigma", (decay, X, Y, [2, 1, 0.4], SIGMA, True), {}),
    ("one sigma", (decay, X, Y), {"sigma": 0.02, "absolute_sigma": True}),
    ("by keyword", (decay,), {"xdata": X, "ydata": Y, "p0": [2, 1, 0.4], "sigma": SIGMA}),
    ("bounds", (decay, X, Y), {"bounds": ([0, 0, -1], [5, 3, 1])}),
    ("bounds of scipy", (decay, X, Y), {"bounds": scipy.optimize.Bounds([0, 0, -1], [5, 3, 1])}),
    ("an array of two rows", (plane, PLANE, Z), {}),
    ("a tuple of two arrays", (plane, (X, PLANE[1]), Z), {"sigma": SIGMA}),
    ("other functions", (of_many, X, Y), {}),
    ("a helper, an array and a ufunc", (helped, X, Y), {}),
    ("a function in a function", (shifted(decay), X, Y), {}),
    ("a method", (Line().at, X, Y), {}),
    ("a part of a function", (partial(decay, c=0.5), X, Y, [2, 1]), {}),
    ("NumPy of constants", (summed, X, Y), {}),
    ("a function with the name of NumPy's", (lambda x, a, b: a * lower_log(x) + b, X, Y), {}),
    ("an object that calls NumPy", (Helper(), X, Y, [2, 1]), {}),
    ("a part of one of NumPy", (lambda x, a, b: a * FUNCTIONS["power of 2"](-b * x), X, Y, [2, 1]), {}),
    ("named ones and any number", (some_named, X, Y, [2, 1, 0.4]), {}),
    ("whole numbers", (lambda x, a, b: a * x + b, np.arange(9), 2 * np.arange(9) % 5), {}),
]  # fmt: skip


@pytest.mark.parametrize(("word", "given", "options"), CASES, ids=[w for w, *_ in CASES])
def test_values_and_covariance_are_scipys(word, given, options):
    popt, pcov = hd.curve_fit(*given, **options)
    exact = {} if "bounds" in options else {"ftol": 1e-14, "xtol": 1e-14}
    wanted, covariance = scipy.optimize.curve_fit(*given, **options, **exact)
    deviation = np.sqrt(np.diag(covariance))
    assert (np.abs(popt - wanted) / deviation).max() < 1e-4
    size = np.outer(deviation, deviation)
    np.testing.assert_allclose(pcov / size, covariance / size, rtol=0, atol=1e-4)


def test_images_of_two_coordinates_are_fitted_point_by_point():
    x, y = np.meshgrid(np.linspace(-1, 1, 12), np.linspace(-2, 2, 9))
    image = 3 * np.exp(-(x**2) - 0.5 * y**2) + 0.1

    def spot(xy, a, b):
        return (a * np.exp(-(xy[0] ** 2) - 0.5 * xy[1] ** 2) + b).ravel()

    popt, _ = hd.curve_fit(spot, (x, y), image)
    np.testing.assert_allclose(popt, [3, 0.1], rtol=1e-9)


MISTAKES = [
    ("lengths", (decay, X, Y[:-1]), {}, r"xdata of shape \(60,\) does not match ydata of shape \(59,\)"),
    ("no y", (decay, X), {}, "ydata = None is neither a number nor"),
    ("words", (decay, X, ["a"] * 60), {}, "ydata = .* is neither a number nor"),
    ("unequal lists", (decay, X, [[1, 2], [3]]), {}, "is neither a number nor a list"),
    ("complex", (decay, X, Y * 1j), {}, "ydata = .* is neither a number nor"),
    ("a covariance", (decay, X, Y), {"sigma": np.eye(60)}, "covariances of points are not supported"),
    ("a short sigma", (decay, X, Y), {"sigma": [1, 2]}, r"sigma of shape \(2,\) does not match 60 points"),
    ("math", (lambda x, a: np.exp(x) * math.exp(a), X, Y), {}, "instead of numpy, math and float"),
    ("if", (lambda x, a: np.exp(x) if a > 0 else x, X, Y), {}, "a Python `if`"),
    ("an array made inside", (lambda x, a: np.array([a, a]) @ x, X, Y), {}, "use np.stack"),
    ("no such function", (lambda x, a: a * scipy.special.j0(x), X, Y), {}, "JAX has no function j0"),
    ("names", (lambda x, p1, *p: p1 * x + p[0], X, Y, [1, 1, 1]), {}, "cannot be read from its arguments"),
    ("nothing to fit", (lambda x, *p: x, X, Y, []), {}, "cannot be read from its arguments"),
    ("the first point", (lambda x, a, b: a * np.exp(-b * (x - x[0])), X, Y), {}, "depends on other points"),
    ("a mean", (lambda x, a, b: a * (x - x.mean()) + b, X, Y), {}, "depends on other points"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("word", "given", "options", "says"), MISTAKES, ids=[w for w, *_ in MISTAKES]
)
def test_a_mistake_is_one_sentence(word, given, options, says):
    with pytest.raises(HomodyneDaskError, match=says) as raised:
        hd.curve_fit(*given, **options)
    assert "\n" not in str(raised.value)


def proportional(x, a):
    return a * x


@pytest.fixture
def data():
    x = np.arange(1.0, 9.0)
    noise = 0.1 * np.random.default_rng(0).standard_normal(8)
    return xarray.Dataset({"y": ("x", 2 * x + noise)}, coords={"x": x})


@pytest.mark.parametrize("name", ["x", "y"])
@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_an_infinite_value_is_refused_as_in_scipy_and_nan_is_left_out(data, name, value):
    data = xarray.Dataset({key: ("i", np.array(data[key])) for key in ("x", "y")})
    data[name][3] = value
    with pytest.raises(HomodyneDaskError, match=f"'{name}' is infinite at some points"):
        hd.curve_fit(proportional, data)
    data[name][3] = np.nan
    found, without = (hd.curve_fit(proportional, of) for of in (data, data.drop_isel(i=3)))
    assert found.ndata == 7
    np.testing.assert_allclose(found.popt, without.popt, rtol=1e-12)
    np.testing.assert_allclose(found.pcov, without.pcov, rtol=1e-12)
