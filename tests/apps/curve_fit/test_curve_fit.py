"""curve_fit on any dataset: NIST's certified values, scipy on random problems, chunks, changes, mistakes."""

from typing import Any

import numpy as np
import pytest
import scipy.optimize
import xarray

import homodyne_dask as hd
from homodyne_dask.errors import HomodyneDaskError, OptionError
from tests.apps.curve_fit.nist import CERTIFIED, FUNCTIONS, data


def decay(x, a, b, c):
    return a * np.e ** (-b * x) + c


def decay_data(n=200, seed=0, spread=0.1, weighted=False):
    rng = np.random.default_rng(seed)
    x = np.linspace(0, 4, n)
    sigma = spread * (rng.uniform(0.3, 3, n) if weighted else np.ones(n))
    y = decay(x, 2.5, 1.3, 0.5) + sigma * rng.standard_normal(n)
    columns = {"x": x, "y": y, "sigma": sigma}
    return xarray.Dataset({name: ("i", values) for name, values in columns.items()})


@pytest.mark.long
def test_sigma_of_a_dataset_and_of_arrays_is_one():
    data = decay_data(weighted=True)
    found = hd.curve_fit(decay, data, sigma="sigma", absolute_sigma=True)
    columns = [data[name].values for name in ("x", "y")]
    of_arrays = hd.curve_fit(decay, *columns, sigma=data["sigma"].values, absolute_sigma=True)
    np.testing.assert_array_equal(found.pcov, of_arrays.pcov)
    plain = [hd.curve_fit(decay, *columns, sigma=s).popt for s in (None, 0.1)]
    np.testing.assert_allclose(plain[0], plain[1], rtol=1e-9)


def test_bounds_hold_and_a_parameter_at_one_has_no_error():
    data = decay_data()
    bounds = [-9, 0, -9], [9, 1, 9]
    result = hd.curve_fit(decay, data, bounds=bounds)
    wanted, _ = scipy.optimize.curve_fit(decay, data["x"].values, data["y"].values, bounds=bounds)
    np.testing.assert_allclose(result.popt, wanted, rtol=1e-5)
    assert result.popt[1] == 1.0
    assert np.isnan(result.stderr).tolist() == [False, True, False]


def test_what_the_data_do_not_determine_has_no_covariance():
    def twice(x, a, b):
        return (a + b) * x

    result = hd.curve_fit(twice, decay_data())
    assert result.pcov is None
    assert result.outcome is hd.Outcome.SINGULAR
    assert "a and b" in str(result)


@pytest.mark.long
def test_a_store_gives_the_bits_of_memory(tmp_path):
    data = decay_data(1000)
    data.chunk({"i": 128}).to_zarr(tmp_path / "points.zarr", consolidated=False)
    stored = xarray.open_zarr(tmp_path / "points.zarr", chunks=None, consolidated=False)
    path, lazy, dasked = (
        hd.curve_fit(decay, d).popt
        for d in (tmp_path / "points.zarr", stored, data.chunk({"i": 128}))
    )
    np.testing.assert_array_equal(path, lazy)
    np.testing.assert_array_equal(path, dasked)


@pytest.mark.long
def test_several_dimensions_broadcast():
    rng = np.random.default_rng(0)
    grid = xarray.Dataset(coords={"t": np.arange(20.0), "z": np.arange(7.0)})
    grid["y"] = 2 * grid["t"] + 3 * grid["z"] ** 2 + 0.1 * rng.standard_normal((20, 7))

    def plane(x, a, b):
        return a * x[0] + b * x[1] ** 2

    cut = hd.curve_fit(plane, grid.chunk({"t": 6, "z": 4}), coords=["t", "z"])
    whole = hd.curve_fit(plane, grid, coords=["t", "z"])
    np.testing.assert_allclose(cut.popt, whole.popt, rtol=1e-12)
    assert np.abs((cut.popt - [2, 3]) / cut.stderr).max() < 4
    assert cut.ndata == 140


def test_points_that_do_not_fit_in_memory_are_refused():
    many = np.arange(100_000.0)
    data = xarray.Dataset({"y": ("t", many)}, coords={"t": many, "z": many})
    with pytest.raises(HomodyneDaskError, match="the points in memory would need 480 GB"):
        hd.curve_fit(lambda x, a: a * x[0], data, coords=["t", "z"])


def branches(x, a, b):
    return a * x if b > 0 else b * x


def undefined(x, a, b):
    return a * x ** (b - 2)


