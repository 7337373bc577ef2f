"""A result keeps the model it was fitted with: another of the same name is never drawn in its place."""

import jax.numpy as jnp
import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import OptionError
from homodyne_dask.models import user_defined
from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.files.saved_results import load_result, load_series
from tests.results.made_results import changed
from tests.synthetic import measured, store

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
def test_a_result_draws_the_model_it_was_fitted_with(series):
    fits, scan = series
    for result in fits.results:
        lag, theta = lag_and_theta(result, scan)
        assert f_of(result, scan) == pytest.approx(float(own(theta, 0.0, lag, None)), rel=1e-6)


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
    read = load_result(tmp_path)
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
