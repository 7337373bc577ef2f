"""The backend of user-defined models: Grams of f and of its derivatives, which JAX takes in forward mode."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float, Int

from homodyne_dask.kernels.backend_interface import (
    Backend,
    Block,
    GramColumns,
    ModelPoint,
    PairSet,
    PairTimes,
    Problem,
    RateCurve,
    SubBlocks,
    TileWork,
    of_level,
    sub_blocks,
)
from homodyne_dask.kernels.block_sums import (
    AtFrames,
    BinPairs,
    MeasuredBlock,
    SubBlock,
    cells_kernel,
    grams_of_tiles,
    known_sums,
    measured_block,
    of_bins,
    under_loss,
    wide_kernel,
)
from homodyne_dask.kernels.compiled import kernel, plain_kernel
from homodyne_dask.kernels.devices import computed, float64_on_cpu
from homodyne_dask.kernels.gram import DataSums, Gram, LinearParams
from homodyne_dask.kernels.losses import robust_terms
from homodyne_dask.models.derived_models import Ties
from homodyne_dask.models.transport import Convention, frame_spacing, positive_times
from homodyne_dask.models.user_defined import Bin, SeparableModel

OfPairs = Float[np.ndarray, "bin ..."]
Bins = Float[np.ndarray, " bin"]
MAX_CHANGE_PER_CELL = 0.3
"""A level is used if, over three quarters of its frames, f falls by less than this fraction."""
FEW_TIMES, MANY_TIMES = 512, 65536
"""Pairs of times at which f is evaluated at once."""
Tables = Any
"""Arrays whose last axis is time, as `precompute` nests them."""


@dataclass(frozen=True)
class SeparablePoint(ModelPoint):
    tables: Tables
    derivatives: Tables
    """By theta, of shape (p, n); None of times."""
    n: int

    @property
    def family(self) -> "SeparableFamily":
        return SeparableFamily(self.problem.model)

    def sub_blocks(self, q: float, i0: int, j0: int, T: int) -> SubBlocks:
        everywhere = np.zeros((1, self.n))  # nothing is known of f
        return sub_blocks(i0, j0, T, self.min_lag, everywhere, self.frames)


def bin_argument(problem: Problem, q: Any, phi: Any) -> Bin:
    return Bin(q, phi, np.full(np.shape(q), np.nan if problem.gap is None else problem.gap))


def separable_point(
    problem: Problem,
    theta: Float[np.ndarray, " p"],
    time: Float[np.ndarray, " n"],
    factor: int = 1,
    frames: tuple[int, int] | None = None,
) -> SeparablePoint:
    """Return the tables at theta, averaged over factor frames as data of a level are. time: of all [s]."""
    model = problem.model
    assert isinstance(model, SeparableModel)
    theta, m = np.asarray(theta, float), len(time) // factor

    def averaged(values: Array) -> np.ndarray:
        whole_cells = np.asarray(values)[..., : m * factor]
        return whole_cells.reshape(*whole_cells.shape[:-1], m, factor).mean(axis=-1)

    with float64_on_cpu():
        tables, derivatives = _tables(theta, np.asarray(time, float), model=model)
        tables, derivatives = jax.tree.map(averaged, (tables, derivatives))
    level = of_level(problem, len(time), factor, frames)
    return SeparablePoint(problem, theta, *level, tables, derivatives, m)


@plain_kernel("model")
def _tables(theta: Array, time: Array, *, model: SeparableModel) -> tuple[Tables, Tables]:
    if model.precompute is None:
        return time, None
    return with_derivatives(lambda theta: tables_of(model, theta, time), theta)


def tables_of(model: SeparableModel, theta: Array, time: Array) -> Tables:
    return time if model.precompute is None else model.precompute(theta, time)


def with_derivatives(
    f: Callable[..., Any], theta: Float[Array, " p"], *values_and_derivatives: Any
) -> tuple[Any, Any]:
    """Return f(theta, ...) and its derivatives by theta on a first axis; of values that depend on it."""
    values = [value for value, _ in values_and_derivatives]
    derivatives = [derivative for _, derivative in values_and_derivatives]
    # not `jax.jacfwd`: tables come with derivatives of their own, and the value is needed, too
    value, tangent = jax.linearize(f, theta, *values)
    return value, jax.vmap(tangent)(jnp.eye(len(theta)), *derivatives)


def f_of(
    model: SeparableModel, theta: Array, t1: Tables, t2: Tables, bin: Bin, shape: tuple[int, ...]
) -> Float[Array, "..."]:
    return jnp.broadcast_to(jnp.asarray(model.f(theta, t1, t2, bin), float), shape)


def f_with_derivatives(
    model: SeparableModel, theta: Array, at_t1: tuple[Tables, Tables], at_t2: tuple[Tables, Tables],
    bin: Bin, shape: tuple[int, ...],
) -> tuple[Float[Array, "..."], Float[Array, "p ..."]]:  # fmt: skip
    """Return f of this shape and its derivatives from tables and their derivatives at t1 and t2."""
    if model.precompute is None:
        return with_derivatives(
            lambda theta: f_of(model, theta, at_t1[0], at_t2[0], bin, shape), theta
        )
    return with_derivatives(
        lambda theta, t1, t2: f_of(model, theta, t1, t2, bin, shape), theta, at_t1, at_t2
    )


def of_frames(tables: Tables, frames: int, first: int, T: int) -> Tables:
    """Return the tables of T frames; past the end the last frame is repeated, where there are no data."""
    numbers = np.minimum(np.arange(first, first + T), frames - 1)
    return jax.tree.map(lambda values: np.ascontiguousarray(values[..., numbers]), tables)


def at_times(tables: Tables, time: Float[np.ndarray, " n"], t: Float[np.ndarray, " m"]) -> Tables:
    return jax.tree.map(lambda v: np.apply_along_axis(partial(np.interp, t, time), -1, v), tables)


def sides_of[T](rows: T, columns: T, sub_block: SubBlock) -> tuple[T, T]:
    R, S = sub_block.counted.shape
    return (
        jax.tree.map(lambda v: lax.dynamic_slice_in_dim(v, sub_block.i, R, -1)[..., :, None], rows),
        jax.tree.map(
            lambda v: lax.dynamic_slice_in_dim(v, sub_block.j, S, -1)[..., None, :], columns
        ),
    )


def slopes_of_ties(ties: Ties, theta: Float[np.ndarray, " m"]) -> Float[np.ndarray, "p m"]:
    with float64_on_cpu():
        return np.asarray(_slopes_of_ties(np.asarray(theta, float), ties=ties))


@plain_kernel("ties")
def _slopes_of_ties(theta: Float[Array, " m"], *, ties: Ties) -> Float[Array, "p m"]:
    return jax.jacfwd(ties.expand)(theta)


def rates_of_splines(
    point: SeparablePoint, time: Float[np.ndarray, " n"], frames: tuple[int, int]
) -> dict[str, RateCurve]:
    """Return the rate [1/s] of a model of free form at the selected frames: its `rates`."""
    model, t = point.problem.model, positive_times(time, frame_spacing(time))[slice(*frames)]
    place, basis = model.places[model.curve], model.form.basis(t)
    return {model.curve: RateCurve(t, point.theta[place] @ basis, basis, model.names[place])}


class SeparableTables(NamedTuple):
    """theta, or several, and the tables along a block's rows and columns, with their derivatives at one."""

    theta: Float[Any, "*point p"]
    rows: Tables
    columns: Tables
    bins: Bin


