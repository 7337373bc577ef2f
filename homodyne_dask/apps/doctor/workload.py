"""Random blocks, passes of the kernel over them, and a check of the kernel against plain NumPy.

`python -m homodyne_dask.apps.doctor.workload` prints one line of JSON on its first pass, then, for each line
"threads passes" that it reads, one with the seconds those passes took.
"""

import base64
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np
from jaxtyping import Float

import homodyne_dask as hd
from homodyne_dask.apps.doctor.kernel_process import jax_pool_threads
from homodyne_dask.kernels.compiled import unknown_options
from homodyne_dask.kernels.gram import Gram, merge_tree
from homodyne_dask.kernels.problem import Block, Problem
from homodyne_dask.kernels.transport_backend import transport_gram
from homodyne_dask.kernels.transport_evaluation import transport_point
from homodyne_dask.sweep.blocks import aligned_array

GAP, Q = 2e6, 0.0054
"""Å, 1/Å."""
THETA = np.array([30000.0, -0.5, 500.0, 5e-4, -0.5, 5e-5, -3.0])
MIN_LAG = 2


class Workload:
    """Three blocks of a scan of 2·side frames, and passes over them as a fit makes them."""

    def __init__(self, bins: int = 23, side: int = 512) -> None:
        rng = np.random.default_rng(0)
        c2 = aligned_array(bins, side)
        c2[...] = 1.1 + 0.3 * rng.random(c2.shape)
        c2[rng.random(c2.shape) < 0.01] = np.nan
        weight = 1 / (0.1 * (1 + 0.1 * rng.random((bins, side)))) ** 2
        phi = np.linspace(-86.0, 86.0, bins)
        q = np.full(bins, Q)
        self.problem = Problem(hd.LAMINAR_FLOW, gap=GAP, min_lag=MIN_LAG)
        self.time = 0.1 * np.arange(2 * side)
        self.blocks = [
            Block(c2, weight, weight, q, phi, i, j)
            for i, j in ((0, 0), (0, side), (side, side))
        ]  # fmt: skip

    @cached_property
    def sums(self) -> list[Float[np.ndarray, "padded 4"]]:
        """The sums that depend on the data alone; a fit computes them in its first pass."""
        at = transport_point(self.problem, THETA, self.time)
        return [transport_gram(at, block)[1] for block in self.blocks]

    def gram(self, theta: Float[np.ndarray, " p"] = THETA) -> Gram:
        """Return the Gram of all blocks."""
        at = transport_point(self.problem, theta, self.time)
        leaves = [
            transport_gram(at, block, sums)[0]
            for block, sums in zip(self.blocks, self.sums, strict=True)
        ]
        return merge_tree(leaves)

    def seconds(self, threads: int, passes: int) -> float:
        """Return the seconds in which each of `threads` Python threads makes `passes` passes."""

        def work(_: int) -> None:
            for _ in range(passes):
                self.gram()

        self.gram()
        with ThreadPoolExecutor(threads) as pool:
            start = time.perf_counter()
            list(pool.map(work, range(threads)))
            return time.perf_counter() - start

    def error(self) -> float:
        """Return the largest relative difference from plain NumPy on one bin; infinite for NaN.

        Compared are the sums of 1, y - 1 and f and the number of pairs of the last block.
        """
        block, b = self.blocks[-1], len(self.blocks[-1].q) // 2
        gram = transport_gram(transport_point(self.problem, THETA, self.time), block)[0]
        X, weight = self._points(block, b)
        expected = np.einsum("an,n,bn->ab", X, weight, X)
        size = np.sqrt(np.diag(expected))
        difference = np.abs(gram.moments[b, :3, :3] - expected) / np.outer(size, size)
        if gram.pairs[b] != len(weight) or not np.isfinite(gram.moments).all():
            return np.inf
        return float(difference.max())

    def _points(
        self, block: Block, b: int
    ) -> tuple[Float[np.ndarray, "3 n"], Float[np.ndarray, " n"]]:
        """Return 1, y - 1 and f of the valid pairs of bin b, and their weights."""
        side = block.c2.shape[-1]
        i, j = block.i0 + np.arange(side), block.j0 + np.arange(side)
        of_bin = {"q": Q, "phi": block.phi[b], "gap": GAP}
        f = hd.predict(hd.LAMINAR_FLOW, THETA, self.time, **of_bin)[0][np.ix_(i, j)]
        y = block.c2[b].astype(float)
        valid = np.isfinite(y) & (j - i[:, None] >= MIN_LAG)
        weight = block.weight_rows[b][:, None] * block.weight_columns[b]
        return np.stack([np.ones(valid.sum()), y[valid] - 1, f[valid]]), weight[valid]


def _serve() -> None:
    work = Workload()
    start = time.perf_counter()
    gram = work.gram()
    answer = {
        "first": time.perf_counter() - start,
        "pairs": int(gram.pairs.sum()),
        "moments": base64.b64encode(np.ascontiguousarray(gram.moments)).decode(),
        "error": work.error(),
        "pool": jax_pool_threads(),
        "unknown_options": unknown_options(),
    }
    print(json.dumps(answer), flush=True)
    for line in sys.stdin:
        threads, passes = map(int, line.split())
        print(json.dumps({"seconds": work.seconds(threads, passes)}), flush=True)


if __name__ == "__main__":
    _serve()
