"""How JAX starts in a process of ours, beside a plugin for GPUs: one that cannot be used stands for it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from homodyne_dask.errors import PlanError
from homodyne_dask.kernels import jax_start
from homodyne_dask.kernels.gpus import cuda_missing

PLUGIN = """
import os, json
from pathlib import Path
def initialize():
    told = {name: os.environ.get(name) for name in ("XLA_PYTHON_CLIENT_PREALLOCATE",)}
    import jax
    told["platforms"] = jax.config.jax_platforms
    Path(os.environ["TOLD"]).write_text(json.dumps(told))
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
    environment |= {"PYTHONPATH": path, "TOLD": str(folder / "told")} | variables
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr == ""
    return done.stdout, json.loads((folder / "told").read_text())


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
    why = "JAX cannot use a GPU (no driver was found): nvidia-smi says whether there is one\n"
    if "has no CUDA" in cuda_missing():  # else there are two plugins
        assert said.endswith(why)
    assert seen["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert seen["platforms"] == ("cpu" if where == "in ours" else None)


def test_processors_are_had_beside_the_platforms_that_a_user_names(tmp_path):
    script = """
from homodyne_dask.kernels.jax_start import first_cpu
print(first_cpu().platform)
"""
    said, seen = run(script, tmp_path, JAX_PLATFORMS="cuda", XLA_PYTHON_CLIENT_PREALLOCATE="true")
    assert (said, seen["platforms"]) == ("cpu\n", "cuda,cpu")
    assert seen["XLA_PYTHON_CLIENT_PREALLOCATE"] == "true"


def test_jax_that_was_started_without_processors_is_one_sentence(monkeypatch):
    def none():
        raise RuntimeError("Unknown backend cpu")

    monkeypatch.setattr(jax_start, "started", none)
    with pytest.raises(
        PlanError, match=r"no processors here .Unknown backend cpu.: unset JAX_PLAT"
    ):
        jax_start.first_cpu.__wrapped__()
