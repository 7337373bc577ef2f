"""What a user has set in JAX for other programs changes no number of ours, and stops nothing."""

import gc

import jax
import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.kernels.compiled import Kernel
from tests.synthetic import angles, measured, store

SETTINGS = {
    "jax_numpy_rank_promotion": "raise",
    "jax_numpy_dtype_promotion": "strict",
    "jax_transfer_guard": "disallow_explicit",
    "jax_disable_jit": True,
    "jax_debug_nans": True,
    "jax_enable_x64": False,
}


@pytest.fixture
def with_setting(request):
    before = {name: getattr(jax.config, name) for name in request.param}
    for kernel in (thing for thing in gc.get_objects() if isinstance(thing, Kernel)):
        kernel._executables.clear()  # that all is traced again, with the setting
    for name in before:
        jax.config.update(name, SETTINGS[name])
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def numbers(folder):
    scan = store(measured([20000.0, -0.4, 0.0], 40, angles(3), sigma=0.02, seed=1), folder)
    fits = [hd.fit(scan, model) for model in ("power_law", "stretched", "stretched * brownian")]
    f = hd.predict(fits[0].config["model"], {"D0": 1e4, "alpha": 0.1}, scan.time, q=0.01, phi=[0.0])
    values = [(fit.chisqr, fit.parameters["stderr"].values.tolist()) for fit in fits]
    return repr((values, np.asarray(f).tolist()))


ALONE = [pytest.param([name], marks=pytest.mark.long, id=name) for name in SETTINGS]


@pytest.mark.parametrize(
    "with_setting", [pytest.param([*SETTINGS], id="all"), *ALONE], indirect=True
)
def test_settings_of_jax_change_no_number(numbers_without, with_setting, tmp_path):
    assert numbers(tmp_path) == numbers_without


@pytest.fixture(scope="module")
def numbers_without(tmp_path_factory):
    return numbers(tmp_path_factory.mktemp("without"))
