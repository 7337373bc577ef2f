"""Pairs per second of the kernel that `fit` calls, compared with a naive one: jacfwd and JᵀJ.

One thread (NPROC=1 in the environment), 23 bins, float32 data with 1 % NaN, min_lag 2, the blocks
of N = 2950 with those on the diagonal. Both kernels take turns; the median of 15 runs counts.
"""

import statistics
import subprocess
import sys
import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

import homodyne_dask as hd
from homodyne_dask.kernels.backend import backend_of
from homodyne_dask.kernels.backend_interface import MAX_CANDIDATES
from homodyne_dask.kernels.losses import LOSSES
from homodyne_dask.kernels.problem import Block, Problem
from homodyne_dask.kernels.transport_backend import (
    transport_candidate_grams,
    transport_gram,
    transport_robust_gram,
)
from homodyne_dask.kernels.transport_evaluation import transport_point
from homodyne_dask.models import LAMINAR_FLOW
from homodyne_dask.sweep.blocks import ALIGNMENT
from tests import reference
from tests.kernels.user_functions import flow_decay, integrals

N, T, BINS, RUNS = 2950, 512, 23, 15
GAP, Q, MIN_LAG = 2e6, 0.0054, 2
THETA = np.array([30000.0, -0.5, 500.0, 5e-4, -0.5, 5e-5, -3.0])
TIME = 0.1 * np.arange(N)
PHI = np.linspace(-86.0, 86.0, BINS)


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


def check(problem: Problem, tolerance: float) -> None:
    """Assert that the Gram of the kernel is that of the reference, on one bin of small blocks."""
    n, side = 300, 192
    rng = np.random.default_rng(1)
    time_ = 0.1 * np.arange(n)
    c2 = (1.1 + 0.3 * rng.random((n, n))).astype(np.float32)
    c2[rng.random(c2.shape) < 0.01] = np.nan
    sigma = 0.1 * (1 + 0.1 * rng.random(n))
    total = 0.0
    for i, j in ((0, 0), (0, side), (side, side)):
        part = np.full((1, 256, 256), np.nan, np.float32)
        cut = c2[i : i + side, j : j + side]
        part[0, : cut.shape[0], : cut.shape[1]] = cut
        weights = np.zeros((2, 1, 256))
        for row, first in enumerate((i, j)):
            weights[row, 0, : len(sigma[first : first + side])] = (
                1 / sigma[first : first + side] ** 2
            )
        block = Block(part, weights[0], weights[1], np.full(1, Q), PHI[7:8], i, j)
        total = total + transport_gram(transport_point(problem, THETA, time_), block)[0].moments[0]
    truth, _ = reference.gram(
        THETA, c2.astype(float), time_, Q, PHI[7], GAP, sigma, MIN_LAG, "physical"
    )
    size = np.sqrt(np.diag(truth))
    worst = np.abs((total - truth) / np.outer(size, size)).max()
    assert worst < tolerance, f"the kernel differs from the reference by {worst:g}"


@jax.jit
def naive(theta, c2, time1, time2, q, phi, weight):
    """JᵀJ of the block of one bin with contrast and offset, with the full Jacobian by jacfwd."""

    def model(p):
        J1, J2 = (_cumulative(p[0:3], t) for t in (time1, time2))
        G1, G2 = (_cumulative(p[3:6], t) for t in (time1, time2))
        x = 0.5 * q * GAP * jnp.cos(jnp.deg2rad(p[6] - phi)) * (G2[None, :] - G1[:, None])
        f = jnp.exp(-(q**2) * (J2[None, :] - J1[:, None])) * jnp.sinc(x / jnp.pi) ** 2
        return p[8] + p[7] * f

    J = jax.jacfwd(model)(theta)
    J = J.reshape(-1, theta.size) * weight.reshape(-1, 1)
    r = (c2 - model(theta)).reshape(-1) * weight.reshape(-1)
    return J.T @ J, J.T @ r


def _cumulative(p, t):
    rate = p[0] * t ** p[1] + p[2]
    steps = 0.5 * (rate[1:] + rate[:-1]) * jnp.diff(t)
    return jnp.concatenate([jnp.zeros(1), jnp.cumsum(steps)])


