"""The covariance that a fit of a planned scan will have, from the speckle and counting noise alone.

The sums of a fit over pairs, and over the cells of `--weighting speckle`, follow from the model: no data are
simulated. Contrast and offset of every bin are fitted, too.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from homodyne_dask.assessment.cell_residuals import (
    AveragedCells,
    Interval,
    cell_points,
)
from homodyne_dask.assessment.speckle_blocks import (
    BinFrames,
    BinModel,
    FittedPoint,
    blocks_of,
    divided,
    noise_of_fields,
)
from homodyne_dask.assessment.speckle_noise import bin_averages, merged_averages
from homodyne_dask.fitting.speckle_weighting import grid_of_weights
from homodyne_dask.kernels.backend import evaluation_of
from homodyne_dask.kernels.problem import Problem
from homodyne_dask.models.rate_forms import rate_stderr
from homodyne_dask.request.options import PAIRS, SPECKLE_WEIGHTS
from homodyne_dask.solver._numpy_internals import one_blas_thread
from homodyne_dask.solver.normal_matrix import (
    SINGULAR_OF_MEANS,
    eigensystem,
    pseudoinverse,
)
from homodyne_dask.solver.speckle import regular, sum_over_stretches
from homodyne_dask.store.cells import age_edges, lag_edges
from homodyne_dask.store.rings import friedel_clusters

WEIGHTINGS = (PAIRS, SPECKLE_WEIGHTS)


@dataclass(frozen=True)
class PlannedScan:
    """A scan that has not been measured."""

    problem: Problem
    theta: Float[np.ndarray, " p"]
    free: Bool[np.ndarray, " p"]
    """Parameters that will be fitted."""
    frames: int
    dt: float
    """s between frames."""
    q: Float[np.ndarray, " bin"]
    """1/Å; NaN where the model does not use it."""
    phi: Float[np.ndarray, " bin"]
    """degree."""
    contrast: Float[np.ndarray, " bin"]
    counts: Float[np.ndarray, " bin"]
    """Of a pixel in a frame."""
    pixels: Float[np.ndarray, " bin"]
    """Independent ones."""

    @property
    def time(self) -> Float[np.ndarray, " t"]:
        """s."""
        return self.dt * np.arange(self.frames)


class ExpectedErrors(NamedTuple):
    """What fits of a planned scan will give, by weighting."""

    covariance: Float[np.ndarray, "weighting p p"]
    """Of theta; NaN where a parameter is fixed or not determined."""
    rates: tuple[str, ...]
    rate_value: Float[np.ndarray, "rate age"]
    """The rates of transport at chosen ages; NaN at ages outside the scan."""
    rate_stderr: Float[np.ndarray, "weighting rate age"]


@one_blas_thread()
def expected_errors(scan: PlannedScan, ages: Float[np.ndarray, " age"]) -> ExpectedErrors:
    """Return the covariance of the parameters for each weighting, and the errors of rates at ages [s]."""
    averaged = _cells(scan.frames, scan.problem.min_lag)
    at, m = _fitted_point(scan, averaged), int(scan.free.sum())
    scores = [_of_bin(scan, b, averaged, at) for b in range(len(scan.q))]
    clusters = friedel_clusters(scan.q, scan.phi, np.ones(len(scan.q), int))
    covariance = np.full((len(WEIGHTINGS), *(len(scan.theta),) * 2), np.nan)
    for whole, name in zip(covariance, WEIGHTINGS, strict=True):
        hessian, variance = np.zeros((2, m, m))
        for b, of in enumerate(of_bin[name] for of_bin in scores):
            hessian += of.hessian
            variance += of.variance
            for a in np.flatnonzero(clusters[:b] == clusters[b]):  # they see the same speckle
                other, most = scores[a][name], max(scan.pixels[a], scan.pixels[b])
                variance += other.weight * of.weight / most * (other.intensity + of.intensity)
        inverse = _inverse(hessian)
        scaled = inverse @ variance @ inverse * np.outer(at.units, at.units)
        whole[np.ix_(scan.free, scan.free)] = scaled
    return ExpectedErrors(covariance, *_rates(scan, covariance, ages))


class _Scores(NamedTuple):
    """What a bin adds to the normal equations of the scaled parameters."""

    hessian: Float[np.ndarray, "m m"]
    variance: Float[np.ndarray, "m m"]
    """Of its scores."""
    intensity: Float[np.ndarray, "m m"]
    """The part of their variance of one pixel that bins of the same speckle share, over `weight`²."""
    weight: float
    """Of its pairs, 1/σ² with σ from counts as `ingest` computes it; of weighted averages the pixels."""


def _of_bin(
    scan: PlannedScan, bin: int, averaged: AveragedCells, at: FittedPoint
) -> dict[str, _Scores]:
    contrast, mu, pixels = scan.contrast[bin], float(scan.counts[bin]), scan.pixels[bin]
    model = BinModel(at, float(scan.q[bin]), float(scan.phi[bin]))
    frames = BinFrames(
        (0, scan.frames), np.ones(scan.frames, bool), np.ones(scan.frames), scan.problem.min_lag
    )
    grid = grid_of_weights(averaged, scan.frames, len(scan.q))
    division = divided(model, frames, averaged, grid)
    parts = [blocks_of(model, frames, stretch, contrast) for stretch in division.stretches]
    size = np.append([1.0, 1.0], np.full(int(scan.free.sum()), contrast))

    each = (noise_of_fields(part, frames.min_lag) for part in parts)
    noises, squares = zip(*each, strict=True)
    of_fields, weights = sum_over_stretches(list(noises)), np.sum(squares, axis=0)
    project = _eliminating(weights * np.outer(size, size)) * size
    of_scores = of_fields.mapped(project)
    w = pixels / (1 / mu + contrast) ** 2
    hessian, variance = w * project @ weights @ project.T, w**2 / pixels * of_scores.at(mu)
    found = {PAIRS: _Scores(hessian, variance, of_scores.constant, w)}
    fine = bin_averages(averaged, model)
    cells, noise = merged_averages(fine, division, grid.min_pairs).with_noise(parts)
    X = np.column_stack([np.ones(len(cells.f)), cells.f, cells.slopes.T]) * size
    weighted = np.linalg.solve(regular(noise.at(mu)), X)
    normal = X.T @ weighted
    project = _eliminating(normal)
    shared = project @ weighted.T @ noise.constant @ weighted @ project.T
    information = project @ normal @ project.T * pixels
    return found | {SPECKLE_WEIGHTS: _Scores(information, information, shared, pixels)}


def _eliminating(normal: Float[np.ndarray, "column column"]) -> Float[np.ndarray, "m column"]:
    """Return the map from sums with offset, contrast and parameters to scores without offset and contrast."""
    own, across = normal[:2, :2], normal[2:, :2]
    return np.concatenate([-across @ pseudoinverse(own), np.eye(len(across))], axis=1)


def _inverse(hessian: Float[np.ndarray, "m m"]) -> Float[np.ndarray, "m m"]:
    """Return the inverse, NaN on the diagonal of parameters that are not determined."""
    scaled = eigensystem(hessian)
    inverse, lost = (
        scaled.pseudoinverse(SINGULAR_OF_MEANS),
        ~scaled.determined(SINGULAR_OF_MEANS),
    )
    inverse[lost] = inverse[:, lost] = 0.0
    inverse[lost, lost] = np.nan
    return inverse


def _cells(frames: int, min_lag: int) -> AveragedCells:
    """Return the cells over which ingest will average c2, with their pairs and no c2."""
    ages, lags = age_edges(frames), np.unique([*lag_edges(frames), min_lag])
    every = [
        Interval(first, stop, max(shortest, 1), end)
        for first, stop in pairwise(ages.tolist())
        for shortest, end in pairwise(lags.tolist())
        if shortest >= min_lag and first + max(shortest, 1) < frames
    ]
    points = cell_points(every, np.ones(frames, bool))
    pairs = np.round(np.bincount(points.cell, points.weight, len(every))).astype(np.int64)
    return AveragedCells(every, np.zeros((1, len(every))), pairs[None], [points], ages, lags)


def _fitted_point(scan: PlannedScan, averaged: AveragedCells) -> FittedPoint:
    """Return the model, with units of the free parameters in which no derivative of f is far from 1."""
    point = evaluation_of(scan.problem.model).point(scan.problem, scan.theta, scan.time)
    at = FittedPoint(point, scan.time, scan.free, np.ones(int(scan.free.sum())))
    largest = np.zeros(len(at.units))
    for b in {0, len(scan.q) // 2, len(scan.q) - 1, int(np.argmax(np.nan_to_num(scan.q)))}:
        model = BinModel(at, scan.q[b], scan.phi[b])
        slopes = model.f_and_slopes(*map(model.time, averaged.points[0][:2]))[1]
        largest = np.maximum(largest, np.sqrt(np.mean(slopes**2, axis=1)))
    return at._replace(units=np.where(largest > 0, 1 / np.where(largest > 0, largest, 1.0), 1.0))


def _rates(
    scan: PlannedScan,
    covariance: Float[np.ndarray, "weighting p p"],
    ages: Float[np.ndarray, " age"],
) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """Return the names of the rates, their values and their standard errors; NaN after the record."""
    evaluation, names = evaluation_of(scan.problem.model), list(scan.problem.model.names)
    curves = {}
    if evaluation.rates is not None:
        at = evaluation.point(scan.problem, scan.theta, scan.time)
        curves = evaluation.rates(at, scan.time, (0, scan.frames))
    rates = tuple(name for name in curves if name in ("J", "gamma_dot"))
    values = np.full((len(rates), len(ages)), np.nan)
    errors, inside = np.full((len(covariance), *values.shape), np.nan), ages <= scan.time[-1]
    for n, curve in enumerate(curves[name] for name in rates):
        values[n, inside] = np.interp(ages, curve.time, curve.value)[inside]
        gradient = np.array([np.interp(ages, curve.time, one) for one in curve.gradient])
        which = [names.index(name) for name in curve.parameters]
        moved = np.outer(scan.free[which], scan.free[which])
        for w, of in enumerate(covariance):
            error = rate_stderr(gradient, np.where(moved, of[np.ix_(which, which)], 0.0))
            errors[w, n, inside] = error[inside]
    return rates, values, errors
