"""c2 from parameters: shapes, names and mistakes; its values are held to the reference in test_models."""

import jax
import numpy as np
import pytest

from homodyne_dask.errors import OptionError
from homodyne_dask.fitting.predict import c2_of_point, predict
from homodyne_dask.models import LAMINAR_FLOW, STATIC, Convention
from homodyne_dask.simulation import counted_c2, field_root, point_of_scenario
from ingest.simulate import SCENARIOS, Scenario
from tests import reference
from tests.synthetic import FLOW, GAP, Q


def test_predict_takes_any_axis_by_bin_and_names_for_parameters():
    time = 0.1 * np.arange(5)
    by_name = dict(zip(STATIC.names, (5000.0, -0.5, 10.0), strict=True))
    both = predict(STATIC, by_name, time, q=[Q, 2 * Q], contrast=[0.1, 0.2], offset=1.0)
    one = predict(STATIC, [5000, -0.5, 10], time, q=2 * Q, contrast=0.2, offset=1.0)
    np.testing.assert_array_equal(both[1], one[0])


def test_bounds_of_fits_do_not_limit_predict():
    time = 0.1 * np.arange(5)
    theta = np.array([5e7, -3.0, 0.0])
    upper = np.triu_indices(5, 1)
    found = predict(STATIC, theta, time, q=1e-4)[0]
    with np.errstate(over="ignore"):
        wanted = reference.f_physical(theta, time, 1e-4, 0.0)
    np.testing.assert_allclose(found[upper], wanted[upper], atol=1e-13)


OF_BIN = {"q": Q, "phi": 40.0, "contrast": 0.2, "offset": 1.1}


STEP = {"J_before": 8e3, "J_after": 2.4e4, "t_step": 2.1, "width": 0.2}


def test_rates_of_simulated_scans_are_a_step_of_temperature():
    time = np.array([0.0, 0.1, 0.2, 0.4, 0.5, 1.9, 2.0, 2.2, 3.0])
    t = np.maximum(time, 0.5 * np.median(np.diff(time)))
    J = 8e3 + 1.6e4 / (1 + np.exp(-(t - 2.1) / 0.2))
    C = reference.integral(J, time)
    at = point_of_scenario(Scenario("", "temperature_step", STEP), time, Convention.PHYSICAL)
    found = c2_of_point(at, time, *(np.array([value]) for value in OF_BIN.values()))[0]
    decay = np.exp(-(Q**2) * np.abs(C[:, None] - C))
    np.testing.assert_allclose(found, 1.1 + 0.2 * decay, rtol=1e-12)


@pytest.mark.parametrize("convention", Convention)
def test_rates_of_a_simulated_flow_are_those_of_the_model(convention):
    time, theta = 0.1 * np.arange(30), [4e3, 0, 4e3, 1e-4, 0, 1e-4, 5]
    made = Scenario("", "laminar_flow", dict(zip(LAMINAR_FLOW.names, theta, strict=True)), gap=GAP)
    at = point_of_scenario(made, time, convention)
    found = c2_of_point(at, time, *(np.array([value]) for value in OF_BIN.values()))[0]
    of_bin = OF_BIN | {"gap": GAP, "convention": convention.value}
    np.testing.assert_allclose(found, predict(LAMINAR_FLOW, theta, time, **of_bin)[0], rtol=1e-11)


@pytest.mark.parametrize("contrast", [1.0, 0.4, 0.25])
def test_photons_have_the_correlation_of_the_model_with_any_contrast(contrast):
    time, q, phi = 0.1 * np.arange(30), np.array([0.01]), np.zeros(1)
    at = point_of_scenario(SCENARIOS["brownian"], time, Convention.PHYSICAL)
    seeds = np.random.default_rng(1), np.random.default_rng(2)
    c2 = counted_c2(field_root(at, time, q, phi), contrast, 3.0, 20_000, *seeds)
    model = c2_of_point(at, time, q, phi, np.array([contrast]), np.ones(1))[0]
    pairs = np.triu_indices(len(time), 1)
    assert np.abs(c2 - model)[pairs].mean() < 2 * (1 / 3 + contrast) / np.sqrt(20_000)


MISTAKES = [
    ("unknown parameter", {"params": {"D": 1.0}}, "no parameter 'D'"),
    ("missing parameter", {"params": {"D0": 1.0, "alpha": 0.0}}, "needs a value of D_offset"),
    ("wrong length", {"params": [1.0, 2.0]}, "3 parameters .* 2 values were given"),
    ("unequal bins", {"q": [1e-3, 2e-3], "phi": [0, 1, 2]}, r"q 2, phi 3"),
    ("unknown convention", {"convention": "phisical"}, "did you mean 'physical'"),
    ("flow without gap", {"model": LAMINAR_FLOW, "params": FLOW}, "needs the gap"),
    ("gap without unit", {"model": LAMINAR_FLOW, "params": FLOW, "gap": "200"}, "no unit"),
]


@pytest.mark.parametrize(("word", "change", "says"), MISTAKES, ids=[w for w, *_ in MISTAKES])
def test_mistakes_in_predict_are_named(word, change, says):
    given = {"model": STATIC, "params": [1.0, 0.0, 0.0], "times": [0.0, 1.0], "q": Q} | change
    model, params, times = given.pop("model"), given.pop("params"), given.pop("times")
    with pytest.raises(OptionError, match=says):
        predict(model, params, times, **given)


NO_NUMBERS = {
    "objects": np.array([1.0, {}], object),
    "complex": np.array([1.0, 2.0 + 1j]),
    "dates": np.array(["2026-01-01", "2026-01-02"], "M8[s]"),
    "records": np.zeros(2, [("a", "f8")]),
    "words": np.array(["a", "b"]),
}


@pytest.mark.parametrize("name", ["q", "phi", "contrast", "times"])
@pytest.mark.parametrize("kind", NO_NUMBERS)
def test_arrays_of_anything_but_numbers_are_refused(name, kind):
    given: dict = {"times": [0.0, 1.0], "q": [Q, Q]} | {name: NO_NUMBERS[kind]}
    with pytest.raises(OptionError, match=rf"{name} = .* is neither a number nor a list"):
        predict(STATIC, [1.0, 0.0, 0.0], given.pop("times"), **given)


def test_arrays_of_numbers_as_objects_and_in_files_are_numbers(tmp_path):
    time = 0.1 * np.arange(6)
    mapped = np.memmap(tmp_path / "time", "f8", "w+", shape=time.shape)
    mapped[:] = time
    given = (time, time.astype(object), mapped)
    found = [predict(STATIC, [1e4, 0, 0], times, q=Q).tobytes() for times in given]
    assert len(set(found)) == 1


def test_float64_is_in_force_whatever_the_users_settings():
    time = 0.1 * np.arange(6)
    here = predict(LAMINAR_FLOW, FLOW, time, q=Q, gap="200 um")
    with jax.enable_x64(False):
        there = predict(LAMINAR_FLOW, FLOW, time, q=Q, gap="200 um")
    assert there.dtype == np.float64
    assert here.tobytes() == there.tobytes()


def test_predict_is_symmetric_and_one_on_the_diagonal():
    f = predict(LAMINAR_FLOW, FLOW, 0.1 * np.arange(20), q=Q, phi=[0, 45], gap="200 um")
    np.testing.assert_array_equal(f, f.transpose(0, 2, 1))
    np.testing.assert_array_equal(np.diagonal(f, axis1=1, axis2=2), 1.0)