MISTAKES = [
    (branches, {}, r"model 'branches', test_curve_fit.py line \d+: a Python `if`"),
    (undefined, {}, r"is (nan|-?inf) at x = 0, y = .* with a = 1, b = 1"),
    (decay, {"p0": [1, 2]}, "p0 has 2 values for 3 parameters"),
    (decay, {"ydata": "y"}, "ydata = 'y' cannot be used with a dataset: give coords and data_var"),
    (decay, {"sigma": 0.1}, "sigma = 0.1 cannot be used: give the name of a variable"),
    (decay, {"coords": "z"}, "no variable 'z'; choose from x, y, sigma"),
    (decay, {"bounds": (0, [1, 2])}, "bounds = .* cannot be used"),
    (decay, {"bounds": (1, 0)}, "bounds of a: 1 is not below 0"),
    (decay, {"bounds": ([0, 2, 0], [1, 2, 1])}, "bounds of b: 2 is not below 2"),
    (lambda x, *p: p[0] * x, {}, r"give p0 for f\(x, a, \*p\)"),
    (lambda x, a: a * x[:2], {}, r"test_curve_fit.py line \d+: .*incompatible shapes"),
]


@pytest.mark.parametrize(("f", "options", "said"), MISTAKES)
def test_a_mistake_is_one_sentence(f, options, said):
    with pytest.raises(HomodyneDaskError, match=said):
        hd.curve_fit(f, decay_data(), **options)


def test_a_model_of_any_data_names_its_variables():
    def line(theta, x, y):
        return (y - theta[0] * x - theta[1]) / 0.1

    model = hd.model(line, [hd.Parameter("slope", "1/s"), hd.Parameter("zero")])
    result = hd.fit(decay_data(), model, initial={"slope": 0.0}, fixed={"zero": 1.0})
    assert result.names == ("slope", "zero")
    assert result.popt[1] == 1.0
    assert "1/s" in str(result)
    with pytest.raises(HomodyneDaskError, match="slope has no initial value"):
        hd.fit(decay_data(), model)
    short = hd.model(lambda theta, x, y: (theta[0] * x)[:2], [hd.Parameter("a")], name="short")
    with pytest.raises(HomodyneDaskError, match=r"model 'short', .* one value per point, shape"):
        hd.fit(decay_data(), short, initial={"a": 1})
    with pytest.raises(HomodyneDaskError, match="name the variables that it needs"):
        hd.model(lambda theta: theta[0], [hd.Parameter("a")])


QUICK = ("Misra1a", "BoxBOD", "Nelson", "MGH09", "Rat43", "Lanczos1")
"""Two-level to hard, of one and of two predictors; the others take a minute together."""
NOT_REACHED = {("BoxBOD", 0): "scipy's lm loses b2 in a plateau, too"}


def marks(name, which):
    slow = [] if name in QUICK else [pytest.mark.slow]
    why = NOT_REACHED.get((name, which))
    return slow if why is None else [*slow, pytest.mark.xfail(reason=why, strict=True)]


STARTS = [
    pytest.param(name, which, id=f"{name}-{which + 1}", marks=marks(name, which))
    for name in CERTIFIED
    for which in (0, 1)
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "which"), STARTS)
def test_certified_values_are_reached_from_both_starts(name, which):
    y, x = data(name)
    held = CERTIFIED[name]
    columns = {f"x{n}": ("i", values) for n, values in enumerate(x)}
    result = hd.curve_fit(
        FUNCTIONS[name],
        xarray.Dataset({"y": ("i", y)} | columns),
        coords=list(columns) if len(x) > 1 else "x0",
        p0=held["starts"][which],
    )
    np.testing.assert_allclose(result.popt, held["certified"], rtol=1e-8)
    if held["rss"] > 1e-20:  # that of Lanczos1 is rounding of its data
        np.testing.assert_allclose(result.stderr, held["deviation"], rtol=1e-7)
        assert result.chisqr == pytest.approx(held["rss"], rel=1e-9)


@pytest.mark.parametrize("where", ["in memory", "in a store"])
def test_data_that_changed_between_two_fits_are_read_again(tmp_path, where):
    """Only the middle changes: sizes, the first chunk and the last one are those of the first fit."""
    before, place = decay_data(), tmp_path / "points.zarr"
    after = before.copy(deep=True)
    after["y"][80:120] += 1

    def placed(data: xarray.Dataset) -> Any:
        if where == "in memory":
            return data
        data.chunk({"i": 50}).to_zarr(place, consolidated=False, mode="w")
        return place

    hd.curve_fit(decay, placed(before), max_passes=3)
    columns = after["x"].values, after["y"].values
    popt, _ = scipy.optimize.curve_fit(decay, *columns, ftol=1e-14, xtol=1e-14)
    np.testing.assert_allclose(hd.curve_fit(decay, placed(after)).popt, popt, rtol=1e-6)


def test_a_residual_of_a_parameter_it_has_not_is_refused():
    model = hd.model(lambda theta, x: theta[-2] * x, [hd.Parameter("k")], name="line")
    points = xarray.Dataset({"x": ("i", np.arange(3.0))})
    with pytest.raises(
        OptionError, match=r"model 'line', .*index -2 out of bounds .* theta has one"
    ):
        hd.fit(points, model, initial={"k": 1.0})
