"""Whether a decay is seen at all: contrast times f against a constant, from the last Gram.

Correlated pairs of frames are allowed for by the moments of pairs of blocks of frames, from one pass: a pair
belongs to the blocks of its two frames.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import chdtri

from homodyne_dask.kernels.backend import backend_of
from homodyne_dask.kernels.backend_interface import Block, ModelPoint
from homodyne_dask.kernels.cell_grams import cell_block_grams
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.request.request import Request
from homodyne_dask.solver.array_shapes import BinNumbers, LinearParams, PerBin, SomeBins, Theta
from homodyne_dask.solver.cluster_robust import LEVEL_OF_DECAY, MIN_BLOCKS, MIN_CLUSTERS
from homodyne_dask.solver.covariance import clusters_in
from homodyne_dask.solver.levenberg_marquardt import State
from homodyne_dask.solver.reduce import CONSTANT_F, ReducedProblem
from homodyne_dask.solver.scaling_modes import Scaling
from homodyne_dask.store.scan import open_selection
from homodyne_dask.sweep import tasks
from homodyne_dask.sweep.blocks import NO_COST, Cost
from homodyne_dask.sweep.cell_means import cells_of, means_over_cells
from homodyne_dask.sweep.layout import Run
from homodyne_dask.sweep.sweep import Sweep

MAX_DISTANCE = 1.0
"""Standard errors from the optimum within which no other f describes the data much better."""


class Signal(NamedTuple):
    """Contrasts at the end of a fit: the one common to all bins, each with its own offset, and each bin's."""

    contrast: float
    stderr: float
    """The larger of the error for white noise and the one robust to correlation."""
    threshold: float
    of_bins: float
    """The largest contrast of a bin over its standard error."""
    threshold_of_bins: float

    @property
    def seen(self) -> bool:
        return self.contrast > self.threshold * self.stderr or self.of_bins > self.threshold_of_bins


def signal_of(
    state: State,
    scaling: Scaling,
    free: int,
    clusters: BinNumbers,
    blocks: Callable[[], Float[np.ndarray, "bin block block 3 3"]] | None,
) -> Signal | None:
    """Return the test for a decay; None where there is nothing to test.

    A decay is in the contrast common to all bins, or in that of one, as under strong shear. Each of the two
    has half of LEVEL_OF_DECAY, and each bin its share. free: parameters that were searched: noise has as many
    ways to look like f. Not tested are fits more than MAX_DISTANCE from the optimum, and those with a given
    offset, where an f that does not decay is seen, too.
    """
    reduced = state.reduced
    offset_given = scaling.fixed_params is not None or offset_has_prior(scaling)
    # a decrement that is NaN is no small distance, either
    if offset_given or not reduced.finite or not state.decrement < MAX_DISTANCE:
        return None
    fit = _contrast_of_bins(reduced)
    total, noise = fit.spread.sum(), reduced.variance(free)
    if not total > CONSTANT_F * reduced.gram.moments[:, 2, 2].sum():
        return None
    contrast = float(fit.slope.sum() / total)
    robust = _robust_variance(fit, contrast, clusters, clusters_in(reduced, clusters), blocks)
    error = float(np.sqrt(max(noise / total, robust / total**2)))
    if not error > 0:  # the model interpolates the data
        return None
    threshold = float(np.sqrt(chdtri(1 + free, LEVEL_OF_DECAY / 2)))
    limit = float(np.sqrt(chdtri(1 + free, LEVEL_OF_DECAY / 2 / fit.varied.sum())))
    largest = float((fit.contrasts * np.sqrt(fit.spread / noise)).max())
    # a pass is made only where its answer decides: errors with correlation are larger
    if blocks is not None and largest > limit and not contrast > threshold * error:
        robust_of_bins = _dyadic(fit.scores(blocks(), fit.contrasts))
        errors = np.sqrt(np.maximum(noise * fit.spread, robust_of_bins))
        largest = float(((fit.contrasts * fit.spread)[fit.varied] / errors[fit.varied]).max())
    return Signal(contrast, error, threshold, largest, limit)