type Sides = tuple[Tables, Tables]


@dataclass(frozen=True)
class SeparableColumns:
    """f and ∂f/∂theta by JAX: a `block_sums.Columns`."""

    model: SeparableModel
    tables: SeparableTables

    def shared(self, sub_block: SubBlock) -> Sides:
        return sides_of(self.tables.rows, self.tables.columns, sub_block)

    def of_bin(self, sides: Sides, pairs: BinPairs, measured: Bool[Array, "R S"]) -> list[Array]:
        bin, theta = self.tables.bins.some(pairs.bin), self.tables.theta
        f, derivatives = f_with_derivatives(self.model, theta, *sides, bin, measured.shape)
        return [f[None], derivatives]


class SeparableAtPoints(SeparableColumns):
    def of_bin(self, sides: Sides, pairs: BinPairs, measured: Bool[Array, "R S"]) -> list[Array]:
        bin = self.tables.bins.some(pairs.bin)

        def at_point(theta: Array, t1: Tables, t2: Tables) -> Array:
            return jnp.where(measured, f_of(self.model, theta, t1, t2, bin, measured.shape), 0.0)

        return [jax.vmap(at_point)(self.tables.theta, *sides)]


@dataclass(frozen=True)
class SeparableFamily:
    """The model that one kernel is compiled for: a `block_sums.Family`."""

    model: SeparableModel
    dtype, finite = jnp.float64, False

    def at_points(self, tables: SeparableTables) -> SeparableColumns:
        return SeparableAtPoints(self.model, tables)

    def at_theta(self, tables: SeparableTables) -> SeparableColumns:
        return SeparableColumns(self.model, tables)

    def of_tile(
        self, at_frames: AtFrames, rows: Int[Array, " R"], columns: Int[Array, " S"]
    ) -> SeparableTables:
        at_rows, at_columns = (
            jax.tree.map(partial(jnp.take, indices=n, axis=-1, mode="clip"), at_frames.tables)
            for n in (rows, columns)
        )
        bins = Bin(*(values[None] for values in at_frames.of_bin))
        return SeparableTables(at_frames.common, at_rows, at_columns, bins)


