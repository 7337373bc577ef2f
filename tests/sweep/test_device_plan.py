"""What computes the passes, why, and the memory it takes: without a GPU, which is described or stood in for.

The second CPU of JAX, in a process that is started with two, stands for the device of a worker.
"""

import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import pytest

import homodyne_dask as hd
from homodyne_dask.cluster.workers import Workers
from homodyne_dask.errors import OptionError, PlanError
from homodyne_dask.fitting import fit as fitting
from homodyne_dask.fitting.minimize import identity
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.fitting.series.many_fits import Job, PreviousFit, start_fits
from homodyne_dask.kernels.devices import enough_memory
from homodyne_dask.kernels.gpus import GPU, Gpus
from homodyne_dask.sweep import plan
from homodyne_dask.sweep.layout import layout
from homodyne_dask.sweep.plan import Device, chosen_device, make_plan
from tests.sweep.plans import scan_to_plan
from tests.synthetic import FLOW, measured, store

H100 = Gpus(2, "H100", 60 * 10**9)
SMALL, LARGE = scan_to_plan(100, 8), scan_to_plan(20_000, 12)
"""Of 40 thousand and 2.4e9 pairs."""
CHOICES = [
    ("few pairs", SMALL, 2, "auto", "auto", H100, "cpu", "a GPU takes 6 s, all passes about 0.0009 s on"),
    ("many pairs", LARGE, 2, "auto", "auto", H100, "gpu", "saves about 41.0 s, all passes about 56.0 s on"),
    ("many cores", LARGE, 32, "auto", "auto", H100, "cpu", "all passes about 5.8 s on processors"),
    ("16 cores", LARGE, 16, "auto", "auto", H100, "cpu", "2 H100 would take about 15.0 s, all passes about"),
    ("many, streaming", LARGE, 2, "auto", "stream", H100, "cpu", "data are read again in every pass"),
    ("no GPU", LARGE, 2, "auto", "auto", "there is none", "cpu", "there is none"),
    ("too many for it", LARGE, 2, "auto", "auto", Gpus(1, "T4", 10**8), "cpu", "can hold 90 MB"),
    ("asked for", SMALL, 2, "gpu", "stream", H100, "gpu", "as requested"),
    ("not wanted", LARGE, 2, "cpu", "auto", H100, "cpu", "as requested"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "threads", "wanted", "memory", "found", "name", "why"),
    [row for _, *row in CHOICES],
    ids=[word for word, *_ in CHOICES],
)
def test_the_choice_and_its_reason(data, threads, wanted, memory, found, name, why):
    cut = layout(data)
    chosen = chosen_device(wanted, cut, memory, lambda: found, threads)
    assert chosen.name == name
    assert why in chosen.why
    assert (chosen.place, chosen.gpus) == ((GPU, found) if name == "gpu" else ("", None))
    workers = Workers(2, 4, 10**11)
    assert f"device             {chosen}" in str(
        make_plan(cut, workers, "static", 3, 8, device=chosen)
    )


def test_more_passes_pay_for_the_start_of_a_gpu_and_more_threads_do_not():
    cut = layout(scan_to_plan(2950, 23))
    assert chosen_device("auto", cut, "auto", lambda: H100, 2).name == "cpu"
    of_posterior = cut, "auto", lambda: H100
    assert chosen_device("auto", *of_posterior, 2, plan.PASSES_OF_A_POSTERIOR).name == "gpu"
    assert chosen_device("auto", *of_posterior, 16, plan.PASSES_OF_A_POSTERIOR).name == "cpu"


@pytest.mark.parametrize(
    ("client", "threads", "options", "passes"),
    [(None, 5, {}, 7), ("client", 8, {"profile": ("D0", "alpha")}, 23)],
    ids=["cores of this machine", "threads of workers"],
)
def test_a_plan_counts_the_threads_and_passes_of_a_fit(
    tmp_path, monkeypatch, client, threads, options, passes
):
    asked = []
    monkeypatch.setattr(fitting, "cores", lambda: 5)
    monkeypatch.setattr("homodyne_dask.cluster.local.workers_of", lambda _: Workers(3, 8, 10**11))
    monkeypatch.setattr(
        fitting, "chosen_device", lambda *given: asked.append(given[4:]) or plan.ON_CPU
    )
    data = store(measured(FLOW, 24, [0.0, 40.0]), tmp_path)
    fitting.plan_for(prepare(data, "static", **options), client)
    assert asked == [(threads, passes)]


