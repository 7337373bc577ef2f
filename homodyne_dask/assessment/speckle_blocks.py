"""The noise of one bin in blocks of frames that see one speckle pattern: of a model, without data.

A record that is long against its decay is represented by a stretch in the middle of each interval of age:
its other pairs are as noisy, and pairs far apart hardly matter.
"""

from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from homodyne_dask.assessment.cell_residuals import AveragedCells, Interval, KnownShare
from homodyne_dask.assessment.speckle_covariance import (
    Blocks,
    CellPairs,
    FrameStretch,
    NoiseCovariance,
    cell_noise,
    field_noise,
    joined_ranges,
    nearest_correlation,
    upper_indices,
)
from homodyne_dask.kernels.backend import evaluation_of
from homodyne_dask.kernels.backend_interface import ModelPoint
from homodyne_dask.models.derived_models import FROZEN_FRACTION
from homodyne_dask.solver.array_shapes import Moved, PerBin, PerFrame, Values, Which

CORE, MARGIN, REACH = 10.0, 2.0, 9.0
"""Decay times of a stretch: of its first frames that count, of more on both sides of these, and of lags."""
MOST_OF_BEATS, LAGS_OF_BEATS = 1000, 400
"""Blocks of a record whose f oscillates, that needs no stretches; lags at which f is looked at for that."""
MOST_BESIDE_FROZEN = 500
"""Blocks of a record with a frozen part, beside those that intervals of age begin."""


class CellGrid(NamedTuple):
    """How finely a record is divided into cells of age and lag: by default as for a weighted fit."""

    ages: int
    min_pairs: int
    per_decay: int = 8
    """Blocks of frames in which f falls to 1/e."""
    fewest: int = 80
    """Blocks of a record that has so many frames."""
    most: int = 400
    """Blocks of a record; one that needs more is represented by stretches."""


class BinFrames(NamedTuple):
    selected: tuple[int, int]
    use: Bool[np.ndarray, " t"]
    """Selected and not masked."""
    sigma: Float[np.ndarray, " used"]
    """The σ of a pair is the product of those of its frames."""
    min_lag: int
    known_share: KnownShare | None = None
    """Of its pairs; None where all are known."""

    @property
    def weight(self) -> PerFrame:
        """1/σ² of each frame of the record; 0 where it is not used."""
        weight = np.zeros(len(self.use))
        weight[self.use] = self.sigma**-2.0
        return weight


class FittedPoint(NamedTuple):
    """A model at one theta, with the units in which derivatives by some parameters are wanted."""

    point: ModelPoint
    time: PerFrame
    """s."""
    which: Which
    units: Moved
    effective: Float[np.ndarray, "m k"] | None = None
    """Combinations of them that the data, and not the smoothness of rates, determine; None without one."""

    def f_and_slopes(
        self, q: PerBin, phi: PerBin, t1: np.ndarray, t2: np.ndarray
    ) -> tuple[Float[np.ndarray, "bin ..."], Float[np.ndarray, "bin m ..."]]:
        """Return f of bins at times [s], and its derivatives by the scaled parameters that moved."""
        evaluation = evaluation_of(self.point.problem.model)
        f, slopes = evaluation.f_and_derivatives_at(self.point, self.time, q, phi, t1, t2)
        by_moved = slopes[:, self.which]
        by_moved *= self.units.reshape(-1, *[1] * np.ndim(t1))
        return f, by_moved