@kernel("family", "loss")
def separable_kernel(
    block: MeasuredBlock,
    tables: SeparableTables,
    linear_params: Float[Array, "padded 2"],
    scale: Float[Array, ""],
    *,
    family: SeparableFamily,
    loss: str,
) -> tuple[Float[Array, "padded m m"], Float[Array, "padded 5"]]:
    """Return Xᵀ W X over X = [1, y - 1, f, ∂f/∂theta], and the sums of the loss with the pairs."""
    m, columns = len(tables.theta) + 3, family.at_theta(tables)

    def add(sums: tuple[Array, Array], sides: Sides, pairs: BinPairs) -> tuple[Array, Array]:
        b, w_i, w_j, shape = pairs.bin, pairs.w_i, pairs.w_j, pairs.c2.shape
        measured = jnp.isfinite(pairs.c2) & pairs.sub_block.counted
        y = pairs.c2.astype(float) - 1
        values = jnp.concatenate(columns.of_bin(sides, pairs, measured))
        X = jnp.concatenate([jnp.ones((1, *shape)), y[None], values])
        root = jnp.sqrt(w_i)[:, None] * jnp.sqrt(w_j)
        if loss == "linear":
            row = jnp.zeros(5).at[4].set(jnp.sum(measured, dtype=jnp.int32).astype(float))
        else:
            r = y - linear_params[b, 0] - linear_params[b, 1] * values[0]
            weight, row = robust_terms(loss, scale, measured, r, w_i, w_j)
            root = root * jnp.sqrt(weight)
        X = lax.optimization_barrier(jnp.where(measured, X * root, 0.0).reshape(m, measured.size))
        return pairs.add_to(sums[0], X @ X.T), pairs.add_to(sums[1], row)

    start = jnp.zeros((len(block.c2), m, m)), jnp.zeros((len(block.c2), 5))
    return block.summed((0, block.n_total), start, columns.shared, add)


def _arguments(
    point: SeparablePoint, block: Block, theta: np.ndarray, tables: Tables
) -> tuple[MeasuredBlock, SeparableTables]:
    """Return the arguments of kernels at one theta, or several; tables: at all frames."""
    T = block.c2.shape[-1]
    cut = point.sub_blocks(0.0, block.i0, block.j0, T)
    rows, columns = (of_frames(tables, point.n, first, T) for first in (block.i0, block.j0))
    bins = bin_argument(point.problem, block.padded(block.q), block.padded(block.phi))
    return measured_block(block, cut, point.min_lag), SeparableTables(theta, rows, columns, bins)


def _sums(
    point: SeparablePoint, block: Block, loss: str, linear_params: LinearParams
) -> list[np.ndarray]:
    padded = np.stack([block.padded(values) for values in linear_params.T], axis=1)
    arguments = *_arguments(point, block, point.theta, (point.tables, point.derivatives)), padded
    scale = point.problem.loss_scale
    return computed(separable_kernel, *arguments, scale, family=point.family, loss=loss)


def gram(
    point: SeparablePoint, block: Block, data: DataSums | None = None
) -> tuple[Gram, DataSums]:
    moments, loss = _sums(point, block, "linear", np.zeros((len(block.q), 2)))
    sums = np.stack([*moments[:, [0, 0, 1], [0, 1, 1]].T, loss[:, -1]], axis=1)
    return of_bins(block, moments, sums)


def robust_gram(point: SeparablePoint, block: Block, linear_params: LinearParams) -> Gram:
    return under_loss(block, *_sums(point, block, point.problem.loss, linear_params))


