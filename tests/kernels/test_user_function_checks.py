"""Errors in a user-defined model end in one sentence that names the model and the line."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
import xarray

import homodyne_dask as hd
from homodyne_dask.errors import OptionError
from homodyne_dask.store.scan import open_dataset
from tests.kernels.user_functions import (
    FLOW_PARAMETERS,
    RELAXATION,
    flow_decay,
    integrals,
    relaxation,
    relaxing_scan,
)
from tests.synthetic import store


def branches(theta, t1, t2, bin):
    if theta[0] > 1:
        return jnp.exp(-theta[0] * (t2 - t1))
    return t2 - t1


def with_numpy(theta, t1, t2, bin):
    return np.exp(-theta[0] * (t2 - t1))


def with_math(theta, t1, t2, bin):
    return math.exp(theta[0]) * (t2 - t1)


def of_other_shape(theta, t1, t2, bin):
    return jnp.exp(-theta[0] * jnp.arange(7.0))


def of_nothing(theta, t1, t2, bin):
    jnp.exp(-theta[0] * (t2 - t1))


def misspelt(theta, t1, t2, bin):
    return jnp.exp(-theta[0] * (t2 - t1)) + bin.Q


def not_a_number(theta, t1, t2, bin):
    return jnp.log(t1 * theta[0]) * (t2 - t1)


def without_slope(theta, t1, t2, bin):
    return jnp.sqrt(theta[0] * t1) * jnp.exp(theta[1] - t2)


def of_a_parameter_it_has_not(theta, t1, t2, bin):
    return jnp.exp(-theta[5] * (t2 - t1))


ERRORS = [
    (branches, r"test_user_function_checks.py line \d+: a Python `if`.*jnp.where"),
    (with_numpy, r"line \d+: .*jax.numpy instead of numpy"),
    (with_math, r"line \d+: .*jax.numpy instead of numpy"),
    (of_other_shape, r"one value per pair, shape \(3, 2\).* returned shape \(7,\)"),
    (of_nothing, r"one value per pair.* returned NoneType"),
    (misspelt, r"line \d+: AttributeError: .*'Q'"),
    (
        of_a_parameter_it_has_not,
        r"line \d+: IndexError: index 5 out of bounds .* theta has one value",
    ),
    (not_a_number, r"f is -inf at t1 = 0 s, t2 = 0.333333 s with k = 1, m = 0"),
    (without_slope, r"the derivative of f with respect to k is nan at t1 = 0 s"),
]


@pytest.mark.long
@pytest.mark.parametrize(("f", "message"), ERRORS, ids=[f.__name__ for f, _ in ERRORS])
def test_an_error_in_f_is_one_sentence_with_model_and_line(tmp_path, f, message):
    model = hd.separable(f, [hd.Parameter("k"), hd.Parameter("m")])
    with pytest.raises(OptionError, match=message) as caught:
        hd.fit(store(relaxing_scan(bins=1), tmp_path), model, initial={"k": 1.0, "m": 0.0})
    assert f"model {f.__name__!r}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_residual_of_a_parameter_it_has_not_is_refused():
    model = hd.model(lambda theta, x: theta[-2] * x, [hd.Parameter("k")], name="line")
    points = xarray.Dataset({"x": ("i", np.arange(3.0))})
    with pytest.raises(
        OptionError, match=r"model 'line', .*index -2 out of bounds .* theta has one"
    ):
        hd.fit(points, model, initial={"k": 1.0})


def test_other_errors_are_named_too(tmp_path):
    with pytest.raises(OptionError, match="model 'flow_decay' has no parameters"):
        hd.separable(flow_decay, [])
    with pytest.raises(OptionError, match="two parameters named 'k'"):
        hd.separable(flow_decay, [hd.Parameter("k"), hd.Parameter("k")])
    scan = store(relaxing_scan(bins=1), tmp_path)
    short = hd.separable(
        flow_decay, FLOW_PARAMETERS, precompute=lambda theta, times: {"C": times[1:]}
    )
    with pytest.raises(
        OptionError, match=r"precompute must return .* shape \(60,\).* returned shape \(59,\)"
    ):
        hd.fit(scan, short)
    model = hd.separable(relaxation, [hd.Parameter("rate"), hd.Parameter("alpha")])
    with pytest.raises(OptionError, match="rate has neither an initial value nor finite bounds"):
        hd.fit(scan, model)
    with pytest.raises(OptionError, match="convention 'homodyne' applies to the transport models"):
        hd.fit(scan, model, convention="homodyne")
    with pytest.raises(OptionError, match="float64 only"):
        hd.fit(scan, model, precision="mixed")


@pytest.mark.long
def test_a_model_that_uses_q_is_refused_where_q_is_unknown_and_others_are_not(tmp_path):
    scan = open_dataset(store(relaxing_scan(bins=1), tmp_path, q=np.array([np.nan])).path)
    model = hd.separable(flow_decay, FLOW_PARAMETERS, precompute=integrals)
    with pytest.raises(OptionError, match="flow_decay needs q"):
        hd.plan(scan, model)
    assert hd.fit(scan, hd.separable(relaxation, RELAXATION)).converged
