"""With a GPU everything is computed on the CPU all the same."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray

import homodyne_dask as hd
from homodyne_dask.kernels import compiled
from homodyne_dask.kernels.devices import float64_beside, float64_on_cpu
from tests.synthetic import FLOW, measured, store


@pytest.fixture
def gpu():
    """JAX computes on a GPU, which is not here: what is not placed on the CPU ends with an error."""
    before = jax.config.jax_default_device
    jax.config.update("jax_default_device", "gpu")
    compiled.known_options.cache_clear()
    yield
    jax.config.update("jax_default_device", before)


def test_what_is_not_placed_would_go_to_the_gpu(gpu):
    with pytest.raises(RuntimeError, match="gpu"):
        jnp.zeros(3) + 1
    with float64_on_cpu():
        assert {d.platform for d in (jnp.zeros(3) + 1).devices()} == {"cpu"}


def test_fits_in_this_process_are_on_the_cpu(gpu, tmp_path):
    """Initial values, passes and c2 of the transport models, and fits of residuals."""
    scan = store(measured(FLOW, 24, [0.0, 40.0]), tmp_path)
    assert hd.fit(scan, hd.STATIC, fixed={"alpha": 0, "D_offset": 0}).passes
    c2 = hd.predict(hd.LAMINAR_FLOW, FLOW, scan.time, q=scan.q, phi=scan.phi, gap="200 um")
    assert np.isfinite(c2[:, 0, 1]).all()
    points = xarray.Dataset({"x": ("i", np.arange(5.0)), "y": ("i", 2 * np.arange(5.0))})
    assert hd.curve_fit(lambda x, a: a * x, points).popt[0] == pytest.approx(2)


@pytest.mark.slow
def test_fits_of_user_defined_functions_and_of_shear_are_on_the_cpu(gpu, tmp_path):
    scan = store(measured(FLOW, 24, [0.0, 40.0, 80.0]), tmp_path)
    model = hd.separable(
        lambda theta, t1, t2, bin: jnp.exp(-theta[0] * (t2 - t1)),
        [hd.Parameter("rate", "1/s", (1e-3, 1e3), "log")],
    )
    assert hd.fit(scan, model).passes
    held = dict(zip(hd.LAMINAR_FLOW.names, FLOW, strict=True))
    del held["D0"], held["phi0"]
    assert hd.fit(scan, hd.LAMINAR_FLOW, gap="200 um", fixed=held).passes


def test_two_blocks_are_under_way_on_a_device():
    block, entered = jax.device_put(np.zeros(1), jax.devices("cpu")[0]), threading.Event()

    def third():
        with float64_beside(block):
            entered.set()

    with float64_beside(block):
        with float64_beside(block):
            other = threading.Thread(target=third)
            other.start()
            assert not entered.wait(0.1)
        assert entered.wait(10)
    other.join()
