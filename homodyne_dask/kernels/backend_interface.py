"""The interface between passes and models: the problem, a block of data, and what a backend provides.

A pass turns blocks into Grams without knowing f. There are two backends: that of `transport_backend`, with
derivatives by hand, and that of `separable_backend`, differentiated by JAX. f itself is an `Evaluation`; that
of transport models, in `transport_evaluation`, does without JAX.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int

from homodyne_dask.kernels.gram import Gram
from homodyne_dask.models import Convention

if TYPE_CHECKING:
    from jax import Array


COMPILATIONS: Counter[str] = Counter(gram=0, candidates=0, robust=0, wide=0, cells=0)
"""How many times this process has compiled the kernels of passes, by name, and '' for others."""
SUM_ROUNDING = {"float64": 10 * float(np.finfo(float).eps), "mixed": 2.0**-25}
"""Accuracy of a sum M_ij over a block in units of √(M_ii M_jj), by precision. In `mixed` values of pairs are
rounded to 2⁻²⁴ of themselves, up and down. Sums of two derivatives are less accurate where f decays within
few of many frames (80 to 320 times at 10 frames of 300, 1600 to 7500 at one). Along the flattest direction of
the Hessian the rounding is nevertheless below what follows from this, in 99 % of 300 random scans and in all
that decay in 5 frames or more.
"""


@dataclass(frozen=True)
class Problem:
    """The model, its options, and which pairs count."""

    model: Any
    """A `Model` whose functions were read (`current`); only its backend depends on its type."""
    convention: Convention = Convention.PHYSICAL
    gap: float | None = None
    """Å."""
    min_lag: int = 1
    """Frames; pairs closer than this are excluded."""
    precision: str = "float64"
    loss: str = "linear"
    loss_scale: float = 1.0
    """Residual above which it costs less than its square, in units of sigma."""

    def __post_init__(self) -> None:
        # kernels are kept by the digest: without it one of a function that has changed would be used again
        assert self.model.digest, (
            f"the functions of {self.model.name} were not read: model.current()"
        )

    @property
    def sum_rounding(self) -> float:
        return SUM_ROUNDING[self.precision]


def coarse_min_lag(min_lag: int, factor: int) -> int:
    """Return the lag in coarse frames from which all fine pairs of a cell are min_lag apart."""
    return min_lag if factor == 1 else -(-(min_lag + factor - 1) // factor)


@dataclass(frozen=True)
class Block:
    """Some bins on one tile, of one shape: padded bins are never read, frames outside are NaN."""

    c2: "Float32[np.ndarray | Array, 'padded T T']"
    """Of NumPy, or of JAX where it was put on a device, which then computes."""
    weight_rows: Float[np.ndarray, "padded T"]
    """1/sigma_row² of the frames of t1."""
    weight_columns: Float[np.ndarray, "padded T"]
    q: Float[np.ndarray, " bin"]
    """1/Å."""
    phi: Float[np.ndarray, " bin"]
    """degree."""
    i0: int
    j0: int
    several_q: bool = False
    """Else all bins have one q, and share what depends on it alone."""

    def padded(self, values: Float[np.ndarray, " bin"]) -> Float[np.ndarray, " padded"]:
        return np.pad(values, (0, len(self.c2) - len(values)))


SUBBLOCK_ROWS, SUBBLOCK_COLUMNS = 128, 64
"""Size of a sub-block: its fields fit the second-level cache, and few masked pairs are computed."""
DECAY_CUTOFF = -np.log(1e-16)
"""k ΔC from which f is below rounding beside 1: Σ w f, Σ w f² and all derivatives vanish there."""


class SubBlocks(NamedTuple):
    offsets: Int[np.ndarray, "all 2"]
    """First row and column of each in the block; padded to all sub-blocks of a block."""
    n_active: int
    """Those in which f has not decayed to zero."""
    n_total: int


def subblock_shape(T: int) -> tuple[int, int]:
    return gcd(SUBBLOCK_ROWS, T), gcd(SUBBLOCK_COLUMNS, T)


def sub_blocks(
    i0: int,
    j0: int,
    T: int,
    min_lag: int,
    kC: Float[np.ndarray, "point n"],
    frames: tuple[int, int],
) -> SubBlocks:
    """Return the sub-blocks of the block at frames (i0, j0); kC is k·C at all frames.

    frames: the first that is selected and the one after the last. With several points, those are
    active that one of them makes so. C never decreases, so that f <= exp(-k ΔC) of the pair of least
    lag, whatever the shear.
    """
    shape = subblock_shape(T)
    offsets = _with_pairs(i0, j0, T, shape, frames, min_lag)
    last_row = np.minimum(i0 + offsets[:, 0] + shape[0], kC.shape[1]) - 1
    active = (kC[:, j0 + offsets[:, 1]] - kC[:, last_row]).min(axis=0) < DECAY_CUTOFF
    table = np.zeros((-(-T // shape[0]) * -(-T // shape[1]), 2), np.int64)
    table[: len(offsets)] = np.concatenate([offsets[active], offsets[~active]])
    return SubBlocks(table, int(active.sum()), len(offsets))


@cache
def _with_pairs(
    i0: int, j0: int, T: int, shape: tuple[int, int], frames: tuple[int, int], min_lag: int
) -> Int[np.ndarray, "some 2"]:
    first, stop = frames
    grid = [(i, j) for i in range(0, T, shape[0]) for j in range(0, T, shape[1])]
    offsets = [
        (i, j)
        for i, j in grid
        if first - shape[0] < i0 + i < stop
        and first - shape[1] < j0 + j < stop
        and j0 + j + shape[1] - 1 - (i0 + i) >= min_lag
    ]
    return np.array(offsets, np.int64).reshape(-1, 2)


MAX_CANDIDATES = 8
"""Thetas of one call of `candidate_grams`; fewer are padded, so that its kernel is compiled once."""


class GramColumns(Enum):
    """The columns of a Gram behind 1 and y - 1."""

    DERIVATIVES = "f and ∂f/∂theta"
    POINTS = "f at several thetas, in a Gram of each"
    CHANGES = "f_0, and f_n - f_0 of the other thetas"


class TileWork(NamedTuple):
    blocks: Sequence[Block]
    data_sums: Sequence[Float[np.ndarray, "padded 4"] | None]
    """The sums of their data."""
    at_once: int
    """Tiles that the program is made for."""
    n_frames: int
    """Of the full resolution."""
    columns: GramColumns
    linear_params: Float[np.ndarray, "bin 2"] | None = None
    """Under a loss."""


@dataclass(frozen=True)
class ModelPoint:
    """A model at one theta, on all frames of a level: made once, used by every block."""

    problem: Problem
    theta: Float[np.ndarray, " p"]
    min_lag: int
    """In frames of the level."""
    frames: tuple[int, int]
    """The first of the level that is selected, and the one after the last."""

    def sub_blocks(self, q: float, i0: int, j0: int, T: int) -> SubBlocks:
        raise NotImplementedError


def of_level(
    problem: Problem, n: int, factor: int, frames: tuple[int, int] | None
) -> tuple[int, tuple[int, int]]:
    """Return min_lag and frames of a `ModelPoint`; frames: of the full resolution, by default all."""
    first, stop = frames or (0, n)
    return coarse_min_lag(problem.min_lag, factor), (-(-first // factor), stop // factor)


class RateCurve(NamedTuple):
    time: Float[np.ndarray, " n"]
    """s; not below half a frame."""
    value: Float[np.ndarray, " n"]
    gradient: Float[np.ndarray, "p n"]
    """By its parameters."""
    parameters: tuple[str, ...]


class PairTimes(NamedTuple):
    """Times of all frames, in s, as f of theta takes them."""

    t: Any
    steps: Any
    """From each to the next, where a model integrates over them."""
    spacing: Any


class PairSet(NamedTuple):
    times: PairTimes
    i: Any
    """(pair)."""
    j: Any
    q: Any
    """(bin) [1/Å]."""
    phi: Any
    """(bin) [degree]."""
    gap: Any
    """Å; 0 where a model has none."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How f of the models of one family is computed: its functions."""

    point: Callable[..., ModelPoint]
    """(problem, theta, time, factor=1, frames=None): times of the full resolution, of which `factor`
    are averaged; frames that are selected, the first and the one after the last, by default all."""
    f_at: Callable[..., Float[np.ndarray, "bin ..."]]
    """(point of the full resolution, time, q, phi, t1, t2): f of any bins at times that broadcast."""
    f_and_derivatives_at: Callable[
        ..., tuple[Float[np.ndarray, "bin ..."], Float[np.ndarray, "bin p ..."]]
    ]
    """The same arguments: f, and its derivatives by theta."""
    rates: Callable[..., dict[str, RateCurve]] | None = None
    """(point of the full resolution, time, frames): J, and with shear gamma_dot and the strain, if any."""
    rates_of_draws: Callable[..., dict[str, Float[np.ndarray, "draw at"]]] | None = None
    """(problem, thetas, time, frames, at): the values of `rates` for many thetas, at some of its points."""
    sign_at: Callable[..., Float[np.ndarray, "bin ..."]] | None = None
    """As f_at: the sign of the field correlation g, f = g²; None for models that are given as f alone."""


