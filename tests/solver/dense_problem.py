"""The joint least squares of scans, written out with dense matrices."""

from dataclasses import replace

import numpy as np

from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.scaling_modes import scaling_of
from tests import reference
from tests.synthetic import evaluator

MODES = ["individual", "shared"]
ALL_MODES = [*MODES, "fourier1", "fourier2", "fourier3", "fixed"]
GIVEN = {"contrast": 0.21, "offset": 1.03}
TIGHT_TOLERANCE = lm.SolverOptions(decrement=1e-8)


def robust_evaluator(scans, loss="huber", scale=1.345, **options):
    """The evaluator under a loss, on tiles of 32: with 4 bins each kernel is compiled once."""
    return evaluator(scans, scans.problem(loss=loss, loss_scale=scale, **options), 32)


def scaling_at(phi, mode):
    return scaling_of(mode, np.asarray(phi, float), **(GIVEN if mode == "fixed" else {}))


def series(phi, mode):
    if mode == "individual":
        return np.eye(len(phi))
    if mode == "fixed":
        return np.zeros((len(phi), 0))
    order = 0 if mode == "shared" else int(mode[-1])
    angle = np.deg2rad(phi)
    waves = [f(n * angle) for n in range(1, order + 1) for f in (np.cos, np.sin)]
    return np.stack([np.ones(len(phi)), *waves], axis=1)


class DenseProblem:
    def __init__(self, scans, theta, mode):
        y, J, Z, owner = [], [], [], []
        self.series = series(scans.phi, mode)
        for b, part in enumerate(scans.dense()):
            c2, time, q, phi, gap, sigma = part
            use = np.triu(np.isfinite(c2), 1)
            root = 1 / (sigma[:, None] * sigma[None, :])[use]
            model = lambda p: reference.CONVENTIONS[scans.convention](p, time, q, phi, gap)  # noqa: B023, E731
            df = reference.gradient(model, theta)
            if scans.convention == "homodyne" and len(theta) == 7:
                df[6] *= reference.unsmoothed(theta, time)
            f = model(np.asarray(theta, float))
            z = np.concatenate([np.outer(x, self.series[b]) for x in (0 * f[use] + 1, f[use])], 1)
            fixed = GIVEN["offset"] - 1 + GIVEN["contrast"] * f[use] if mode == "fixed" else 0
            y.append(root * (c2[use] - 1 - fixed))
            Z.append(root[:, None] * z)
            J.append(root[:, None] * np.stack([d[use] for d in df], axis=1))
            owner.append(np.full(use.sum(), b))
        self.Z, self.owner = np.concatenate(Z), np.concatenate(owner)
        y, J = np.concatenate(y), np.concatenate(J)
        beta = np.linalg.lstsq(self.Z, y, rcond=None)[0]
        self.offset, self.contrast = (self.series @ part for part in np.split(beta, 2))
        self.offset = self.offset + (GIVEN["offset"] if mode == "fixed" else 1)
        self.contrast = self.contrast + (GIVEN["contrast"] if mode == "fixed" else 0)
        self.residual = y - self.Z @ beta
        self.J = J * self.contrast[self.owner, None]
        self.projected = self.J - self.Z @ np.linalg.lstsq(self.Z, self.J, rcond=None)[0]
        self.chisqr = self.residual @ self.residual
        full = np.concatenate([self.J, self.Z], axis=1)
        size = np.sqrt((full**2).sum(0))
        # columns of a series that the angles do not tell apart have no inverse
        scaled = np.linalg.pinv(full.T @ full / np.outer(size, size), rcond=1e-13, hermitian=True)
        self.covariance = scaled / np.outer(size, size)

    def by_bin(self, columns):
        return [columns[self.owner == b] for b in np.unique(self.owner)]


def without_bins(scans, bins):
    keep = np.setdiff1d(np.arange(len(scans.phi)), bins)
    names = ("q", "phi", "contrast", "offset", "sigma_row", "c2")
    return replace(scans, **{name: getattr(scans, name)[keep] for name in names})


def cluster_sums(X, y, owner, weight=(0, 0, 0)):
    """(XᵀX + weight)⁻¹, and every cluster's score and block at the least-squares fit of y on X."""
    inverse = np.linalg.inv(X.T @ X + np.diag(weight)[: X.shape[1], : X.shape[1]])
    left = y - X @ inverse @ X.T @ y
    each = [owner == k for k in np.unique(owner)]
    scores = np.array([X[at].T @ left[at] for at in each])
    return inverse, scores, np.array([X[at].T @ X[at] for at in each])


def clustered_rows(clusters):
    rng = np.random.default_rng(clusters)
    owner = np.repeat(np.arange(clusters), rng.integers(4, 9, clusters))
    return rng.standard_normal((len(owner), 3)), rng.standard_normal(len(owner)), owner