def candidate_grams(points: Sequence[SeparablePoint], block: Block) -> Gram:
    # with derivatives: a kernel of three columns would save less than its compilation takes
    grams = [gram(point, block)[0] for point in points]
    moments = np.stack([gram.moments[:, :3, :3] for gram in grams], axis=1)
    return Gram(moments, grams[0].pairs)


def wide_gram(
    points: Sequence[SeparablePoint], block: Block, data: DataSums | None
) -> tuple[Gram, DataSums]:
    arguments = *_arguments(points[0], block, *_of_points(points)), *known_sums(block, data)
    return of_bins(block, *computed(wide_kernel, *arguments, family=points[0].family))


def _of_points(points: Sequence[SeparablePoint]) -> tuple[np.ndarray, Tables]:
    tables: Tables = jax.tree.map(
        lambda *values: np.stack(values), *(point.tables for point in points)
    )
    return np.stack([point.theta for point in points]), tables


def tile_grams(
    points: Sequence[SeparablePoint], work: TileWork
) -> list[tuple[Gram, Float[np.ndarray, "bin 4"]]]:
    first, block = points[0], work.blocks[0]
    theta, tables, columns = first.theta, (first.tables, first.derivatives), len(first.theta) + 3
    if work.columns is not GramColumns.DERIVATIVES:
        (theta, tables), columns = _of_points(points), len(points) + 2
    frames = AtFrames(tables, theta, bin_argument(first.problem, block.q, block.phi))
    return grams_of_tiles(first.family, frames, columns, first.problem, first.min_lag, work)


def cell_sums(
    point: SeparablePoint,
    block: Block,
    cell: Int[np.ndarray, "T T"],
    sums: Float[np.ndarray, "padded cell m"],
) -> Float[np.ndarray, "padded cell m"]:
    arguments = _arguments(point, block, point.theta, (point.tables, point.derivatives))
    return computed(cells_kernel, *arguments, cell, sums, family=point.family)[0]


def pair_times(problem: Problem, time: np.ndarray) -> PairTimes:
    return PairTimes(time, np.empty(0), 0.0)


def f_of_theta(
    theta: Float[Array, " p"], pairs: PairSet, model: SeparableModel, convention: Convention
) -> Array:
    tables = tables_of(model, theta, pairs.times.t)
    t1 = jax.tree.map(lambda v: jnp.asarray(v)[..., pairs.i], tables)
    t2 = jax.tree.map(lambda v: jnp.asarray(v)[..., pairs.j], tables)

    def of_bin(q: Array, phi: Array) -> Array:
        return f_of(model, theta, t1, t2, Bin(q, phi, pairs.gap), pairs.i.shape)

    return jax.vmap(of_bin)(jnp.asarray(pairs.q), jnp.asarray(pairs.phi))


def f_at(
    point: SeparablePoint, time: np.ndarray, q: Bins, phi: Bins, t1: np.ndarray, t2: np.ndarray
) -> OfPairs:
    """Return f of bins at times that broadcast, 1 at one time; between frames tables are linear."""
    return _evaluated(1, point, (point.tables, None), time, q, phi, t1, t2)[:, 0]


def f_and_derivatives_at(
    point: SeparablePoint, time: np.ndarray, q: Bins, phi: Bins, t1: np.ndarray, t2: np.ndarray
) -> tuple[OfPairs, Float[np.ndarray, "bin p ..."]]:
    """As f_at; a derivative that is no number where both times are one, as of a power of the lag, is 0."""
    tables, rows = (point.tables, point.derivatives), 1 + len(point.theta)
    values = _evaluated(rows, point, tables, time, q, phi, t1, t2)
    one_time = np.broadcast_to(np.equal(t1, t2), values.shape[2:])
    values[:, 1:, one_time] = np.nan_to_num(
        values[:, 1:, one_time], nan=0.0, posinf=0.0, neginf=0.0
    )
    return values[:, 0], values[:, 1:]


