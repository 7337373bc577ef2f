"""How c2 of cells of age and lag changes by what a model may lack, whatever the model is."""

from functools import lru_cache

import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.assessment.cell_residuals import Interval
from homodyne_dask.solver.array_shapes import PerCell

BENDS = 3
"""Ways to bend of a rate, which are tested together."""
DECAYED = 1e-6
"""f below which its logarithm is that of this."""


def bends_of_age(ages: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n bend"]:
    """Return ways to bend of what changes with age, faster in the beginning. ages: from 0 to 1."""
    return np.cos(np.pi * np.arange(1, BENDS + 1) * np.sqrt(np.clip(ages, 0, 1))[..., None])


Frame = int | Int[np.ndarray, "n 1"]


def shares_with(cells: Int[np.ndarray, "cell 4"], low: Frame, end: Frame) -> PerCell:
    """Return the shares of the pairs of cells (edges of age and lag) with a frame from low to before end; of
    several such intervals, a row for each."""
    first, stop, shortest, longest = cells.T
    frames, lags = stop - first, longest - shortest
    of_first = np.clip(np.minimum(stop, end) - np.maximum(first, low), 0, None) * lags
    before = np.clip(stop, first, np.maximum(first, low))  # of these only the second may be inside
    of_second = [
        _oblong(t - first - lag) - _oblong(t - before - lag)
        for t in (end, low)
        for lag in (shortest, longest)
    ]
    inside = of_second[0] - of_second[1] - of_second[2] + of_second[3]
    return (2 * of_first + inside) / (2 * frames * lags)


def _oblong(n: Int[np.ndarray, "*n"]) -> Int[np.ndarray, "*n"]:
    """Return twice 1 + 2 + ... + n, 0 where n is negative."""
    n = np.maximum(n, 0)
    return n * (n + 1)


@lru_cache(maxsize=16)
def shares_at_ages(
    intervals: tuple[Interval, ...],
) -> tuple[dict[tuple[int, int], PerCell], dict[int, PerCell]]:
    """Return the shares of the pairs of cells with a frame of each interval of age, by its edges, and of
    those across its begin or its middle, by the frame."""
    cells, ages = np.array(intervals), np.array(sorted({cell[:2] for cell in intervals}))
    first, stop, *_ = cells.T
    frames = np.unique(np.append(ages[:, 0], ages.sum(1) // 2))
    begin_after = np.clip(stop - np.maximum(first, frames[:, None]), 0, None) / (stop - first)
    across = shares_with(cells, frames[:, None], 2 * cells.max()) - begin_after
    of_ages = zip(map(tuple, ages.tolist()), shares_with(cells, *ages.T[:, :, None]), strict=True)
    return dict(of_ages), dict(zip(frames.tolist(), across, strict=True))
