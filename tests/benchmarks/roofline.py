"""What share of a core's peak the kernel reaches: its operations per pair against measured peaks.

One thread (NPROC=1, OPENBLAS_NUM_THREADS=1 in the environment). Operations are counted in what JAX
traces of `gram_kernel`: those of the innermost loop once per pair and bin, those of the loop around
it shared by the bins. A multiplication, an addition, a division and an exp count as one each. Peaks
are measured on the same core: the product of two matrices in float64 (the most that NumPy's BLAS
reaches), and a sum of two arrays that fit the second-level cache, as a sub-block's fields do.
"""

import statistics
import time
from collections import Counter
from math import prod

import jax
import numpy as np

from homodyne_dask.kernels.decayed_subblocks import SUBBLOCK_COLUMNS, SUBBLOCK_ROWS
from homodyne_dask.kernels.devices import float64_on_cpu
from homodyne_dask.kernels.problem import Problem
from homodyne_dask.kernels.transport_backend import arguments_at, family_with_derivatives
from homodyne_dask.kernels.transport_evaluation import transport_point
from homodyne_dask.kernels.transport_kernels import gram_kernel
from homodyne_dask.models import LAMINAR_FLOW
from tests.benchmarks import kernel

ARITHMETIC = {"add", "sub", "mul", "div", "neg", "exp", "add_any", "integer_pow", "reduce_sum"}
SELECTION = {"select_n", "is_finite", "lt", "gt", "ge", "le", "and", "max", "abs"}
PAIRS = SUBBLOCK_ROWS * SUBBLOCK_COLUMNS


def row() -> dict[str, float]:
    """Return operations per pair, peaks and the shares of them that the kernel reaches."""
    counted = operations_per_pair()
    rate = kernel.run()["M pairs/s"]
    flops, peak, bandwidth = sum(counted[k] for k in ("products", "fields")), dgemm(), triad()
    return {
        "M pairs/s": rate,
        "operations per pair, of products with tables": counted["products"],
        "operations per pair, of fields": counted["fields"],
        "selections per pair": counted["selections"],
        "bytes of fields per pair": counted["bytes"],
        "Gflop/s": rate * flops / 1e3,
        "Gflop/s of a product of matrices": peak,
        "share of that": rate * flops / 1e3 / peak,
        "GB/s of fields": rate * counted["bytes"] / 1e3,
        "GB/s in the second-level cache": bandwidth,
        "share of that bandwidth": rate * counted["bytes"] / 1e3 / bandwidth,
    }


def operations_per_pair() -> dict[str, float]:
    """Return operations, selections and bytes of the float64 kernel per pair and bin.

    bytes: every field of a sub-block is written once, and read by every product that it is in.
    """
    problem = Problem(LAMINAR_FLOW, gap=kernel.GAP, min_lag=kernel.MIN_LAG)
    block = kernel.blocks()[1]
    at = transport_point(problem, kernel.THETA, kernel.TIME)
    arguments = *arguments_at(at, block), np.zeros((len(block.c2), 4)), True
    static = family_with_derivatives(problem) | {"precision": problem.precision}
    with float64_on_cpu():
        traced = jax.make_jaxpr(lambda *of: gram_kernel.function(*of, **static))(*arguments)
    of_bin, shared = _innermost(traced.jaxpr)
    each, common = _counted(of_bin), _counted(shared)
    per = {name: each[name] / PAIRS + common[name] / PAIRS / kernel.BINS for name in each}
    reads = [
        operand
        for equation in _equations(of_bin)
        if equation.primitive.name == "dot_general"
        for operand in equation.invars
        if operand.aval.shape == (SUBBLOCK_ROWS, SUBBLOCK_COLUMNS)
    ]
    return per | {"bytes": 8.0 * (len(set(reads)) + len(reads))}


def _innermost(jaxpr):
    """Return the bodies of the loop over bins and of the loop over sub-blocks around it, that hold exp."""
    for outer in _loops(jaxpr):
        if any(e.primitive.name == "exp" for e in outer.eqns):
            return next(_loops(outer)), outer
    raise AssertionError("no loop of the kernel computes exp")


def _loops(jaxpr):
    for equation in jaxpr.eqns:
        if equation.primitive.name == "while":
            yield equation.params["body_jaxpr"].jaxpr
        elif "jaxpr" in equation.params:
            inner = equation.params["jaxpr"]
            yield from _loops(getattr(inner, "jaxpr", inner))


def _equations(jaxpr):
    """Yield all equations but those of inner loops; of a condition those of the branch with fewest."""
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name == "cond":
            yield from min(([*_equations(b.jaxpr)] for b in equation.params["branches"]), key=len)
        elif "jaxpr" in equation.params:
            inner = equation.params["jaxpr"]
            yield from _equations(getattr(inner, "jaxpr", inner))
        elif name != "while":
            yield equation


def _counted(jaxpr) -> Counter:
    found = Counter(products=0, fields=0, selections=0)
    for equation in _equations(jaxpr):
        name, size = equation.primitive.name, prod(equation.outvars[0].aval.shape)
        if name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            found["products"] += (
                2 * size * prod(equation.invars[0].aval.shape[k] for k in contracted)
            )
        elif name in ARITHMETIC:
            found["fields"] += size
        elif name in SELECTION:
            found["selections"] += size
    return found


def dgemm(n: int = 1024) -> float:
    """Return the Gflop/s of NumPy's product of two float64 matrices."""
    a = np.random.default_rng(0).random((n, n))
    return 2 * n**3 / _seconds(lambda: a @ a) / 1e9


def triad(kilobytes: int = 128, repeats: int = 2000) -> float:
    """Return the GB/s of a sum of two float64 arrays into a third that fit the second-level cache."""
    a, b, c = (np.ones(kilobytes * 128) for _ in range(3))

    def add() -> None:
        for _ in range(repeats):
            np.add(a, b, out=c)

    return 3 * a.nbytes * repeats / _seconds(add) / 1e9


def _seconds(work, runs: int = 7) -> float:
    work()
    taken = []
    for _ in range(runs):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)
