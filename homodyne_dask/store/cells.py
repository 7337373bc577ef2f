"""Cells of age and lag: edges of those averaged at ingest, and the pairs in those averaged before it."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int, Int32
from numpy.lib.stride_tricks import sliding_window_view

from homodyne_dask.errors import SelectionError

_MARGIN = 512
"""Frames by which tiles may reach over the data."""
_NONE = -(2**30)
"""Below zero with any number of a cell added."""


def lag_edges(n_frames: int) -> Int[np.ndarray, " edge"]:
    """Return 0, 1, 2, 3, 4, 6, 8, 12, 16, 24, … up to the number of frames."""
    edges = [0, 1]
    while edges[-1] < n_frames:
        k = len(edges)
        edges.append(2 ** (k // 2) if k % 2 == 0 else 3 * 2 ** (k // 2) // 2)
    return np.array([edge for edge in edges if edge < n_frames] + [n_frames])


def age_edges(n_frames: int) -> Int[np.ndarray, " edge"]:
    """Return the edges of `lag_edges` up to steps of a sixteenth of the frames, then even steps."""
    widest = max(1, n_frames // 16)
    edges = [0]
    for edge in lag_edges(n_frames)[1:]:
        if edge - edges[-1] > widest:
            break
        edges.append(int(edge))
    return np.unique([*edges, *range(edges[-1] + widest, n_frames, widest), n_frames])


@dataclass(frozen=True)
class Cells:
    """The cells of a store; cell number a·lags + l is that of age a and lag l."""

    age_edges: Int[np.ndarray, " age_edge"]
    """In i + j, which is twice the age of frames i and j."""
    lag_edges: Int[np.ndarray, " lag_edge"]
    """In j - i."""
    n_frames: int

    @property
    def ages(self) -> int:
        return len(self.age_edges) - 1

    @property
    def lags(self) -> int:
        return len(self.lag_edges) - 1

    @property
    def number(self) -> int:
        """Cells, with those that hold no pair."""
        return self.ages * self.lags

    @cached_property
    def pairs(self) -> Int[np.ndarray, " cell"]:
        """Pairs averaged in each cell, those of a frame with itself among them."""
        return self.pairs_in((0, self.n_frames), 0)

    def pairs_in(self, frames: tuple[int, int], min_lag: int) -> Int[np.ndarray, " cell"]:
        """Return the pairs of each cell that lie inside the frames and are min_lag apart."""
        first, stop = frames
        pairs = np.zeros((self.ages, self.lags), np.int64)
        for number, (low, high) in enumerate(zip(self.lag_edges, self.lag_edges[1:], strict=False)):
            lag = np.arange(max(low, min_lag), min(high, stop - first))
            # of one lag, i + j goes from 2·first + lag in steps of 2
            below = (self.age_edges[:, None] - (2 * first + lag) + 1) // 2
            within = np.clip(below, 0, stop - first - lag)
            pairs[:, number] = np.diff(within, axis=0).sum(1)
        return pairs.ravel()

    def check_any_in(self, frames: tuple[int, int], min_lag: int) -> None:
        inside = self.pairs_in(frames, min_lag)
        if not ((inside == self.pairs) & (inside > 0)).any():
            raise SelectionError(
                f"c2 is the mean over cells of age and lag, but none of the {self.number} cells lies inside "
                f"frames {frames[0]} to {frames[1] - 1} with min_lag {min_lag}: widen the selection, or "
                f"correlate with finer cells"
            )

    @property
    def middle(self) -> Int[np.ndarray, "2 cell"]:
        """The frames of t1 and of t2 in the middle of each cell."""
        age, lag = (0.5 * (e[:-1] + e[1:] - 1) for e in (self.age_edges, self.lag_edges))
        of_t = np.stack([(age[:, None] - lag) / 2, (age[:, None] + lag) / 2])
        return np.clip(of_t.reshape(2, -1), 0, self.n_frames - 1).astype(int)

    def of_tile(self, i0: int, j0: int, side: int) -> Int32[np.ndarray, "T T"]:
        """Return the cell of every pair of the tile at frames (i0, j0); `number` where there is none."""
        # along a row i + j and j - i rise by 1: rows are windows of a table, one further on or back each
        first = j0 - i0 - (side - 1) + _MARGIN
        age = sliding_window_view(self._by_sum[i0 + j0 : i0 + j0 + 2 * side - 1], side)
        lag = sliding_window_view(self._by_lag[first : first + 2 * side - 1], side)[::-1]
        cell = age + lag
        cell[:, max(self.n_frames - j0, 0) :] = _NONE
        cell[cell < 0] = self.number
        return cell

    @cached_property
    def _by_sum(self) -> Int32[np.ndarray, " sum"]:
        """First cell of the interval of age of each i + j that tiles have."""
        return _interval(self.age_edges, np.arange(2 * (self.n_frames + _MARGIN)), self.lags)

    @cached_property
    def _by_lag(self) -> Int32[np.ndarray, " lag"]:
        """Interval of each j - i that tiles have, from -_MARGIN on."""
        return _interval(self.lag_edges, np.arange(-_MARGIN, self.n_frames + _MARGIN), 1)


def _interval(
    edges: Int[np.ndarray, " edge"], values: Int[np.ndarray, " v"], step: int
) -> Int32[np.ndarray, " v"]:
    """Return step times the interval of each value, _NONE where it is in none."""
    numbers = np.searchsorted(edges, values, side="right") - 1
    inside = (numbers >= 0) & (numbers < len(edges) - 1)
    return np.where(inside, step * numbers, _NONE).astype(np.int32)