class BinModel:
    def __init__(self, fitted: FittedPoint, q: float, phi: float) -> None:
        self.fitted, self.evaluation = fitted, evaluation_of(fitted.point.problem.model)
        self.frames = np.arange(len(fitted.time))
        self.q, self.phi = np.array([q]), np.array([phi])
        named = dict(zip(fitted.point.problem.model.names, fitted.point.theta, strict=True))
        self.plateau = float(named.get(FROZEN_FRACTION, 0.0)) ** 2

    def time(self, frame: np.ndarray) -> Values:
        """Return the times [s] of frames, which need not be whole."""
        return np.interp(frame, self.frames, self.fitted.time)

    def _at(self, t1: np.ndarray, t2: np.ndarray) -> tuple[Any, ...]:
        return self.fitted.point, self.fitted.time, self.q, self.phi, t1, t2

    def f(self, t1: np.ndarray, t2: np.ndarray) -> Values:
        return self.evaluation.f_at(*self._at(t1, t2))[0]

    def g(self, f: Values, t1: np.ndarray, t2: np.ndarray) -> Values:
        """Return g of pairs from their f; the root where the model gives f alone."""
        root = np.sqrt(np.clip(np.nan_to_num(f, nan=1.0), 0, 1))  # NaN at most below min_lag
        if self.evaluation.sign_at is not None:
            root *= self.evaluation.sign_at(*self._at(t1, t2))[0]
        return root

    def f_and_slopes(
        self, t1: np.ndarray, t2: np.ndarray
    ) -> tuple[Values, Float[np.ndarray, "m ..."]]:
        f, slopes = self.fitted.f_and_slopes(self.q, self.phi, t1, t2)
        return f[0], slopes[0]

    def decays(
        self, frames: Int[np.ndarray, " age"], last: int
    ) -> tuple[Float[np.ndarray, " age"], Float[np.ndarray, " age"]]:
        """Return the lags after which f falls to 1/e, of what moves, and stays below; at most `last`."""
        lag, above = self._along(frames, last, 60)
        first = np.where(above.all(1), above.shape[1] - 1, np.argmin(above, axis=1))
        decay = lag[np.arange(len(frames)), first]
        if self.plateau:
            return decay, lag[:, -1]
        lasting = decay.copy()
        again = np.flatnonzero((above & (np.arange(above.shape[1]) > first[:, None])).any(1))
        if len(again):
            lag, above = self._along(frames[again], last, LAGS_OF_BEATS)
            last_above = above.shape[1] - 1 - np.argmax(above[:, ::-1], axis=1)
            lasting[again] = lag[np.arange(len(again)), last_above]
        return decay, lasting

    def _along(
        self, frames: Int[np.ndarray, " age"], last: int, number: int
    ) -> tuple[Float[np.ndarray, "age lag"], Bool[np.ndarray, "age lag"]]:
        tried, time = np.append(0, _tried_lags(last, number)), self.fitted.time
        most = np.searchsorted(tried, last - frames, "right") - 1
        lag = tried[np.minimum(np.arange(1, len(tried)), most[:, None])]
        f = self.f(time[frames][:, None], time[frames[:, None] + lag])
        above = f >= self.plateau + (1 - self.plateau) * np.exp(-1)
        return np.maximum(lag, 1).astype(float), above & (lag > 0)


@lru_cache(maxsize=16)
def _tried_lags(longest: int, number: int) -> Int[np.ndarray, " lag"]:
    return np.unique(np.geomspace(1, max(longest, 2), number).round()).astype(int)


class Division(NamedTuple):
    stretches: list[FrameStretch]
    ages: Int[np.ndarray, " edge"]
    lags: list[Int[np.ndarray, " edge"]]