def _evaluated(
    rows: int, point: SeparablePoint, tables: Tables, time: np.ndarray,
    q: Bins, phi: Bins, t1: np.ndarray, t2: np.ndarray,
) -> Float[np.ndarray, "bin row ..."]:  # fmt: skip
    """Return f and so many rows less one of derivatives, in parts of two sizes, each compiled once."""
    shape = np.broadcast_shapes(np.shape(t1), np.shape(t2))
    values_of_bins = np.empty((len(q), rows, int(np.prod(shape))))
    one_time = np.broadcast_to(np.equal(t1, t2) & point.problem.model.ordered_times, shape)
    if one_time.any():  # any other pair instead
        t1, t2 = (np.where(one_time, time[n], t) for n, t in ((0, t1), (1, t2)))
    model, slopes = point.problem.model, rows > 1
    for places, sides in _parts(tables, time, t1, t2):
        values_of_part = values_of_bins[:, :, places]
        for b, bin in enumerate(zip(q, phi, strict=True)):
            of_bin = point.theta, *sides, bin_argument(point.problem, *bin)
            with float64_on_cpu():
                values = np.asarray(_values(*of_bin, model=model, slopes=slopes))
            values_of_part[b] = values[:, : values_of_part.shape[2]]
    values_of_bins[:, :, one_time.ravel()] = np.eye(rows, 1)
    return values_of_bins.reshape(len(q), rows, *shape)


def _parts(
    tables: Tables, time: np.ndarray, t1: np.ndarray, t2: np.ndarray
) -> Iterator[tuple[slice, list[Tables]]]:
    """Yield parts of all times, of one of two sizes, with the tables at the earlier and the later ones."""
    ordered = np.broadcast_arrays(np.minimum(t1, t2), np.maximum(t1, t2))
    earlier, later = (times.ravel() for times in ordered)
    size = MANY_TIMES if earlier.size > 16 * FEW_TIMES else FEW_TIMES

    for n in range(0, earlier.size, size):
        # the last one is repeated
        numbers = np.minimum(np.arange(n, n + size), earlier.size - 1)
        yield (
            slice(n, n + size),
            [at_times(tables, time, times[numbers]) for times in (earlier, later)],
        )


@plain_kernel("model", "slopes")
def _values(
    theta: Array, t1: tuple[Tables, Tables], t2: tuple[Tables, Tables], bin: Bin, *,
    model: SeparableModel, slopes: bool,
) -> Float[Array, "row time"]:  # fmt: skip
    times = jax.tree.leaves(t1)[0].shape[-1:]
    if not slopes:
        return f_of(model, theta, t1[0], t2[0], bin, times)[None]
    f, derivatives = f_with_derivatives(model, theta, t1, t2, bin, times)
    return jnp.concatenate([f[None], derivatives])


def adequate(
    point: SeparablePoint, q: Bins, phi: Bins, frames: tuple[int, int], factor: int
) -> bool:
    first, stop = frames
    t = np.arange(first, stop - factor, factor)
    if not t.size:
        return False
    # of fringes, a whole turn over `factor` frames is none between its ends
    near, *far = (_by_frame(point, q, phi, t, t + lag) for lag in range(1, factor + 1))
    share = np.abs(np.array(far) - near).max(0) / np.maximum(np.abs(near), np.finfo(float).tiny)
    return bool(np.quantile(share, 0.75, axis=1).max() < MAX_CHANGE_PER_CELL)


def correlation_time(point: SeparablePoint, q: Bins, phi: Bins, frames: tuple[int, int]) -> float:
    first, stop = frames
    middle = (first + stop) // 2
    lags = np.arange(1, stop - middle)
    if not lags.size:
        return 1.0
    f = np.abs(_by_frame(point, q, phi, np.array([middle]), middle + lags))
    share = np.median(f / np.maximum(f[:, :1], np.finfo(float).tiny), axis=0)
    decayed = np.flatnonzero(share < np.exp(-1))
    return float(lags[decayed[0]]) if len(decayed) else float(stop - middle)


def _by_frame(
    point: SeparablePoint, q: Bins, phi: Bins, i: np.ndarray, j: np.ndarray
) -> np.ndarray:
    """Return f of bins at pairs of frames, counted in frames instead of seconds."""
    return f_at(point, np.arange(point.n), q, phi, i, j)


SEPARABLE = Backend(
    point=separable_point,
    f_at=f_at,
    f_and_derivatives_at=f_and_derivatives_at,
    gram=gram,
    robust_gram=robust_gram,
    candidate_grams=candidate_grams,
    wide_gram=wide_gram,
    tile_grams=tile_grams,
    cell_sums=cell_sums,
    pair_times=pair_times,
    f_of_theta=f_of_theta,
    adequate=adequate,
    correlation_time=correlation_time,
)
SPLINE_RATE = replace(SEPARABLE, rates=rates_of_splines)
