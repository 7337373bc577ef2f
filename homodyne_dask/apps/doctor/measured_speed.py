"""The rate of the kernel, measured in this process."""

import time

import numpy as np

import homodyne_dask as hd
from homodyne_dask.apps.doctor import Finding
from homodyne_dask.cluster.workers import SLOWEST_PAIRS_PER_SECOND
from homodyne_dask.kernels.problem import Block, Problem
from homodyne_dask.kernels.transport_backend import transport_gram
from homodyne_dask.kernels.transport_evaluation import transport_point
from homodyne_dask.store.processes import jax_threads
from homodyne_dask.sweep.blocks import aligned_array
from homodyne_dask.text import counted

BINS, SIDE = 8, 512
THETA = np.array([30000.0, -0.5, 500.0, 5e-4, -0.5, 5e-5, -3.0])
MEASUREMENT_SECONDS = 1.0
"""For which the kernel is measured."""


def kernel_rate() -> float:
    """Return the pairs per second of the Gram of `laminar_flow`, with all derivatives, in this process."""
    c2 = aligned_array(BINS, SIDE)
    c2[...] = 1.1 + 0.3 * np.random.default_rng(0).random(c2.shape)
    weight = np.full((BINS, SIDE), 100.0)
    # 1/Å, degree, Å; a block off the diagonal
    q, phi, gap = np.full(BINS, 0.0054), np.linspace(-86.0, 86.0, BINS), 2e6
    block = Block(c2, weight, weight, q, phi, 0, SIDE)
    at = transport_point(Problem(hd.LAMINAR_FLOW, gap=gap), THETA, 0.1 * np.arange(2 * SIDE))
    gram, sums = transport_gram(at, block)
    seconds, start = [], time.perf_counter()
    while not seconds or time.perf_counter() - start < MEASUREMENT_SECONDS:
        began = time.perf_counter()
        transport_gram(at, block, sums)
        seconds.append(time.perf_counter() - began)
    return float(gram.pairs.sum() / np.median(seconds))


def kernel_finding() -> Finding:
    """Return the rate of the kernel."""
    rate = kernel_rate()
    slow = "other programs are using the cores, or XLA_FLAGS or JAX_* variables slow the kernel"
    value = f"{rate / 1e6:.0f} M pairs/s on {counted(jax_threads(), 'thread')}"
    return Finding("kernel", value, "" if rate >= SLOWEST_PAIRS_PER_SECOND else slow)