def divided(
    model: BinModel, frames: BinFrames, averaged: AveragedCells, grid: CellGrid
) -> Division:
    first, stop = frames.selected
    n, lags = stop - first, int((averaged.lag_edges < stop - first).sum())
    enough = n**2 // (2 * grid.min_pairs * max(lags, 1))
    wanted = int(np.clip(enough, 2, grid.ages))
    even = first + np.concatenate([[0.0], np.geomspace(max(2, n / 32, n / wanted**2), n, wanted)])
    edges = averaged.age_edges
    ages = np.unique(edges[np.abs(edges[:, None] - even).argmin(0)])
    decay, lasting = model.decays(ages[:-1], stop - 1)
    longest = np.clip(decay / grid.per_decay, 1, max(1, n / grid.fewest)).astype(int)
    if model.plateau:  # no pairs are too far apart to matter: the record stays whole
        longest = np.maximum(longest, -(-n // MOST_BESIDE_FROZEN))
        most = MOST_BESIDE_FROZEN + len(ages)
    else:
        reached = grid.most * longest / (CORE + MARGIN + REACH)
        lasting = np.clip(lasting, decay, np.maximum(decay, reached))
        most = MOST_OF_BEATS if (lasting > decay).any() else grid.most
    stretches = _stretches(frames.selected, ages, lasting, longest, most)
    edges, lowest, lags = averaged.lag_edges, max(frames.min_lag, 1), []
    for age, below in enumerate(lasting):
        stretch = stretches[min(age, len(stretches) - 1)]
        of_age = stretch.edges[(stretch.edges >= ages[age]) & (stretch.edges <= ages[age + 1])]
        block = int(np.diff(of_age if len(of_age) > 1 else stretch.edges).max())
        farthest = len(frames.use) if len(stretches) == 1 else REACH * below
        least = max(lowest, 2 * block if block > 1 else lowest)  # none is shorter than two blocks
        chosen = [lowest]
        for edge in edges[(edges > least) & (edges <= farthest)]:
            if edge - chosen[-1] >= block:
                chosen.append(int(edge))
        lags.append(np.array(chosen))
    return Division(stretches, ages, lags)


def _stretches(
    frames: tuple[int, int],
    ages: Int[np.ndarray, " edge"],
    decay: Float[np.ndarray, " age"],
    block: Int[np.ndarray, " age"],
    most: int,
) -> list[FrameStretch]:
    """Return the record in blocks, or where these are more than `most` a stretch for each interval of age."""
    first, stop = frames
    # Pairs before the first cell and after the last have noise, too.
    bounds = np.concatenate([[first], ages[1:-1], [stop]])
    parts = [
        np.arange(low, high, k) for (low, high), k in zip(pairwise(bounds), block, strict=True)
    ]
    edges = np.concatenate([*parts, bounds[-1:]])
    if len(edges) <= most + 1:
        return [FrameStretch(edges, (first, stop), (first, stop))]
    stretches = []
    for (low, high), k, lasting in zip(pairwise(bounds), block, decay, strict=True):
        core = int(min(high - low, max(CORE * lasting, 4 * k)))
        start = low + (high - low - core) // 2
        begin = max(first, start - int(MARGIN * lasting))
        end = min(stop, start + core + int((MARGIN + REACH) * lasting))
        before = np.arange(start, begin, -k)[::-1]
        after = np.arange(start, end, k)
        edges = np.unique(np.concatenate([[begin], before, after, [start + core, end]]))
        stretches.append(FrameStretch(edges, (start, start + core), (int(low), int(high))))
    return stretches


def blocks_of(
    model: BinModel,
    frames: BinFrames,
    stretches: list[FrameStretch],
    contrast: float,
    with_fields: bool = True,
) -> list[Blocks]:
    parts, times, number = [], [], np.arange(len(frames.use)) * frames.use
    for stretch in stretches:
        first, stop = stretch.edges[:-1], stretch.edges[-1]
        used, total, weight = (
            np.add.reduceat(of_frame[:stop], first)
            for of_frame in (frames.use.astype(int), number, frames.weight)
        )
        some = used > 0
        used, middle = used[some], total[some] / used[some]
        parts.append((stretch, used, middle, weight[some] / used))
        (i, j), away = upper_indices(len(middle)), 0.0
        # where f needs t1 < t2, that inside a block is f of the mean lag there
        if model.fitted.point.problem.model.ordered_times:
            far = frames.min_lag + (used[i] - frames.min_lag - 1) / 3
            away = np.where((i == j) & (used[i] > frames.min_lag), far / 2, 0.0)
        times.append((model.time(middle[i] - away), model.time(middle[j] + away)))
    t1, t2 = (np.concatenate(sides) for sides in zip(*times, strict=True))
    if with_fields:
        f, slopes = model.f_and_slopes(t1, t2)
        values = np.concatenate([model.g(f, t1, t2)[None], f[None], slopes])
    else:
        values = model.g(model.f(t1, t2), t1, t2)[None]
    edges, blocks = np.cumsum([len(first) for first, _ in times])[:-1], []
    for part, of_part in zip(parts, np.split(values, edges, axis=1), strict=True):
        stretch, used, middle, weight = part
        i, j = upper_indices(n := len(middle))
        g, distance, known_share = np.empty((n, n)), 0.0, None
        g[i, j] = g[j, i] = of_part[0]
        np.fill_diagonal(g, 1.0)
        if model.evaluation.sign_at is None:
            g, distance = nearest_correlation(g)
        fields = np.ones((len(values) * with_fields, n, n))
        fields[1:, i, j] = of_part[1:]
        if frames.known_share is not None:
            lag = middle - middle[:, None]
            np.fill_diagonal(lag, (used + 1) / 3)  # the mean of those inside a block
            known_share = frames.known_share.at(np.broadcast_to(middle[:, None], lag.shape), lag)
        of_frames = used, middle, weight
        blocks.append(Blocks(stretch, g, distance, contrast, *of_frames, fields, known_share))
    return blocks


def noise_of_cells(stretches: list[Blocks], intervals: list[Interval]) -> NoiseCovariance:
    """Return the noise of the means over cells, in the order of their ages, each in at most one stretch."""
    cells = np.array(intervals, int).reshape(-1, 4)
    noise = np.zeros((3, len(cells), len(cells)))
    for blocks in stretches:
        low, high = blocks.stretch.represents
        some = slice(*np.searchsorted(cells[:, 0], [low, high]).tolist())
        if len(cells[some]) and blocks.rows.any():
            # the mean over all first frames that the stretch stands for is less noisy than that over its own
            of_cells = cell_noise(blocks, _cells(blocks, cells[some]))
            noise[:, some, some] = np.stack(of_cells) * blocks.stretch.share
    return NoiseCovariance(*noise)


def noise_of_fields(
    stretches: list[Blocks], lowest: int
) -> tuple[NoiseCovariance, Float[np.ndarray, "column column"]]:
    """Return the noise of the sums of fields over all pairs, and their weights; of none without blocks."""
    number = len(stretches[0].fields) if stretches else 0
    sums = np.zeros((4, number, number))
    for blocks in stretches:
        far = blocks.middle - blocks.middle[:, None] >= lowest - 0.5
        np.fill_diagonal(far, blocks.frames > lowest)
        scale = np.triu(far * np.outer(blocks.inverse, blocks.inverse))
        plain = np.where(scale > 0, blocks.fields, 0.0)
        fields = plain * scale
        counted = fields * (blocks.pairs * blocks.rows[:, None])
        weights = counted.reshape(number, -1) @ plain.reshape(number, -1).T
        sums += np.stack([*field_noise(blocks, fields), weights]) / blocks.stretch.share
    return NoiseCovariance(*sums[:3]), sums[3]


def _cells(blocks: Blocks, cells: Int[np.ndarray, "cell 4"]) -> CellPairs:
    """Return cells as sums over blocks; those of a stretch that stands for more are of its core alone."""
    middle, used, n = blocks.middle, blocks.frames, len(blocks.middle)
    whole = blocks.stretch.core == blocks.stretch.represents
    ages = cells[:, :2] if whole else np.tile(blocks.stretch.core, (len(cells), 1))
    rows = np.searchsorted(middle, ages)
    row, cell = joined_ranges(*rows.T)
    shortest, after = cells[cell, 2:].T
    low = np.maximum(np.searchsorted(middle, middle[row] + shortest - 0.5), row + 1)
    first_of_age = np.diff(cells[:, 0], prepend=-1) != 0
    inside = first_of_age[cell] & (used[row] > shortest)  # the pairs inside a block, too
    low = np.where(inside, row, low)
    high = np.maximum(np.searchsorted(middle, middle[row] + after - 0.5), low)
    # beyond the middle of the last block
    empty = np.bincount(cell, high - low, len(cells)) == 0
    first = np.searchsorted(cell, np.flatnonzero(empty))
    low[first], high[first] = n - 1, n
    return CellPairs(rows, low, high)