def offset_has_prior(scaling: Scaling) -> bool:
    return scaling.prior is not None and bool(scaling.prior.weight[0] > 0)


class _ContrastOfBins(NamedTuple):
    """The straight line of c2 against f in each bin, from sums over its pairs."""

    offset: PerBin
    """The mean of c2 - 1."""
    mean: PerBin
    """Of f."""
    spread: PerBin
    """Σ w (f - mean)²; 0 without a pair."""
    slope: PerBin
    """Σ w (f - mean) (c2 - 1); the contrast times `spread`."""
    varied: SomeBins
    """Where f is not a constant but for rounding."""

    @property
    def contrasts(self) -> PerBin:
        zeros = np.zeros_like(self.slope)
        return np.divide(self.slope, self.spread, out=zeros, where=self.varied)

    def scores(
        self, blocks: Float[np.ndarray, "bin block block 3 3"], contrast: PerBin
    ) -> Float[np.ndarray, "bin block block"]:
        """Return Σ w (f - mean) r of each pair of blocks, r the residuals with these contrasts."""
        offset = self.offset - contrast * self.mean
        x = np.stack([-offset, np.ones(len(offset)), -contrast], axis=1)
        score = np.einsum("kz,kabzy->kaby", x, blocks)
        return score[..., 2] - self.mean[:, None, None] * score[..., 0]


def _contrast_of_bins(reduced: ReducedProblem) -> _ContrastOfBins:
    M, used = reduced.gram.moments, reduced.count > 0
    weight = np.where(used, M[:, 0, 0], 1.0)
    mean = M[:, 0, 2] / weight
    spread = np.where(used, M[:, 2, 2] - mean * M[:, 0, 2], 0.0)
    slope = np.where(used, M[:, 1, 2] - mean * M[:, 0, 1], 0.0)
    varied = spread > CONSTANT_F * M[:, 2, 2]
    return _ContrastOfBins(M[:, 0, 1] / weight, mean, spread, slope, varied)


def _robust_variance(
    fit: _ContrastOfBins,
    contrast: float,
    clusters: BinNumbers,
    number: int,
    blocks: Callable[[], Float[np.ndarray, "bin block block 3 3"]] | None,
) -> float:
    """Return that of the score of the common contrast, from `number` clusters or blocks; 0 without both."""
    if number >= MIN_CLUSTERS:  # between clusters the scatter is known without a pass
        numbers = np.unique(clusters, return_inverse=True)[1]
        of_cluster = np.bincount(numbers, fit.slope - contrast * fit.spread)
        return float((of_cluster**2).sum() * number / (number - 1))
    if blocks is None:
        return 0.0
    return float(_dyadic(fit.scores(blocks(), np.full(len(fit.mean), contrast)).sum(0)))


def mean_signal(signals: Sequence[Signal], free: int, bins: int) -> Signal:
    weight = np.array([signal.stderr**-2 for signal in signals])
    mean = float(weight @ [signal.contrast for signal in signals] / weight.sum())
    limit = float(np.sqrt(chdtri(1 + free, LEVEL_OF_DECAY / 2 / bins)))
    largest = max(signal.of_bins for signal in signals)
    return Signal(mean, float(weight.sum() ** -0.5), signals[0].threshold, largest, limit)


def _dyadic(s: Float[np.ndarray, "*bin block block"]) -> Float[np.ndarray, "*bin"]:
    """Return Σ_a T_a² - Σ_(a<b) s_ab², T_a = Σ_b s_ab: the variance of Σ s_ab if pairs that share a block
    are correlated (dyadic-robust: Aronow, Samii and Assenova 2015)."""
    alone = np.einsum("...aa->...a", s)
    of_block = s.sum(-1) + s.sum(-2) - alone
    return (of_block**2).sum(-1) - (s**2).sum((-1, -2)) + (alone**2).sum(-1)


