"""Pairs per second of the kernel that `fit` calls.

One thread (NPROC=1 in the environment), 23 bins, float32 data with 1 % NaN, min_lag 2, the blocks
of N = 2950 with those on the diagonal. The median of 15 runs counts.
"""

import statistics
import time

import numpy as np

import homodyne_dask as hd
from homodyne_dask.kernels.backend import backend_of
from homodyne_dask.kernels.problem import Block, Problem
from homodyne_dask.kernels.transport_backend import gram as transport_gram
from homodyne_dask.kernels.transport_backend import wide_gram as transport_wide_gram
from homodyne_dask.kernels.transport_evaluation import point as transport_point
from homodyne_dask.models import LAMINAR_FLOW
from homodyne_dask.sweep.blocks import ALIGNMENT
from tests.kernels.user_functions import flow_decay, integrals

N, T, BINS, RUNS = 2950, 512, 23, 15
GAP, Q, MIN_LAG = 2e6, 0.0054, 2
THETA = np.array([30000.0, -0.5, 500.0, 5e-4, -0.5, 5e-5, -3.0])
TIME = 0.1 * np.arange(N)
PHI = np.linspace(-86.0, 86.0, BINS)
COLUMNS = 40
"""Of a wide pass, besides that of the optimum."""


def aligned(shape) -> np.ndarray:
    raw = np.empty(4 * int(np.prod(shape)) + ALIGNMENT, np.uint8)
    first = -raw.ctypes.data % ALIGNMENT
    return raw[first : first + 4 * int(np.prod(shape))].view(np.float32).reshape(shape)


def blocks() -> list[Block]:
    """All blocks of the scan; inner blocks share one buffer of data, those at its end another."""
    rng = np.random.default_rng(0)
    inside = aligned((BINS, T, T))
    inside[...] = 1.1 + 0.3 * rng.random(inside.shape)
    inside[rng.random(inside.shape) < 0.01] = np.nan
    right, corner = aligned(inside.shape), aligned(inside.shape)
    right[...] = inside
    right[:, :, N % T :] = np.nan
    corner[...] = right
    corner[:, N % T :] = np.nan
    sigma = 0.1 * (1 + 0.1 * rng.random((BINS, T)))
    weight = 1 / sigma**2
    side, last = range(-(-N // T)), N // T

    def data(i: int, j: int) -> np.ndarray:
        return corner if i == last else right if j == last else inside

    return [
        Block(data(i, j), weight, weight, np.full(BINS, Q), PHI, i * T, j * T)
        for i in side
        for j in side
        if i <= j
    ]


def run(precision: str = "float64") -> dict[str, float]:
    problem = Problem(LAMINAR_FLOW, gap=GAP, min_lag=MIN_LAG, precision=precision)
    scan, at = blocks(), transport_point(problem, THETA, TIME)
    sums = [transport_gram(at, block)[1] for block in scan]
    rates = []
    for _ in range(RUNS):
        began = time.perf_counter()
        pairs = sum(
            transport_gram(at, block, known)[0].pairs.sum()
            for block, known in zip(scan, sums, strict=True)
        )
        rates.append(pairs / (time.perf_counter() - began))
    return {"M pairs/s": statistics.median(rates) / 1e6, "best of 15": max(rates) / 1e6}


def separable() -> dict[str, float]:
    """Pairs per second of laminar_flow as a user writes it: seven parameters, differentiated by JAX."""
    model = hd.separable(flow_decay, LAMINAR_FLOW.parameters, precompute=integrals)
    backend, scan = backend_of(model), blocks()
    at = backend.point(Problem(model, min_lag=MIN_LAG), THETA, TIME)
    rates = []
    for _ in range(RUNS // 3):
        began = time.perf_counter()
        pairs = sum(backend.gram(at, block)[0].pairs.sum() for block in scan)
        rates.append(pairs / (time.perf_counter() - began))
    return {"M pairs/s": statistics.median(rates[1:]) / 1e6}


def wide_beside_a_fits() -> dict[str, float]:
    """Seconds of the wide kernel over those of the Gram's, taking turns, on some blocks."""
    problem = Problem(LAMINAR_FLOW, gap=GAP, min_lag=MIN_LAG)
    scan = blocks()[:4]
    points = [transport_point(problem, THETA * (1 + 1e-3 * n), TIME) for n in range(COLUMNS + 1)]
    sums = [transport_gram(points[0], block)[1] for block in scan]
    transport_wide_gram(points, scan[0], sums[0])
    pairs = float(sum(s[:, 3].sum() for s in sums))
    wide, one = [], []
    for _ in range(RUNS // 3):
        began = time.perf_counter()
        for block, known in zip(scan, sums, strict=True):
            transport_wide_gram(points, block, known)
        wide.append(time.perf_counter() - began)
        began = time.perf_counter()
        for block, known in zip(scan, sums, strict=True):
            transport_gram(points[0], block, known)
        one.append(time.perf_counter() - began)
    rate, gram = pairs / statistics.median(wide), pairs / statistics.median(one)
    return {
        "M pairs/s": rate / 1e6,
        "of the Gram": gram / 1e6,
        "passes of a fit": gram / rate,
    }