def run(precision: str = "float64") -> dict[str, float]:
    problem = Problem(LAMINAR_FLOW, gap=GAP, min_lag=MIN_LAG, precision=precision)
    check(problem, 1e-10 if precision == "float64" else 1e-5)
    scan, at = blocks(), transport_point(problem, THETA, TIME)
    sums = [transport_gram(at, b)[1] for b in scan]
    ours, first, peer = [], [], []
    with jax.enable_x64(True):
        theta = jnp.append(jnp.asarray(THETA), jnp.array([0.3, 1.0]))
        c2 = jnp.nan_to_num(jnp.asarray(scan[1].c2[0], jnp.float64), nan=1.0)
        given = theta, c2, jnp.asarray(TIME[:T] + 0.05), jnp.asarray(TIME[T : 2 * T]), Q, PHI[0]
        weight = jnp.ones((T, T))
        jax.block_until_ready(naive(*given, weight))
        for _ in range(RUNS):
            began = time.perf_counter()
            pairs = sum(
                transport_gram(at, b, s)[0].pairs.sum() for b, s in zip(scan, sums, strict=True)
            )
            ours.append(pairs / (time.perf_counter() - began))
            began = time.perf_counter()
            jax.block_until_ready(naive(*given, weight))
            peer.append(T * T / (time.perf_counter() - began))
    for _ in range(3):
        began = time.perf_counter()
        pairs = sum(transport_gram(at, b)[0].pairs.sum() for b in scan)
        first.append(pairs / (time.perf_counter() - began))
    rate, other = statistics.median(ours), statistics.median(peer)
    return {
        "M pairs/s": rate / 1e6,
        "best of 15": max(ours) / 1e6,
        "first pass (sums of the data too)": statistics.median(first) / 1e6,
        "naive jacfwd": other / 1e6,
        "ratio": rate / other,
    }


def beside_another() -> dict[str, float]:
    """Pairs per second while another process does the same: what two cores of this machine can do."""
    alone = run()["M pairs/s"]
    code = "from tests.benchmarks import kernel; print(flush=True)\nwhile True: kernel.run()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        time.sleep(3)  # it compiles
        both = run()["M pairs/s"]
        other.kill()
    return {"M pairs/s": both, "of one alone": both / alone}


def robust(precision: str = "float64") -> dict[str, float]:
    """Pairs per second of the kernel of each loss, taking turns with that of least squares."""
    plain = Problem(LAMINAR_FLOW, gap=GAP, min_lag=MIN_LAG, precision=precision)
    scan, at = blocks(), transport_point(plain, THETA, TIME)
    linear_params = np.tile([0.1, 0.25], (BINS, 1))
    sums = [transport_gram(at, block)[1] for block in scan]
    pairs = float(sum(s[:, 3].sum() for s in sums))
    points = {
        loss: transport_point(replace(plain, loss=loss, loss_scale=1.5), THETA, TIME)
        for loss in LOSSES
    }
    seconds = {loss: [] for loss in ("linear", *LOSSES)}
    for _ in range(1 + RUNS // 3):  # the first compiles
        began = time.perf_counter()
        for block, known in zip(scan, sums, strict=True):
            transport_gram(at, block, known)
        seconds["linear"].append(time.perf_counter() - began)
        for loss, there in points.items():
            began = time.perf_counter()
            for block in scan:
                transport_robust_gram(there, block, linear_params)
            seconds[loss].append(time.perf_counter() - began)
    rates = {loss: pairs / statistics.median(times[1:]) for loss, times in seconds.items()}
    found = {f"M pairs/s {loss}": rate / 1e6 for loss, rate in rates.items()}
    return found | {"huber / linear": rates["huber"] / rates["linear"]}


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


def candidates(precision: str = "float64") -> dict[str, float]:
    """Pairs per second and theta of the kernel of many thetas, taking turns with that of the Gram."""
    problem = Problem(LAMINAR_FLOW, gap=GAP, min_lag=MIN_LAG, precision=precision)
    scan = blocks()
    points = [transport_point(problem, THETA * (1 + 0.01 * n), TIME) for n in range(MAX_CANDIDATES)]
    sums = [transport_gram(points[0], block)[1] for block in scan]
    transport_candidate_grams(points, scan[0])
    pairs = float(sum(s[:, 3].sum() for s in sums))
    many, one = [], []
    for _ in range(RUNS // 3):
        began = time.perf_counter()
        for block in scan:
            transport_candidate_grams(points, block)
        many.append(MAX_CANDIDATES * pairs / (time.perf_counter() - began))
        began = time.perf_counter()
        for block, known in zip(scan, sums, strict=True):
            transport_gram(points[0], block, known)
        one.append(pairs / (time.perf_counter() - began))
    rate, gram = statistics.median(many), statistics.median(one)
    return {"M pairs/s per theta": rate / 1e6, "of the Gram": gram / 1e6, "ratio": rate / gram}
