"""With a GPU all is computed on the CPU; JAX starts beside a plugin for GPUs that cannot be used."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray

import homodyne_dask as hd
from homodyne_dask.errors import PlanError
from homodyne_dask.kernels import devices
from homodyne_dask.kernels.devices import float64_beside, float64_on_cpu
from homodyne_dask.kernels.gpus import cuda_missing
from tests.synthetic import FLOW, measured, store


@pytest.fixture
def gpu():
    """JAX computes on a GPU, which is not here: what is not placed on the CPU ends with an error."""
    before = jax.config.jax_default_device
    jax.config.update("jax_default_device", "gpu")
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


PLUGIN = """
import os, json
from pathlib import Path
def initialize():
    seen = {name: os.environ.get(name) for name in ("XLA_PYTHON_CLIENT_PREALLOCATE",)}
    import jax
    seen["platforms"] = jax.config.jax_platforms
    Path(os.environ["SEEN"]).write_text(json.dumps(seen))
    raise RuntimeError("no driver was found\\nand more")
"""
SCRIPTS = {
    "in a user's program": "",
    "in ours": """
from homodyne_dask.cli import main
try:
    main(["--version"])
except SystemExit:
    pass
""",
}


def run(script: str, folder: Path, **variables: str) -> tuple[str, dict]:
    """Run a script beside the plugin; return what it prints and what the plugin saw."""
    plugin = folder / "jax_plugins" / "xla_cuda99"
    plugin.mkdir(parents=True)
    (plugin / "__init__.py").write_text(PLUGIN)
    environment = {name: value for name, value in os.environ.items() if "JAX" not in name}
    path = os.pathsep.join([str(folder), *sys.path])
    environment |= {"PYTHONPATH": path, "SEEN": str(folder / "seen")} | variables
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr == ""
    return done.stdout, json.loads((folder / "seen").read_text())


@pytest.mark.parametrize("where", SCRIPTS)
def test_jax_takes_no_memory_of_gpus_and_says_nothing_of_their_plugin(where, tmp_path):
    script = (
        SCRIPTS[where]
        + """
import os, jax.numpy as jnp
from homodyne_dask.kernels.devices import gpus_here
from homodyne_dask.kernels.devices import float64_on_cpu
with float64_on_cpu():
    assert jnp.zeros(1).dtype == jnp.float64
assert "XLA_PYTHON_CLIENT_PREALLOCATE" not in os.environ
print(gpus_here())
"""
    )
    said, seen = run(script, tmp_path)
    why = "JAX cannot use a GPU (no driver was found): nvidia-smi shows whether there is one\n"
    if "has no CUDA" in cuda_missing():  # else there are two plugins
        assert said.endswith(why)
    assert seen["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert seen["platforms"] == ("cpu" if where == "in ours" else None)


def test_jax_that_was_started_without_processors_is_one_sentence(monkeypatch):
    def none():
        raise RuntimeError("Unknown backend cpu")

    monkeypatch.setattr(devices, "started", none)
    with pytest.raises(PlanError, match=r"no processor .Unknown backend cpu.: unset JAX_PLAT"):
        devices.first_cpu.__wrapped__()
