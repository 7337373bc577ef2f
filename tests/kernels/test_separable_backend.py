"""A user-defined model: its Gram, its fits, its way to workers, and messages about errors in it."""

import math
import os
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import OptionError
from homodyne_dask.kernels.backend import backend_of
from homodyne_dask.kernels.backend_interface import Problem
from homodyne_dask.kernels.devices import FOLDER
from homodyne_dask.kernels.transport_backend import TRANSPORT
from homodyne_dask.store.scan import open_dataset
from tests.kernels.gram_errors import EXACT, worst_error
from tests.kernels.user_functions import (
    FLOW_PARAMETERS,
    RELAXATION,
    flow_decay,
    integrals,
    relaxation,
    relaxing_scan,
)
from tests.synthetic import FLOW, angles, blocks, fit_here, measured, store, without_some


@pytest.mark.long
def test_the_traced_grams_of_laminar_flow_are_those_made_by_hand():
    scans = without_some(measured(FLOW, 90, angles(3), offset=1.1))
    model = hd.separable(flow_decay, FLOW_PARAMETERS, precompute=integrals).current()
    linear_params, options = np.tile([0.12, 0.21], (3, 1)), {"loss": "soft_l1", "loss_scale": 1.3}
    at = TRANSPORT.point(scans.problem(**options), FLOW, scans.time)
    here = backend_of(model).point(Problem(model, **options), FLOW, scans.time)
    for _, block in blocks(scans):
        gram, sums = backend_of(model).gram(here, block, None)
        wanted, of_data = TRANSPORT.gram(at, block)
        np.testing.assert_allclose(sums, of_data, rtol=1e-12)
        robust = backend_of(model).robust_gram(here, block, linear_params)
        by_hand = TRANSPORT.robust_gram(at, block, linear_params)
        np.testing.assert_allclose(robust.loss, by_hand.loss, rtol=1e-12)
        for one, other in ((gram, wanted), (robust, by_hand)):
            assert worst_error(one.moments, other.moments).max() < EXACT
            np.testing.assert_array_equal(one.pairs, other.pairs)


def test_a_level_averages_the_tables_as_its_data_are_averaged():
    model = hd.separable(flow_decay, FLOW_PARAMETERS, precompute=integrals).current()
    time = 0.1 * np.arange(50)
    coarse = backend_of(model).point(Problem(model), FLOW, time, 4)
    C = np.asarray(integrals(FLOW, time)["C"])
    np.testing.assert_allclose(coarse.tables["C"], C[:48].reshape(12, 4).mean(1), rtol=1e-5)
    assert coarse.derivatives["C"].shape == (7, 12)


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("initial", [{}, {"rate": 0.1, "alpha": 0.5}], ids=["searched", "given"])
def test_a_model_of_two_lines_is_recovered_with_its_errors(tmp_path, initial):
    model = hd.separable(relaxation, RELAXATION)
    result = hd.fit(store(relaxing_scan(), tmp_path), model, initial=initial)
    assert result.converged
    pull = (result.parameters["value"] - [0.4, -0.6]) / result.parameters["stderr_naive"]
    assert np.abs(pull).max() < 4
    assert np.isfinite(result.parameters["stderr"]).all()
    assert "relaxation fitted to" in str(result)


def test_a_fit_resumes_to_the_same_bits_and_not_with_other_code(tmp_path):
    scan, path = store(relaxing_scan(), tmp_path), tmp_path / "checkpoint.json"
    model, initial = hd.separable(relaxation, RELAXATION), {"rate": 0.1, "alpha": 0.5}
    whole = fit_here(scan, model, initial=initial)
    assert fit_here(scan, model, path, stop_after=3, initial=initial) is None
    resumed = fit_here(scan, model, path, resume=True, initial=initial)
    np.testing.assert_array_equal(whole.parameters["value"], resumed.parameters["value"])
    other = hd.separable(lambda th, t1, t2, bin: th[1] * t1, RELAXATION, name="relaxation")
    with pytest.raises(OptionError, match="code of the model"):
        fit_here(scan, other, path, resume=True, initial=initial)


def test_predict_takes_any_model():
    model = hd.separable(relaxation, RELAXATION)
    time = 0.5 * np.arange(5)
    c2 = hd.predict(model, {"rate": 0.4, "alpha": -0.6}, time, q=0.01, contrast=0.2, offset=1.0)
    wanted = 1 + 0.2 * np.asarray(relaxation((0.4, -0.6), time[1], time[3], None))
    assert c2.shape == (1, 5, 5)
    assert c2[0, 1, 3] == c2[0, 3, 1] == pytest.approx(wanted, rel=1e-6)


SCRIPT = """
import jax.numpy as jnp
import homodyne_dask as hd
import homodyne_dask.sweep.plan as plans

plans.IN_PROCESS_PAIRS, plans.RESIDENT_SHARE = LIMIT, 0

def helper(x):
    return jnp.exp(-x)

def relaxation(theta, t1, t2, bin):
    rate, alpha = theta
    return helper(rate * (t2 - t1) * (1 + 0.5 * (t1 + t2)) ** alpha)

model = hd.separable(relaxation, parameters=[
    hd.Parameter("rate", "1/s", bounds=(1e-3, 1e2), scale="log"), hd.Parameter("alpha", "", (-2, 2)),
])
result = hd.fit("scan.zarr", model)
print([float(v).hex() for v in result.parameters["value"]], result.run.compilations["gram"])
"""


@pytest.mark.slow
@pytest.mark.cluster
def test_a_model_in_a_script_reaches_the_workers_and_gives_the_same_bits(tmp_path):
    store(relaxing_scan(), tmp_path)
    said = []
    for limit in (0, 10**9):
        (tmp_path / "script.py").write_text(SCRIPT.replace("LIMIT", str(limit)))
        ran = subprocess.run(
            [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=200,
            env=os.environ | {FOLDER: "off"},
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        said.append(ran.stdout)
    assert said[0] == said[1]
    assert said[0].endswith("] 1\n")


def test_a_model_travels_by_value_and_is_compiled_once():
    import pickle

    model = hd.separable(relaxation, RELAXATION)
    packed = pickle.dumps(model)
    assert b"tests.kernels.test_separable_backend" not in packed.replace(b"__module__", b"")[:200]
    assert pickle.loads(packed) is pickle.loads(packed)
    assert pickle.loads(pickle.dumps(hd.MODELS["two_component"])) is hd.MODELS["two_component"]


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
    (branches, r"test_separable_backend.py line \d+: a Python `if`.*jnp.where"),
    (with_numpy, r"line \d+: .*jax.numpy instead of numpy"),
    (with_math, r"line \d+: .*jax.numpy instead of numpy"),
    (of_other_shape, r"one value per pair, shape \(3, 2\).* returned shape \(7,\)"),
    (of_nothing, r"one value per pair.* returned NoneType"),
    (misspelt, r"line \d+: AttributeError: .*'Q'"),
    (
        of_a_parameter_it_has_not,
        r"line \d+: IndexError: index 5 out of bounds .* theta has one value",
    ),
    (not_a_number, r"f is -inf at t1 = 0 s, t2 = 0.333333 s, q = .*, φ = .* with k = 1, m = 0"),
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
