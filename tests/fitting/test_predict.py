"""c2 from parameters: shapes, names and mistakes; its values are held to the reference in test_models."""

import jax
import numpy as np
import pytest

from homodyne_dask.errors import OptionError
from homodyne_dask.fitting.predict import predict
from homodyne_dask.models import LAMINAR_FLOW, STATIC
from tests import reference
from tests.synthetic import FLOW, Q


def test_predict_is_symmetric_and_one_on_the_diagonal():
    f = predict(LAMINAR_FLOW, FLOW, 0.1 * np.arange(20), q=Q, phi=[0, 45], gap="200 um")
    np.testing.assert_array_equal(f, f.transpose(0, 2, 1))
    np.testing.assert_array_equal(np.diagonal(f, axis1=1, axis2=2), 1.0)


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


MISTAKES = [
    ("unknown parameter", {"params": {"D": 1.0}}, "no parameter 'D'"),
    ("missing parameter", {"params": {"D0": 1.0, "alpha": 0.0}}, "needs a value for D_offset"),
    ("wrong length", {"params": [1.0, 2.0]}, "3 parameters .* 2 were given"),
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


def test_float64_is_in_force_whatever_the_users_settings():
    time = 0.1 * np.arange(6)
    here = predict(LAMINAR_FLOW, FLOW, time, q=Q, gap="200 um")
    with jax.enable_x64(False):
        there = predict(LAMINAR_FLOW, FLOW, time, q=Q, gap="200 um")
    assert there.dtype == np.float64
    assert here.tobytes() == there.tobytes()


def test_a_gap_that_is_not_needed_is_accepted():
    time = 0.1 * np.arange(6)
    one, two = (predict(STATIC, [1e4, 0, 0], time, q=Q, gap=gap) for gap in (None, "200 um"))
    assert one.tobytes() == two.tobytes()
