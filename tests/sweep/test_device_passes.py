"""Passes whose data are on a device: one call for the tiles of a task, and the Grams of processors.

The device is JAX's CPU, and tiles are small: a scan has many.
"""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

import homodyne_dask as hd
from homodyne_dask.cluster.workers import this_process
from homodyne_dask.fitting.prepare import prepare
from homodyne_dask.kernels.compiled import Kernel
from homodyne_dask.kernels.gpus import Gpus
from homodyne_dask.store import schema
from homodyne_dask.sweep import blocks as block_cache
from homodyne_dask.sweep import layout as cut
from homodyne_dask.sweep.plan import ON_CPU, Device, make_plan
from homodyne_dask.sweep.sweep import sweep_of
from tests.kernels.gram_errors import STATIC, worst_error
from tests.kernels.user_functions import INTEGRATED, STRETCHED
from tests.synthetic import FAST_DECAY, FLOW, angles, measured, store, without_some

THERE = Device("gpu", "a trial", Gpus(1, "cpu", 10**10), "cpu:0")
FLOWING = {"model": hd.LAMINAR_FLOW, "gap": "200 um"}
OF_USER = np.array([3e3, 0.8])
OF_SPLINES = np.concatenate([np.linspace(1e3, 2e3, 6), np.linspace(-1e-3, 1e-3, 6), [4.0]])


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(schema, "MAX_SIDE", 64)
    block_cache.forget()


def sweep_on(device, scan, model, memory="auto", length=8, factor=1, **options):
    request = prepare(scan, model, **options)
    layout = cut.layout(request.scan, request.problem.min_lag, factor)
    of = "m", request.problem.model.size, len(scan.bins)
    plan = make_plan(layout, this_process(), *of, memory, (), device)
    sweep = sweep_of(plan, request.scan.selection, request.problem, None, layout)
    runs = [
        cut.Run(number, members, layout.tiles[n : n + length], length)
        for number, members in enumerate(layout.groups)
        for n in range(0, len(layout.tiles), length)
    ]
    return replace(sweep, tasks=runs)


def flowing(folder, n=260, phi=(-90.0, -30.0, 30.0), theta=FLOW):
    return store(without_some(measured(theta, n, phi, dt=0.2)), folder)


def of_three_q(folder):
    q: Any = np.array([0.0054, 0.0054, 0.006, 0.007, 0.007])
    return store(without_some(measured(STATIC, 150, np.arange(5) * 20.0, q=q)), folder)


def small_of_three_q(folder):
    q: Any = np.array([0.0054, 0.006, 0.007])
    return store(without_some(measured(FLOW, 60, np.arange(3) * 20.0, q=q)), folder)


CASES = [
    ("one block of several q", small_of_three_q, FLOW, FLOWING),
    ("one block of several q, float32", small_of_three_q, FLOW, FLOWING | {"precision": "mixed"}),
    ("one block of several q, a loss", small_of_three_q, FLOW, FLOWING | {"loss": "huber"}),
    ("groups of several sizes, no shear", of_three_q, STATIC, {"model": hd.STATIC}),
    ("flow", flowing, FLOW, FLOWING),
    ("one tile of 60 frames and one bin", lambda to: flowing(to, 60, [0.0]), FLOW, FLOWING),
    ("pairs far apart alone", flowing, FLOW, FLOWING | {"min_lag": 70}),
    ("means over four frames", flowing, FLOW, FLOWING | {"factor": 4}),
    ("float32", flowing, FLOW, FLOWING | {"precision": "mixed"}),
    ("a loss", flowing, FLOW, FLOWING | {"loss": "huber"}),
    ("streamed", flowing, FLOW, FLOWING | {"memory": "stream"}),
    ("f decays", lambda to: flowing(to, theta=FAST_DECAY), FAST_DECAY, FLOWING),
    ("tied", flowing, FLOW[[0, 1, 2, 4, 5, 6]], FLOWING | {"tie": {"gamma_dot_t0": "1e-7 * D0"}}),
    ("splines", flowing, OF_SPLINES, FLOWING | {"rates": "spline", "knots": 6, "min_lag": 3}),
    ("230 bins", lambda to: flowing(to, 100, angles(230)), FLOW, FLOWING),
    ("functions of a user", of_three_q, OF_USER, {"model": STRETCHED}),
    ("them with integrals", of_three_q, OF_USER * [1, -0.25], {"model": INTEGRATED}),
    ("them under a loss", of_three_q, OF_USER, {"model": STRETCHED, "loss": "cauchy"}),
]


