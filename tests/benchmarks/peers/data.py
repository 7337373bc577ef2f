"""The data that all programs fit, at any size, and the settings common to all.

Laminar flow in the `homodyne` convention, white noise; contrast and offset differ between angles, so
that shared scaling is not the truth. Each program starts from the same two files.
"""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from tests import reference

NAMES = reference.NAMES
Q, GAP, DT, SIGMA = 0.0054, 2.0e6, 1 / 3, 0.02
TRUTH = (2500.0, -0.3, 100.0, 2e-4, 0.2, 1e-5, 5.0)
START = (4000.0, -0.1, 50.0, 4e-4, 0.0, 2e-5, 0.0)
LOWER = (100.0, -2.0, -1e5, 1e-6, -2.0, -0.1, -10.0)
UPPER = (1e5, 2.0, 1e5, 0.5, 2.0, 0.1, 10.0)
"""The bounds in homodyne's template for laminar flow."""
CONTRAST, OFFSET = 0.2, 1.0
"""Initial values of programs that fit contrast and offset; homodyne_dask eliminates them."""
CONTRAST_BOUNDS, OFFSET_BOUNDS = (0.0, 1.0), (0.5, 1.5)


@dataclass(frozen=True)
class Case:
    """One set of data; c2 is symmetric, its diagonal the mean of its neighbours."""

    phi: np.ndarray
    """Azimuth of each angle in degrees."""
    time: np.ndarray
    """Start of each frame in seconds."""
    c2: np.ndarray
    """(angle, N, N), float32."""

    @property
    def pairs(self) -> int:
        n = len(self.time)
        return len(self.phi) * n * (n - 1) // 2


@dataclass(frozen=True)
class Estimate:
    """The result of a program; contrast and offset have one value per angle, or one for all."""

    theta: list[float]
    contrast: list[float]
    offset: list[float]
    covariance: list[list[float]] | None = None
    """Of theta, (JᵀWJ)⁻¹, for the program whose errors are the unit of distances."""


FIELDS = [field.name for field in fields(Estimate)]


def distance(estimate: Estimate, other: Estimate) -> float:
    """Return how far theta is from that of an estimate with a covariance, in standard errors."""
    whitened = np.linalg.solve(
        np.linalg.cholesky(np.array(estimate.covariance)), np.subtract(other.theta, estimate.theta)
    )
    return float(np.linalg.norm(whitened))


def make(angles: int, frames: int, seed: int = 0) -> Case:
    phi, time = np.arange(angles) * 180.0 / angles, DT * np.arange(frames)
    contrast = 0.15 + 0.03 * np.cos(2 * np.deg2rad(phi))
    offset = 1 + 0.002 * np.arange(angles)
    f = np.array([reference.f_homodyne(TRUTH, time, Q, p, GAP) for p in phi])
    c2 = offset[:, None, None] + contrast[:, None, None] * f
    c2 += SIGMA * np.random.default_rng(seed).standard_normal(c2.shape)
    c2 = np.triu(c2, 1) + np.swapaxes(np.triu(c2, 1), 1, 2)
    near = np.einsum("kii->ki", c2[:, :-1, 1:])  # the first side diagonal
    diagonal = (near[:, :1], 0.5 * (near[:, 1:] + near[:, :-1]), near[:, -1:])
    np.einsum("kii->ki", c2)[...] = np.concatenate(diagonal, axis=1)
    return Case(phi, time, c2.astype(np.float32))


def save(case: Case, path: Path) -> None:
    """Write the arrays, named as `ingest` takes them."""
    np.savez(path, c2=case.c2, q=Q, phi=case.phi, time=case.time, sigma=SIGMA)


def load(path: Path) -> Case:
    with np.load(path) as held:
        return Case(held["phi"], held["time"], held["c2"])


def chisqr(case: Case, estimate: Estimate) -> float:
    """Return χ² of an estimate over each pair t1 < t2 once, by the reference in plain NumPy."""
    rows = np.full(len(case.time), np.sqrt(SIGMA))
    scaling = np.broadcast_arrays(estimate.contrast, estimate.offset, case.phi)
    return sum(
        float(np.sum(reference.bin_residual(
            np.array(estimate.theta), contrast, offset, c2.astype(float), case.time,
            Q, phi, GAP, rows, 1, "homodyne",
        ) ** 2))
        for contrast, offset, phi, c2 in zip(*scaling, case.c2, strict=True)
    )  # fmt: skip


def report(path: Path, estimate: Estimate, **numbers: object) -> None:
    """Write the result of a program for the process that started it."""
    path.write_text(json.dumps(asdict(estimate) | numbers))
