"""Pairs per second of the kernel that `fit` calls.

One thread (NPROC=1 in the environment), 23 bins, float32 data with 1 % NaN, min_lag 2, the blocks
of N = 2950 with those on the diagonal. The median of 15 runs counts.
"""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

import homodyne_dask as hd
from homodyne_dask.kernels.backend import backend_of
from homodyne_dask.kernels.backend_interface import Block, Problem
from homodyne_dask.kernels.transport_backend import TRANSPORT
from homodyne_dask.models import LAMINAR_FLOW
from homodyne_dask.sweep.blocks import aligned_array
from tests.kernels.user_functions import flow_decay, integrals

N, T, BINS, RUNS = 2950, 512, 23, 15
GAP, Q, MIN_LAG = 2e6, 0.0054, 2
THETA = np.array([30000.0, -0.5, 500.0, 5e-4, -0.5, 5e-5, -3.0])
TIME = 0.1 * np.arange(N)
PHI = np.linspace(-86.0, 86.0, BINS)
COLUMNS = 40
"""Of a wide pass, besides that of the optimum."""


def blocks() -> list[Block]:
    """All blocks of the scan; inner blocks share one buffer of data, those at its end another."""
    rng = np.random.default_rng(0)
    inside, right, corner = (aligned_array(BINS, T) for _ in range(3))
    inside[...] = 1.1 + 0.3 * rng.random(inside.shape)
    inside[rng.random(inside.shape) < 0.01] = np.nan
    right[...] = inside
    right[:, :, N % T :] = np.nan
    corner[...] = right
    corner[:, N % T :] = np.nan
    weight = (0.1 * (1 + 0.1 * rng.random((BINS, T)))) ** -2
    side, last = range(-(-N // T)), N // T
    return [
        Block(
            corner if i == last else right if j == last else inside,
            *(weight, weight, np.full(BINS, Q), PHI, i * T, j * T),
        )
        for i in side
        for j in side
        if i <= j
    ]


def seconds_of(gram: Callable, point: Any, scan: list[Block], sums: Sequence) -> float:
    began = time.perf_counter()
    for block, known_sums in zip(scan, sums, strict=True):
        gram(point, block, known_sums)
    return time.perf_counter() - began


def pairs_in(sums: Sequence) -> float:
    return float(sum(s[:, 3].sum() for s in sums))


def run(precision: str = "float64") -> dict[str, float]:
    problem = Problem(LAMINAR_FLOW, gap=GAP, min_lag=MIN_LAG, precision=precision)
    scan, point = blocks(), TRANSPORT.point(problem, THETA, TIME)
    sums = [TRANSPORT.gram(point, block)[1] for block in scan]
    seconds = [seconds_of(TRANSPORT.gram, point, scan, sums) for _ in range(RUNS)]
    mega = pairs_in(sums) / 1e6
    return {"M pairs/s": mega / median(seconds), "best of 15": mega / min(seconds)}


def separable() -> dict[str, float]:
    """Pairs per second of laminar_flow as a user writes it: seven parameters, differentiated by JAX."""
    model = hd.separable(flow_decay, LAMINAR_FLOW.parameters, precompute=integrals).current()
    backend, scan = backend_of(model), blocks()
    point = backend.point(Problem(model, min_lag=MIN_LAG), THETA, TIME)
    pairs = float(sum(backend.gram(point, block)[0].pairs.sum() for block in scan))
    unknown = [None] * len(scan)
    seconds = [seconds_of(backend.gram, point, scan, unknown) for _ in range(4)]
    return {"M pairs/s": pairs / median(seconds) / 1e6}


def wide_beside_a_fits() -> dict[str, float]:
    """Seconds of the wide kernel over those of the Gram's, taking turns, on some blocks."""
    problem = Problem(LAMINAR_FLOW, gap=GAP, min_lag=MIN_LAG)
    scan = blocks()[:4]
    points = [TRANSPORT.point(problem, THETA * (1 + 1e-3 * n), TIME) for n in range(COLUMNS + 1)]
    sums = [TRANSPORT.gram(points[0], block)[1] for block in scan]
    TRANSPORT.wide_gram(points, scan[0], sums[0])
    wide, gram = [], []
    for _ in range(RUNS // 3):
        wide.append(seconds_of(TRANSPORT.wide_gram, points, scan, sums))
        gram.append(seconds_of(TRANSPORT.gram, points[0], scan, sums))
    mega = pairs_in(sums) / 1e6
    return {
        "M pairs/s": mega / median(wide),
        "of the Gram": mega / median(gram),
        "passes of a fit": median(wide) / median(gram),
    }