TARGET_BLOCKS, CORRELATION_TIMES = 16, 5
"""Approximate number of blocks; correlation times that each of them has, if MIN_BLOCKS allow it."""


class FrameBlocks(NamedTuple):
    at_theta: tasks.AtTheta
    length: int
    first: int
    number: int


def frame_grams_of(context: tasks.TaskContext, run: Run, blocks: FrameBlocks) -> tuple[Gram, Cost]:
    problem, (theta, linear) = context.problem, blocks.at_theta.of_run(run)
    cells = cells_of(context.source)
    if cells is not None:
        [means], cost = means_over_cells(*context, run, [theta])
        # cells outside the selected frames have no weight, wherever they go
        place = np.clip(cells.middle // blocks.length - blocks.first, 0, blocks.number - 1)
        return cell_block_grams(means, problem, linear, place, blocks.number), cost
    scan = open_selection(context.source.selection)
    point = backend_of(problem.model).point(problem, theta, scan.time, 1, scan.frames)
    grams = tasks.merged(
        context,
        run,
        lambda read: [(_leaf(point, leaf.data, linear, blocks), None) for leaf in read],
    )
    return grams[0], NO_COST


FRAME_GRAMS = tasks.Task(frame_grams_of, "frame_grams", "for the test for a decay")


def _leaf(point: ModelPoint, data: Block, linear: LinearParams | None, blocks: FrameBlocks) -> Gram:
    backend, number = backend_of(point.problem.model), blocks.number
    c2, *sides = map(np.asarray, (data.c2, data.weight_rows, data.weight_columns))
    bins, side = len(data.q), min(blocks.length, c2.shape[-1])
    moments, pairs = np.zeros((bins, number, number, 3, 3)), np.zeros(bins, np.int64)
    for i, j in product(range(0, c2.shape[-1], side), repeat=2):
        i0, j0 = data.i0 + i, data.j0 + j
        a, b = (frame // blocks.length - blocks.first for frame in (i0, j0))
        if i0 > j0 or a < 0 or b >= number:
            continue  # below the diagonal, where nothing is stored, or outside the selected frames
        rows, columns = slice(i, i + side), slice(j, j + side)
        weights = sides[0][:, rows], sides[1][:, columns]
        values, *weights = map(np.ascontiguousarray, (c2[:, rows, columns], *weights))
        cut = {"weight_rows": weights[0], "weight_columns": weights[1], "i0": i0, "j0": j0}
        block = replace(data, c2=values, **cut)
        if linear is None:
            gram = backend.gram(point, block, None)[0]
        else:
            gram = backend.robust_gram(point, block, linear)
        pairs += gram.pairs
        moments[:, a, b] += gram.moments[:, :3, :3]
    return Gram(moments, pairs)


def frame_moments(
    sweep: Sweep, request: Request, theta: Theta, linear: LinearParams | None
) -> Float[np.ndarray, "bin block block 3 3"]:
    """Return the moments of every pair of blocks of frames: one pass; linear: of a fit with a loss."""
    scan, backend, side = request.scan, backend_of(request.problem.model), sweep.layout.side
    (first, stop), point = scan.frames, backend.point(request.problem, theta, scan.time)
    correlation = backend.correlation_time(point, scan.q_or_one, scan.phi, scan.frames)
    wanted = max((stop - first) / TARGET_BLOCKS, CORRELATION_TIMES * correlation, 2)
    wanted = min(wanted, max((stop - first) / MIN_BLOCKS, 2))
    length = int(side * 2.0 ** np.floor(np.log2(wanted / side)))  # of whole tiles or parts of one
    blocks = first // length, -(-stop // length) - first // length
    argument = FrameBlocks(tasks.AtTheta(theta, linear), length, *blocks)
    return sweep.over(FRAME_GRAMS, argument).moments
