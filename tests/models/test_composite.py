"""Sums and products of models: f, names, fits, and how they are written."""

import pickle

import jax.numpy as jnp
import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.errors import OptionError
from homodyne_dask.models import MODELS, model_named, model_of_digest
from tests.synthetic import FLOW, GAP

TIME = np.arange(40) * 0.1
BINS = {"q": 0.0054, "phi": [0.0, 30.0, 80.0], "contrast": 1.0, "offset": 0.0}
FAST = {"D0": 2e4}


def f_of(model, parameters, **more):
    return np.asarray(hd.predict(model, parameters, TIME, **BINS, **more))


def flow(suffix=""):
    common = ("D0", "alpha", "D_offset")
    values = zip(MODELS["laminar_flow"].names, FLOW, strict=True)
    return {name + suffix * (name in common): value for name, value in values}


@pytest.mark.long
def test_a_product_multiplies_what_its_models_compute():
    product = MODELS["laminar_flow"] * MODELS["brownian"]
    found = f_of(product, flow("_1") | {"D0_2": 2e4}, gap=GAP)
    wanted = f_of("laminar_flow", flow(), gap=GAP) * f_of("brownian", FAST)
    np.testing.assert_allclose(found, wanted, atol=1e-12)


@pytest.mark.parametrize("fraction", [0.0, 0.3, 1.0])
def test_a_sum_adds_fields(fraction):
    found = f_of("static + brownian", {
        "D0_1": 3e3, "alpha_1": -0.2, "D_offset_1": 0.0, "D0_2": 2e4, "fraction": fraction,
    })  # fmt: skip
    slow = np.sqrt(f_of("static", {"D0": 3e3, "alpha": -0.2, "D_offset": 0.0}))
    fast = np.sqrt(f_of("brownian", FAST))
    np.testing.assert_allclose(found, (fraction * slow + (1 - fraction) * fast) ** 2, atol=1e-12)


def test_names_are_numbered_where_two_parts_have_them():
    assert (MODELS["couette"] * MODELS["stretched"]).names == (
        "D0", "alpha", "D_offset", "gamma_dot_t0", "beta", "gamma_dot_t_offset", "phi0", "rate",
        "stretching",
    )  # fmt: skip
    both = MODELS["brownian"] + MODELS["brownian"] + MODELS["stretched"]
    assert both.name == "brownian + brownian + stretched"
    assert [name for name in both.names if name.startswith(("D0", "fraction"))] == [
        "D0_1", "D0_2", "fraction_1", "fraction_2",
    ]  # fmt: skip
    assert all(p.constant == 0 for p in both.parameters if p.name.startswith("alpha"))


@pytest.mark.parametrize(
    "text",
    ["static + brownian", "(static + brownian) * stretched", "static * stretched + brownian"],
)
def test_a_composite_is_known_by_its_name_and_goes_to_workers(text):
    model = model_named(text).current()
    assert model.name == text
    assert model.digest
    assert pickle.loads(pickle.dumps(model)) == model
    assert model_of_digest(text, model.digest) == model


def test_a_composite_holds_models_of_a_user():
    rate = hd.Parameter("rate", "1/s", bounds=(1e-3, 1e3))
    slow = hd.separable(
        lambda theta, t1, t2, bin: jnp.exp(-theta[0] * (t2 - t1)), [rate], name="slow"
    )
    found = f_of(slow * MODELS["brownian"], {"rate": 0.5, "D0": 2e4})
    lag = np.abs(TIME[:, None] - TIME)
    np.testing.assert_allclose(found, np.exp(-0.5 * lag) * f_of("brownian", FAST), atol=1e-12)


@pytest.mark.long
def test_two_populations_are_fitted_by_name(tmp_path):
    rng, time = np.random.default_rng(1), np.arange(80) * 0.05
    truth = {"D0_1": 2e5, "D0_2": 5e3, "fraction": 0.6}
    q, phi = [0.004] * 3 + [0.006] * 3, [0.0, 30.0, 60.0] * 2
    c2 = np.concatenate([
        np.asarray(hd.predict("brownian + brownian", truth, time, q=a, phi=[b], contrast=0.3, offset=1.0))
        for a, b in zip(q, phi, strict=True)
    ])  # fmt: skip
    noise = np.triu(0.01 * rng.normal(size=c2.shape), 1)
    stored = tmp_path / "two.zarr"
    hd.ingest(c2 + noise + np.swapaxes(noise, 1, 2), stored, q=q, phi=phi, dt=0.05)
    result = hd.fit(stored, "brownian + brownian")
    assert result.converged
    found = {name: result.params[name] for name in truth}
    for name, one in found.items():
        assert abs(one.value - truth[name]) < 5 * max(one.stderr, one.stderr_naive)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("static + nix", "model 'nix' of 'static . nix' is unknown"),
        ("static +", "cannot be read: give names with . and"),
        ("static + 2", "cannot be read"),
        ("beating + static", "beating cannot be part of a sum"),
        ("static_free * static", "static_free cannot be part of a sum or product"),
        ("frozen + frozen", "two frozen parts are one"),
        ("frozen + brownian + frozen", "two frozen parts are one"),
        ("frozen * brownian", "frozen does not change a product"),
        ("frozen + beating", "beating cannot be part of a sum"),
        ("frozen + static_free", "static_free cannot be part of a sum"),
    ],
)
def test_what_no_composite_is_is_said(text, message):
    with pytest.raises(OptionError, match=message):
        model_named(text)