@dataclass(frozen=True, kw_only=True)
class Backend(Evaluation):
    """How the models of one family are computed, with their kernels."""

    gram: Callable[..., tuple[Gram, Float[np.ndarray, "padded 4"]]]
    """(point, block, sums or None): the Gram, and the sums of the data alone."""
    robust_gram: Callable[..., Gram]
    """(point, block, linear_params of its bins): the Gram under the loss of the problem."""
    candidate_grams: Callable[..., Gram]
    """(points, block): [1, y - 1, f] at most MAX_CANDIDATES points of one problem."""
    wide_gram: Callable[..., tuple[Gram, Float[np.ndarray, "padded 4"]]]
    """(points, block, sums or None): the wide Gram at any number of points, and the sums of the data."""
    tile_grams: Callable[..., list[tuple[Gram, Float[np.ndarray, "bin 4"]]]]
    """(points, TileWork): the Gram of tiles on a device, and the sums of the data of each."""
    cell_sums: Callable[..., Float[np.ndarray, "padded cell 1+p"]]
    """(point, block, cell of each pair, sums): sums of f and ∂f/∂theta over cells, a block's added."""
    pair_times: Callable[..., PairTimes]
    """(problem, time): the times of a `PairSet`, all of the full resolution."""
    f_of_theta: Callable[..., Any]
    """(theta, pair set, model, convention): f of bins at pairs of frames (bin, pair), for JAX to trace."""
    adequate: Callable[..., bool]
    """(point, q, phi, frames, factor): whether f changes little enough for means over `factor` frames."""
    correlation_time: Callable[..., float]
    """(point, q, phi, frames): frames in which f decays to 1/e at mid-record, median over the bins."""
