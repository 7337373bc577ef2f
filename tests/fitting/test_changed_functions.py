"""What a user's function reads may change between two fits: each fit, and each saved
result, is of the values of its beginning."""

import pickle
from threading import Lock

import jax.numpy as jnp
import numpy as np
import pytest
import xarray
from jax import lax

import homodyne_dask as hd
from homodyne_dask.errors import OptionError
from homodyne_dask.models import user_defined
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.result_classes import FitResult
from homodyne_dask.results.saved_results import load_result, load_series
from tests.applications import public
from tests.kernels.user_functions import RELAXATION
from tests.results.made_results import changed
from tests.synthetic import measured, store

SCALE = 1.0


class Factor:
    __slots__ = ("value",)

    def __init__(self):
        self.value = 1.0

    def line(self, x, a):
        return a * self.value * x


FACTOR = Factor()


def helper(x):
    return SCALE * x


def of_a_helpers_global(x, a):
    return a * helper(x)


def step(sum, x):
    return sum + SCALE * x, None


def of_a_loop(x, a):
    return a * x * lax.scan(step, 0.0, jnp.ones(1))[0]


CHANGES = {
    "a helper's global": (
        of_a_helpers_global,
        lambda patch: patch.setitem(globals(), "SCALE", 10.0),
    ),
    "a method's object": (FACTOR.line, lambda patch: patch.setattr(FACTOR, "value", 10.0)),
}


def line() -> xarray.Dataset:
    x = np.linspace(1, 2, 20)
    return xarray.Dataset({"x": ("i", x), "y": ("i", 3 * x)})


@pytest.mark.parametrize("what", CHANGES)
def test_the_second_fit_has_the_new_value_and_a_fit_without_a_change_compiles_nothing(
    what, monkeypatch
):
    function, change = CHANGES[what]
    fits = [public("curve_fit")(function, line()) for _ in range(2)]
    np.testing.assert_allclose([fit.popt[0] for fit in fits], 3)
    assert fits[1].compilations["gram"] == 0
    change(monkeypatch)
    np.testing.assert_allclose(public("curve_fit")(function, line()).popt, 0.3)


@pytest.mark.long
def test_inside_a_loop_the_new_value_holds_too_and_so_does_the_first_one_afterwards(monkeypatch):
    fits = [public("curve_fit")(of_a_loop, line())]
    for scale in (10.0, 1.0):
        monkeypatch.setitem(globals(), "SCALE", scale)
        fits.append(public("curve_fit")(of_a_loop, line()))
    np.testing.assert_allclose([fit.popt[0] for fit in fits], [3, 0.3, 3])


def test_what_cannot_be_compared_has_the_new_value_too():
    class Locked:
        def __init__(self):
            self.lock, self.scale = Lock(), 1.0

    locked = Locked()

    def function(x, a):
        return a * locked.scale * x

    assert public("curve_fit")(function, line()).popt == pytest.approx(3)
    locked.scale = 10.0
    assert public("curve_fit")(function, line()).popt == pytest.approx(0.3)


def relaxing(theta, t1, t2, bin):
    rate, alpha = theta
    return jnp.exp(-SCALE * rate * (t2 - t1) * (1 + 0.5 * (t1 + t2)) ** alpha)


def test_a_prediction_has_the_new_value(monkeypatch):
    model, where = hd.separable(relaxing, RELAXATION), {"times": np.arange(3.0), "q": 0.01}
    before = hd.predict(model, [0.4, 0], **where)
    monkeypatch.setitem(globals(), "SCALE", 10.0)
    np.testing.assert_allclose(hd.predict(model, [0.04, 0], **where), before, rtol=1e-9)


def test_a_model_is_sent_with_the_values_it_has_when_it_is_sent(monkeypatch):
    model = hd.separable(relaxing, RELAXATION)
    sent = [pickle.loads(pickle.dumps(model)) for _ in range(2)]
    monkeypatch.setitem(globals(), "SCALE", 10.0)
    sent.append(pickle.loads(pickle.dumps(model)))
    values = [one.f.__globals__["SCALE"] for one in sent]
    assert values == [1.0, 1.0, 10.0]
    assert sent[0] is sent[1]