@pytest.mark.long(whole=True)
@pytest.mark.parametrize(
    ("make", "theta", "options"), [row for _, *row in CASES], ids=[word for word, *_ in CASES]
)
def test_passes_on_a_device_give_what_processors_do(make, theta, options, tmp_path):
    scan = make(tmp_path)
    here, there = (sweep_on(device, scan, **options) for device in (ON_CPU, THERE))
    linear = np.tile([0.1, 0.2], (len(scan.bins), 1)) if "loss" in options else None
    tolerance = 2e-5 if "precision" in options else 1e-12  # the CPU sums parts of a tile, too
    thetas = theta * (1 + 0.02 * np.arange(3))[:, None]
    grams = [
        [sweep.gram(theta, linear), *sweep.candidates(thetas), sweep.wide(thetas)]
        for sweep in (here, there)
    ]
    for wanted, found in zip(*grams, strict=True):
        np.testing.assert_array_equal(found.pairs, wanted.pairs)
        assert worst_error(found.moments, wanted.moments).max() <= tolerance
    again = there.gram(theta, linear)
    assert again.moments.tobytes() == grams[1][0].moments.tobytes()


@pytest.mark.long
def test_a_task_is_one_call_and_one_copy_and_how_tiles_are_grouped_changes_no_bit(
    tmp_path, monkeypatch
):
    scan, calls, compute = flowing(tmp_path), [], Kernel.__call__

    def counted(kernel, *args, **static):
        calls.append(sum(not isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(args)))
        return compute(kernel, *args, **static)

    monkeypatch.setattr(Kernel, "__call__", counted)
    options: Any = {"scan": scan} | FLOWING
    whole, parts = (sweep_on(THERE, **options, length=length) for length in (8, 2))
    streamed = sweep_on(THERE, **options, memory="stream")
    assert [len(run.tiles) for run in whole.tasks] == [8, 7]
    bits = {}
    for word, sweep in (("whole", whole), ("parts", parts), ("streamed", streamed)):
        calls.clear()
        bits[word] = sweep.gram(FLOW).moments.tobytes()
        tiles = sum(len(run.tiles) for run in sweep.tasks)
        assert calls == [1] * (tiles if word == "streamed" else len(sweep.tasks))
    assert bits["whole"] == bits["parts"] == bits["streamed"]
    monkeypatch.setattr(cut, "TILES_AT_ONCE", 3)
    calls.clear()
    assert whole.gram(FLOW).moments.shape == (3, 10, 10)
    assert calls == [1] * 6


@pytest.mark.long
def test_a_block_in_which_f_has_decayed_is_neither_read_nor_computed(tmp_path):
    """Ingest has stored the sums of all pairs of a block: here some of seven blocks do not count."""
    sweep = sweep_on(THERE, flowing(tmp_path, theta=FAST_DECAY), min_lag=70, **FLOWING)
    first = sweep.gram(FAST_DECAY)
    assert (sweep.cost.read, sweep.cost.computed) == (7, 4)
    again = sweep.gram(FAST_DECAY)
    assert sweep.cost.read == 4
    assert again.moments.tobytes() == first.moments.tobytes()


@pytest.mark.long
def test_at_most_four_numbers_of_bins_are_compiled_for(tmp_path):
    q: Any = 0.005 + 0.001 * (np.arange(21) // 9)
    scan = store(measured(FLOW, 66, angles(21), q=q), tmp_path)
    sweep = sweep_on(THERE, scan, **FLOWING)
    assert [len(group) for group in sweep.layout.groups] == [9, 9, 3]
    sweep.gram(FLOW)
    assert [len(kept.c2) for kept in block_cache.BLOCKS.values()] == [9, 9, 9, 9, 9, 9, 3, 3, 3]