def test_gpus_are_not_looked_for_where_none_is_taken():
    def found():
        raise AssertionError

    cases = (SMALL, "auto", "auto"), (LARGE, "cpu", "auto"), (LARGE, "auto", "stream")
    for data, wanted, memory in cases:
        assert chosen_device(wanted, layout(data), memory, found, 2).name == "cpu"


def test_the_expected_seconds_are_those_that_were_measured():
    seconds = [plan.seconds_of_passes(10**9, threads) for threads in (1, 2, 4, 8, 16, 64)]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[4] == pytest.approx(7 / 1.36, rel=0.1)  # 16 processors
    one, two = (plan.seconds_of_passes(10**9, 0, gpus) for gpus in (1, 2))
    assert two < one
    assert 6 + 7 / 1.9 < one < 6 + 2.8 + 7 / 1.4  # an H100


def test_a_gpu_that_cannot_be_had_is_refused_in_a_sentence(tmp_path, monkeypatch):
    data = store(measured(FLOW, 24, [0.0, 40.0]), tmp_path)
    monkeypatch.setattr(fitting, "gpus_of_machine", lambda: "this JAX has no CUDA: install it")
    for call in (hd.fit, hd.plan):
        with pytest.raises(
            PlanError, match="device = 'gpu' is not available: this JAX has no CUDA"
        ):
            call(data, hd.STATIC, device="gpu")
    with pytest.raises(OptionError, match="device 'tpu' is unknown"):
        hd.plan(data, hd.STATIC, device="tpu")
    cells = SimpleNamespace(cells=7, pairs=10**9)
    with pytest.raises(OptionError, match="mean over cells of age and lag"):
        chosen_device("gpu", cells, "auto", lambda: H100, 2)
    assert "cells" in chosen_device("auto", cells, "auto", lambda: H100, 2).why


def test_small_fits_side_by_side_are_not_for_gpus(tmp_path):
    scan = store(measured(FLOW, 24, [0.0]), tmp_path)
    job = Job("", lambda: scan, {"device": "gpu"}, tmp_path, written=False)
    said = pytest.raises(OptionError, match=r"small fits \(1 here\) are computed in parallel")
    with said, start_fits([job], [PreviousFit()], hd.STATIC, None, SimpleNamespace(), True):
        pass


def on_gpus(number=2, memory=60 * 10**9):
    return Device("gpu", "as requested", Gpus(number, "H100", memory), GPU)


def test_data_stay_on_gpus_within_their_memory():
    cut, workers = layout(scan_to_plan(20_000, 32)), Workers(2, 8, 10**11)
    made = make_plan(cut, workers, "laminar_flow", 7, 32, device=on_gpus())
    assert made.resident
    assert made.budget == cut.resident_bytes < made.capacity // 2 < 0.9 * 60e9
    on_cpu = make_plan(cut, Workers(2, 8, 10**11), "laminar_flow", 7, 32, "stream")
    assert made.memory_per_worker == on_cpu.memory_per_worker
    assert "memory of a GPU" in str(made)
    one = make_plan(
        cut, Workers(1, 4, 10**11), "laminar_flow", 7, 32, device=on_gpus(1, 20 * 10**9)
    )
    assert not one.resident


def test_a_worker_holds_the_libraries_of_cuda_where_jax_has_them(monkeypatch):
    made = make_plan(layout(SMALL), Workers(2, 4, 10**11), "static", 3, 8)
    monkeypatch.setattr(plan, "cuda_plugins", lambda: [])
    without = made.memory_per_worker
    monkeypatch.setattr(plan, "cuda_plugins", lambda: ["xla_cuda13"])
    assert made.memory_per_worker - without == 330 * 10**6


