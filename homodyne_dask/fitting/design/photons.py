"""Counted photons of Gaussian speckle, and the two-time correlation that a detector computes of them."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int

from homodyne_dask.kernels.backend import evaluation_of
from homodyne_dask.kernels.problem import Problem
from homodyne_dask.solver.speckle import nearest_correlation

AT_ONCE = 4_000_000
"""Normal numbers drawn at a time."""


class PhotonScan(NamedTuple):
    """What photons are drawn of: a model with its parameters, frames, bins and the detector."""

    problem: Problem
    theta: Float[np.ndarray, " p"]
    time: Float[np.ndarray, " t"]
    """s."""
    q: Float[np.ndarray, " bin"]
    """1/Å; 1 where it is unknown."""
    phi: Float[np.ndarray, " bin"]
    """degree."""
    contrast: Float[np.ndarray, " bin"]
    offset: Float[np.ndarray, " bin"]
    counts: Float[np.ndarray, " bin"]
    """Of a pixel in a frame, mean."""
    pixels: Int[np.ndarray, " bin"]
    clusters: Int[np.ndarray, " bin"]
    """Bins of one number see one speckle pattern, each with counts of its own."""

    def c2(self, seed: int) -> Float32[np.ndarray, "bin t t"]:
        """Return c2 of every bin; the same seed gives the same photons."""
        n = len(self.time)
        found = np.empty((len(self.q), n, n), np.float32)
        for b, cluster in enumerate(self.clusters):
            of_pattern = np.random.default_rng([seed, int(cluster)])
            found[b] = self._c2_of_bin(
                b, of_pattern, np.random.default_rng([seed, int(cluster), b])
            )
        return found

    def _c2_of_bin(
        self, b: int, of_pattern: np.random.Generator, of_counts: np.random.Generator
    ) -> Float32[np.ndarray, "t t"]:
        contrast, n = float(self.contrast[b]), len(self.time)
        modes = max(1, int(1 / contrast + 1e-9))
        root, spread = self._root(b), np.sqrt(contrast * modes)
        total, mean = np.zeros((n, n)), np.zeros(n)
        pixels, step = int(self.pixels[b]), max(1, AT_ONCE // (2 * modes * n))
        for first in range(0, pixels, step):
            some = min(step, pixels - first)
            field = of_pattern.standard_normal((some, 2 * modes, n), np.float32) @ root
            intensity = 1 + spread * ((field**2).mean(axis=1) - 1)
            counts = of_counts.poisson(self.counts[b] * np.maximum(intensity, 0)).astype(np.float32)
            total += counts.T @ counts
            mean += counts.sum(axis=0)
        c2 = total * pixels / np.outer(mean, mean)
        np.fill_diagonal(c2, np.nan)  # a frame with itself has the noise of counting once more
        return (c2 + self.offset[b] - 1).astype(np.float32)

    def _root(self, b: int) -> Float32[np.ndarray, "r t"]:
        """Return L with LᵀL the correlation of the field of a bin."""
        evaluation, t = evaluation_of(self.problem.model), self.time
        at = evaluation.point(self.problem, self.theta, t)
        bin = self.q[b : b + 1], self.phi[b : b + 1]
        times = t[:, None], t[None, :]
        if evaluation.g_at is None:
            f = np.clip(evaluation.f_at(at, t, *bin, *times)[0], 0, 1)
            g, _ = nearest_correlation(np.sqrt(_symmetric(f)))
        else:
            g = _symmetric(evaluation.g_at(at, t, *bin, *times)[0])
        values, vectors = np.linalg.eigh(g)
        some = values > 1e-7 * values[-1]
        return (np.sqrt(values[some])[:, None] * vectors[:, some].T).astype(np.float32)


def _symmetric(of_pairs: Float[np.ndarray, "t t"]) -> Float[np.ndarray, "t t"]:
    """Return the upper half on both sides: models are of pairs with t1 before t2."""
    upper = np.triu(of_pairs, 1)
    found = upper + upper.T
    np.fill_diagonal(found, 1.0)
    return found
