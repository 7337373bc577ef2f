"""One answer, whoever computes it: real processes, real signals."""

import os
import signal

import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask import cluster
from tests.synthetic import FLOW, angles, fit_here, measured, store

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    """9 angles of 600 frames: three blocks of 512 x 512, 1.6 million pairs."""
    return store(measured(FLOW, 600, angles(9), dt=0.2), tmp_path_factory.mktemp("bits"))


@pytest.fixture(scope="module")
def quiet(scan):
    """The fit in this process."""
    return fit_here(scan, hd.LAMINAR_FLOW, gap="200 um")


def same_bits(result, quiet) -> bool:
    one, other = result.parameters, quiet.parameters
    return (
        one["value"].values.tobytes() == other["value"].values.tobytes()
        and one["stderr"].values.tobytes() == other["stderr"].values.tobytes()
        and (result.chisqr, result.passes) == (quiet.chisqr, quiet.passes)
    )


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("memory", ["resident", "stream"])
def test_one_worker_and_two_resident_or_streaming_give_the_same_bits(
    scan, quiet, processes, memory
):
    with cluster.local_cluster(processes=processes, threads=1) as client:
        result = hd.fit(scan, hd.LAMINAR_FLOW, gap="200 um", client=client, memory=memory)
    assert same_bits(result, quiet)
    assert result.compilations == {"gram": 1}


def test_killing_a_worker_in_mid_pass_changes_no_bit(scan, quiet):
    killed = []
    with cluster.local_cluster(processes=2, threads=1) as client:
        client.wait_for_workers(2, timeout=60)

        def kill_one(state, plan):
            if state.passes == 2:
                pid = next(iter(client.run(os.getpid).values()))
                # the next pass is submitted right after this returns
                client.loop.call_later(0.05, os.kill, pid, signal.SIGKILL)
                killed.append(pid)

        result = hd.fit(scan, hd.LAMINAR_FLOW, gap="200 um", client=client, progress=kill_one)
    assert len(killed) == 1
    assert same_bits(result, quiet)


def test_a_fit_in_a_plain_script_needs_no_main_guard(scan, tmp_path, quiet):
    import subprocess
    import sys

    script = tmp_path / "script.py"
    script.write_text(
        "import homodyne_dask as hd\n"
        f"result = hd.fit({scan.path!r}, hd.LAMINAR_FLOW, gap='200 um')\n"
        "print(repr(float(result.parameters['value'].sel(param='D0'))))\n"
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=120, check=True
    )
    assert float(done.stdout.split()[-1]) == float(quiet.parameters["value"].sel(param="D0"))


def test_float64_is_in_force_whatever_the_users_settings(scan, quiet):
    import jax

    assert not jax.config.jax_enable_x64
    assert quiet.covariance.dtype == np.float64
    assert quiet.outcome is hd.Outcome.CONVERGED