def test_a_module_of_the_users_is_sent_with_the_values_that_are_read(tmp_path, monkeypatch):
    (tmp_path / "settings_of_a_user.py").write_text("scale = 1.0\nhandle = open(__file__)\n")
    monkeypatch.syspath_prepend(tmp_path)
    import settings_of_a_user as settings  # pyright: ignore[reportMissingImports]

    settings.handle.close()
    model = hd.separable(lambda theta, t1, t2, bin: settings.scale * t1, RELAXATION, name="mine")
    settings.scale = 10.0
    (there,) = pickle.loads(pickle.dumps(model)).f.__closure__
    assert there.cell_contents is not settings
    assert there.cell_contents.scale == 10.0
    assert not hasattr(there.cell_contents, "handle")


POWER = 1.0


def own(theta, t1, t2, bin):
    """Has the parameters of the built-in `stretched`, and is another function."""
    rate, stretching = theta
    return jnp.exp(-((rate * (t2 - t1)) ** (POWER * stretching)))


PARAMETERS = (
    hd.Parameter("rate", "1/s", (1e-3, 1e3), scale="log"),
    hd.Parameter("stretching", "", (0.3, 2.0), period=0.5),
)


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    """Each of two rings fitted with a model of one's own that has the name of a built-in one."""
    q, phi = np.repeat([0.004, 0.006], 2), np.tile([0.0, 90.0], 2)
    scan = store(
        measured([20000.0, 0.0, 0.0], 20, phi, q=q, sigma=0.01), tmp_path_factory.mktemp("s")
    )
    model = hd.separable(own, PARAMETERS, name="stretched")
    return hd.fit_each(scan, model, over="q", initial={"rate": 0.3, "stretching": 1.0}), scan


def f_of(result: FitResult, scan: hd.Scan) -> float:
    scan = scan.select(label=[int(label) for label in result.scaling["label"].values])
    return float(FitView(result, scan).model.shape(np.array([0]), scan.time[1], scan.time[9])[0])


def lag_and_theta(result: FitResult, scan: hd.Scan):
    return scan.time[9] - scan.time[1], result.parameters["value"].values


@pytest.mark.long
def test_a_series_of_ones_own_model_is_printed_and_stored(series, tmp_path):
    fits, _ = series
    assert "rate" in str(fits)
    assert fits.table.sizes["fit"] == 2
    fits.to_json(tmp_path / "series.json")
    again = load_series(tmp_path)
    assert str(again) == str(fits)
    assert [one.config["periods"] for one in again.results if one] == [{"stretching": 0.5}] * 2


def test_a_stored_result_finds_its_model_by_its_code(series, tmp_path, monkeypatch):
    (result, _), scan = series[0].results, series[1]
    result.to_json(tmp_path / "summary.json")
    read, (lag, theta) = load_result(tmp_path), lag_and_theta(result, scan)
    assert f_of(result, scan) == pytest.approx(float(own(theta, 0.0, lag, None)), rel=1e-6)
    assert f_of(read, scan) == f_of(result, scan)
    monkeypatch.delitem(user_defined.USER_DEFINED, "stretched")
    with pytest.raises(OptionError, match="the fitted model 'stretched' is unknown"):
        f_of(read, scan)
    assert "rate" in str(read)  # numbers need no model


def test_the_built_in_model_of_that_name_is_found_in_its_own_results(series):
    (result, _), scan = series[0].results, series[1]
    other = {"model_digest": hd.MODELS["stretched"].current().digest}
    again = changed(result, config=result.config | other, definition=None)
    lag, (rate, stretching) = lag_and_theta(again, scan)
    assert f_of(again, scan) == pytest.approx(np.exp(-2 * (rate * lag) ** stretching))


def test_values_that_changed_since_the_fit_are_not_drawn(series, monkeypatch):
    (result, _), scan = series[0].results, series[1]
    monkeypatch.setitem(globals(), "POWER", 2.0)
    with pytest.raises(OptionError, match="read have changed since the fit"):
        f_of(result, scan)
