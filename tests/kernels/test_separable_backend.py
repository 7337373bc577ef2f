"""A user-defined model: its Gram, its fits, its way to workers, and messages about errors in it."""

import os
import subprocess
import sys

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import OptionError
from homodyne_dask.kernels.backend import backend_of
from homodyne_dask.kernels.cache_folder import FOLDER
from homodyne_dask.kernels.problem import Problem
from homodyne_dask.kernels.transport_backend import gram as transport_gram
from homodyne_dask.kernels.transport_backend import robust_gram as transport_robust_gram
from homodyne_dask.kernels.transport_evaluation import point as transport_point
from tests.kernels.user_functions import (
    FLOW_PARAMETERS,
    RELAXATION,
    flow_decay,
    integrals,
    relaxation,
    relaxing_scan,
)
from tests.synthetic import FLOW, angles, blocks, fit_here, measured, store, without_some


def grams(model, scans, theta, **options):
    backend = backend_of(model)
    at = backend.point(Problem(model, **options), theta, scans.time)
    return [backend.gram(at, block, None) for _, block in blocks(scans)]


def test_the_traced_gram_of_laminar_flow_is_the_one_made_by_hand():
    scans = without_some(measured(FLOW, 90, angles(3), offset=1.1))
    model = hd.separable(flow_decay, FLOW_PARAMETERS, precompute=integrals)
    at = transport_point(scans.problem(), FLOW, scans.time)
    for (gram, sums), (_, block) in zip(grams(model, scans, FLOW), blocks(scans), strict=True):
        wanted, of_data = transport_gram(at, block)
        size = np.sqrt(np.einsum("kii->ki", wanted.moments))
        apart = np.abs(gram.moments - wanted.moments) / (size[:, :, None] * size[:, None, :])
        assert apart.max() < 1e-10
        np.testing.assert_array_equal(gram.pairs, wanted.pairs)
        np.testing.assert_allclose(sums, of_data, rtol=1e-12)


@pytest.mark.long
def test_the_traced_gram_under_a_loss_is_the_one_made_by_hand():
    scans = without_some(measured(FLOW, 40, angles(3), offset=1.1))
    model = hd.separable(flow_decay, FLOW_PARAMETERS, precompute=integrals)
    linear_params, options = np.tile([0.12, 0.21], (3, 1)), {"loss": "soft_l1", "loss_scale": 1.3}
    at = transport_point(scans.problem(**options), FLOW, scans.time)
    here = backend_of(model).point(Problem(model, **options), FLOW, scans.time)
    for _, block in blocks(scans):
        gram = backend_of(model).robust_gram(here, block, linear_params)
        wanted = transport_robust_gram(at, block, linear_params)
        size = np.sqrt(np.einsum("kii->ki", wanted.moments))
        apart = np.abs(gram.moments - wanted.moments) / (size[:, :, None] * size[:, None])
        assert apart.max() < 1e-10
        np.testing.assert_allclose(gram.loss, wanted.loss, rtol=1e-12)
        np.testing.assert_array_equal(gram.pairs, wanted.pairs)


def test_a_level_averages_the_tables_as_its_data_are_averaged():
    model = hd.separable(flow_decay, FLOW_PARAMETERS, precompute=integrals)
    time = 0.1 * np.arange(50)
    coarse = backend_of(model).point(Problem(model), FLOW, time, 4)
    C = np.asarray(integrals(FLOW, time)["C"])
    np.testing.assert_allclose(coarse.tables["C"], C[:48].reshape(12, 4).mean(1), rtol=1e-5)
    assert coarse.derivatives["C"].shape == (7, 12)


@pytest.mark.long
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
import homodyne_dask.fitting.fit as fitting

fitting.IN_PROCESS_PAIRS = LIMIT

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