def test_what_a_gpu_cannot_hold_is_refused_before_the_first_pass():
    cut, workers = layout(scan_to_plan(20_000, 32)), Workers(1, 4, 10**11)
    with pytest.raises(
        PlanError, match=r"needs 27.5 GB, .* of the memory of 1 H100: use memory='stream'"
    ):
        make_plan(cut, workers, "static", 3, 32, "resident", device=on_gpus(1, 20 * 10**9))
    with pytest.raises(PlanError, match=r"H100 would need .* to compute a block, .* 900 MB"):
        make_plan(cut, workers, "static", 3, 32, "stream", device=on_gpus(1, 10**9))


def test_memory_that_is_used_up_all_the_same_is_one_sentence():
    told = {"bytes_in_use": 59 * 10**9, "bytes_limit": 60 * 10**9}
    device = SimpleNamespace(device_kind="H100", memory_stats=lambda: told)
    said = r"memory of H100 is used up .*allocating 8 bytes.: this fit uses 59 GB of the 60 GB"
    with pytest.raises(PlanError, match=said), enough_memory(device):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes")
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), enough_memory(device):
        raise jax.errors.JaxRuntimeError("INTERNAL: anything else")


def test_tasks_on_gpus_are_longer():
    cut, workers = layout(scan_to_plan(20_000, 32)), Workers(2, 8, 10**11)
    long, short = (
        make_plan(cut, workers, "laminar_flow", 7, 32, device=device).tasks
        for device in (on_gpus(), Device("cpu", "as requested"))
    )
    assert long[0] == short[0]
    assert len(long) < len(short)
    shortest = min(task.length for task in long)
    assert shortest > min(task.length for task in short)


def test_a_fit_on_a_gpu_resumes_on_a_gpu_only(tmp_path):
    request = prepare(store(measured(FLOW, 24, [0.0, 40.0]), tmp_path), hd.STATIC)
    here = request.computed_on(Device("cpu", "few pairs"))
    assert identity(here) == identity(request)
    assert identity(request.computed_on(on_gpus())) == identity(request) | {"device": "gpu"}


IN_TWO = """
import sys, jax, numpy as np, homodyne_dask as hd
from homodyne_dask.cluster.workers import this_process
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.kernels.gpus import Gpus
from homodyne_dask.sweep import blocks as block_cache
from homodyne_dask.sweep.plan import Device
from homodyne_dask.sweep.layout import layout
from homodyne_dask.sweep.plan import make_plan
from homodyne_dask.sweep.sweep import sweep_of

request = prepare(hd.open_dataset(sys.argv[1]), hd.STATIC)
theta, cut = np.array([2500.0, -0.3, 100.0]), layout(request.scan)

def gram(memory="auto", **device):
    there = [Device("gpu", "a trial", Gpus(1, "cpu", 10**9), "cpu:1")] if device else []
    plan = make_plan(cut, this_process(), "static", 3, 2, memory, (), *there)
    found = sweep_of(plan, request.scan.selection, request.problem, None).gram(theta)
    kept = [a for a in jax.live_arrays() if a.dtype == np.float32]  # c2
    assert all(a.devices() == {jax.devices()[1]} for a in kept)
    return found.moments, sum(a.nbytes for a in kept), plan

first, second = jax.devices()
jax.config.update("jax_default_device", second)  # as JAX takes a GPU where there is one
here, kept, _ = gram()
assert all(a.devices() == {first} for a in jax.live_arrays())
assert kept == 0 and not any(isinstance(b.c2, jax.Array) for b in block_cache.BLOCKS.values())
there, kept, plan = gram(device=True)
assert kept == plan.budget == cut.resident_bytes > 0
again, same, _ = gram(device=True)
assert again.tobytes() == there.tobytes() and same == kept
block_cache.forget()
streamed, kept, _ = gram("stream", device=True)
assert streamed.tobytes() == there.tobytes() and kept <= cut.block_bytes, kept
size = np.sqrt(np.einsum("kii->ki", here))
assert (abs(there - here) <= 1e-12 * size[:, :, None] * size[:, None, :]).all()
"""


@pytest.mark.long
def test_data_are_kept_and_computed_where_the_plan_says(tmp_path):
    scan = store(measured(FLOW, 100, [0.0, 40.0]), tmp_path)
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    command = [sys.executable, "-W", "error", "-c", IN_TWO, str(scan.path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
