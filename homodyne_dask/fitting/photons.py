"""Counted photons of Gaussian speckle, and the two-time correlation that a detector computes of them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Int

from homodyne_dask.errors import OptionError, shown
from homodyne_dask.kernels.backend import evaluation_of
from homodyne_dask.kernels.backend_interface import ModelPoint
from homodyne_dask.kernels.problem import Problem
from homodyne_dask.solver.speckle import nearest_correlation

if TYPE_CHECKING:
    from homodyne_dask.results.result_classes import FitResult

AT_ONCE = 4_000_000
"""Normal numbers drawn at a time."""
MOST_PHOTONS = 1e12
"""Most counts per pixel and frame, and most pixels per bin."""
RIDGE = 1e-6
"""Power of the field without memory, by which its root is well conditioned: all machines count alike."""


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
        at = evaluation_of(self.problem.model).point(self.problem, self.theta, self.time)
        for b, cluster in enumerate(self.clusters.tolist()):
            draws = (np.random.default_rng(of) for of in ([seed, cluster], [seed, cluster, b]))
            root = field_root(at, self.time, self.q[b : b + 1], self.phi[b : b + 1])
            size = float(self.contrast[b]), self.counts[b], int(self.pixels[b])
            c2 = counted_c2(root, *size, *draws)
            np.fill_diagonal(c2, np.nan)  # a frame with itself has the noise of counting once more
            found[b] = c2 + self.offset[b] - 1
        return found


def detector_of(
    result: "FitResult", bins: Bool[np.ndarray, " bin"], given: Mapping[str, Any]
) -> dict[str, Float[np.ndarray, " some"]]:
    """Return counts and pixels of some bins of a fit: as given, else as its residuals determine them."""
    noise, found = result.errors.noise, {}
    for name, column in (("counts", "mean_counts"), ("pixels", "pixels")):
        if given.get(name) is not None and not 0 < given[name] <= MOST_PHOTONS:
            raise OptionError(
                f"{name} = {shown(given[name])} cannot be used: give a positive number of at most "
                f"{MOST_PHOTONS:g}"
            )
        values = np.full(len(bins), np.nan) if noise is None else noise[column].values
        values = values if given.get(name) is None else np.full(len(bins), given[name], float)
        if not (np.isfinite(values[bins]) & (values[bins] > 0)).all():
            raise OptionError(
                f"the residuals of this fit do not determine {name}: give counts (per pixel and frame) and "
                f"pixels (per bin)"
            )
        found[name] = values[bins]
    return found


def counted_c2(
    root: Float[np.ndarray, "t t"],
    contrast: float,
    counts: float | Float[np.ndarray, " t"],
    pixels: int,
    of_pattern: np.random.Generator,
    of_counts: np.random.Generator,
) -> Float[np.ndarray, "t t"]:
    """Return c2 as beamlines compute it, of offset 1, from photons counted in independent pixels.

    root: of the correlation of the field (`field_root`). counts: mean of a pixel, of all frames or of each.
    """
    n = len(root)
    modes = max(1, int(1 / contrast + 1e-9))
    spread, total, mean = np.sqrt(contrast * modes), np.zeros((n, n)), np.zeros(n)
    step = max(1, AT_ONCE // (2 * modes * n))
    for first in range(0, pixels, step):
        some = min(step, pixels - first)
        field = of_pattern.standard_normal((some * 2 * modes, n), np.float32) @ root
        intensity = 1 + spread * ((field**2).reshape(some, -1, n).mean(axis=1) - 1)
        photons = of_counts.poisson(counts * np.maximum(intensity, 0)).astype(np.float32)
        total += photons.T @ photons
        mean += photons.sum(axis=0)
    return total * pixels / np.outer(mean, mean)


def field_root(
    at: ModelPoint,
    time: Float[np.ndarray, " t"],
    q: Float[np.ndarray, " one"],
    phi: Float[np.ndarray, " one"],
) -> Float[np.ndarray, "t t"]:
    """Return the upper triangular R with RᵀR the correlation of the field of a bin."""
    evaluation = evaluation_of(at.problem.model)
    pairs = at, time, q, phi, time[:, None], time[None, :]
    g = _symmetric(np.sqrt(np.clip(evaluation.f_at(*pairs)[0], 0, 1)))
    if evaluation.sign_at is None:
        g, _ = nearest_correlation(g)
    else:
        g *= _symmetric(evaluation.sign_at(*pairs)[0])
    return np.linalg.cholesky(g + RIDGE * np.eye(len(g))).T


def _symmetric(of_pairs: Float[np.ndarray, "t t"]) -> Float[np.ndarray, "t t"]:
    """Return the upper half on both sides: models are of pairs with t1 before t2."""
    upper = np.triu(of_pairs, 1)
    found = upper + upper.T
    np.fill_diagonal(found, 1.0)
    return found
