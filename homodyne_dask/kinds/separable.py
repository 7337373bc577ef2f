"""Models of one's own on the engine: f and its derivatives by forward-mode differentiation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Float32, Int

from homodyne_dask.gram import Gram
from homodyne_dask.kernel import Block, padded
from homodyne_dask.kinds import Kind
from homodyne_dask.models.own import Bin, SeparableModel
from homodyne_dask.plane import COMPILER, Data, add_at, counted
from homodyne_dask.problem import Problem, coarse_min_lag
from homodyne_dask.subblocks import SubBlocks, shape_in, sub_blocks

RESOLVED = 0.3
"""A level is used where over three quarters of its frames f falls by less than this share."""
Tables = Any
"""Arrays whose last axis is time, as `precompute` nests them."""
Bins = Float[np.ndarray, " bin"]


@dataclass(frozen=True)
class SeparablePoint:
    """What `precompute` gives at one theta, or the times themselves, at all frames of a level."""

    problem: Problem
    theta: Float[np.ndarray, " p"]
    tables: Tables
    slopes: Tables
    """Their derivatives by theta, of shape (p, n); None where they are the times."""
    frames: int
    min_lag: int
    """In frames of the level."""

    def sub_blocks(self, q: float, i0: int, j0: int, T: int) -> SubBlocks:
        """Return the sub-blocks of a block that hold a pair: f may be anything, all are computed."""
        everywhere = np.zeros((1, self.frames))
        return sub_blocks(i0, j0, T, self.min_lag, everywhere)


def point(
    problem: Problem, theta: Float[np.ndarray, " p"], time: Float[np.ndarray, " n"], factor: int = 1
) -> SeparablePoint:
    """Return the tables at theta; `time` holds all frame times of the full resolution [s].

    With factor frames averaged into one, as the data of a level are, so are the tables.
    """
    model = problem.model
    assert isinstance(model, SeparableModel)
    theta, m = np.asarray(theta, float), len(time) // factor

    def averaged(values: Array) -> np.ndarray:
        kept = np.asarray(values)[..., : m * factor]
        return kept.reshape(*kept.shape[:-1], m, factor).mean(axis=-1)

    with jax.enable_x64(True):
        tables, slopes = _tables(theta, np.asarray(time, float), model=model)
        tables, slopes = jax.tree.map(averaged, (tables, slopes))
    return SeparablePoint(
        problem, theta, tables, slopes, m, coarse_min_lag(problem.min_lag, factor)
    )


@partial(jax.jit, static_argnames=("model",))
def _tables(theta: Array, time: Array, *, model: SeparableModel) -> tuple[Tables, Tables]:
    """Return what `precompute` gives, and its derivatives by theta."""
    precompute = model.precompute
    if precompute is None:
        return time, None
    return along(lambda theta: precompute(theta, time), theta)


def along(f: Callable[..., Any], theta: Float[Array, " p"], *more: Any) -> tuple[Any, Any]:
    """Return f(theta, ...) and its derivatives by theta, those on a new first axis.

    more: pairs (value, slopes) of further arguments that follow theta. What is not linear is
    computed once for all derivatives.
    """
    values, slopes = [value for value, _ in more], [slope for _, slope in more]
    found, tangent = jax.linearize(f, theta, *values)
    return found, jax.vmap(tangent)(jnp.eye(len(theta)), *slopes)


def of_pairs(
    model: SeparableModel, theta: Array, here: tuple[Tables, Tables], there: tuple[Tables, Tables],
    bin: Bin,
) -> tuple[Float[Array, "..."], Float[Array, "p ..."]]:  # fmt: skip
    """Return f and its derivatives from tables and slopes at t1 (here) and t2, which broadcast."""

    def f(theta: Array, t1: Tables, t2: Tables) -> Array:
        return jnp.asarray(model.f(theta, t1, t2, bin), float)

    if model.precompute is None:
        return along(lambda theta: f(theta, here[0], there[0]), theta)
    return along(f, theta, here, there)


def block_gram(
    at: SeparablePoint, block: Block, data: Float[np.ndarray, "slot 4"] | None = None
) -> tuple[Gram, Float[np.ndarray, "slot 4"]]:
    """Return the Gram of every bin of the block at a point, and the sums of the data alone."""
    T, bins, slots = block.c2.shape[-1], len(block.q), len(block.c2)
    cut = at.sub_blocks(0.0, block.i0, block.j0, T)
    both = at.tables, at.slopes
    with jax.enable_x64(True):
        moments, pairs = _gram(
            block.c2,
            block.weight_rows,
            block.weight_columns,
            at.theta,
            cut_out(both, at.frames, block.i0, T),
            cut_out(both, at.frames, block.j0, T),
            padded(block.q, slots),
            padded(block.phi, slots),
            cut.corners,
            cut.number,
            bins,
            block.j0 - block.i0,
            at.min_lag,
            model=at.problem.model,
        )
        moments, pairs = np.asarray(moments), np.asarray(pairs)
    sums = np.stack([*moments[:, [0, 0, 1], [0, 1, 1]].T, pairs], axis=1)
    return Gram(moments[:bins], pairs[:bins].astype(np.int64)), sums


def cut_out(tables: Tables, frames: int, first: int, T: int) -> Tables:
    """Return the tables of T frames; past the end the last frame again: no data are there."""
    some = np.minimum(np.arange(first, first + T), frames - 1)
    return jax.tree.map(lambda values: np.ascontiguousarray(values[..., some]), tables)


@partial(jax.jit, static_argnames=("model",), compiler_options=COMPILER)
def _gram(
    c2: Float32[Array, "slot T T"],
    weight_rows: Float[Array, "slot T"],
    weight_columns: Float[Array, "slot T"],
    theta: Float[Array, " p"],
    rows: tuple[Tables, Tables],
    columns: tuple[Tables, Tables],
    q: Float[Array, " slot"],
    phi: Float[Array, " slot"],
    corners: Int[Array, "all 2"],
    number: Int[Array, ""],
    bins: Int[Array, ""],
    lag: Int[Array, ""],
    min_lag: Int[Array, ""],
    *,
    model: SeparableModel,
) -> tuple[Float[Array, "slot m m"], Float[Array, " slot"]]:
    """Return Xᵀ W X over X = [1, y - 1, f, ∂f/∂theta] and the pairs of every slot."""
    measured = Data(c2, weight_rows, weight_columns)
    slots, T, _ = c2.shape
    R, S = shape_in(T)
    m = len(theta) + 3

    def sub_block(index: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        i, j = corners[index, 0], corners[index, 1]
        here = jax.tree.map(lambda v: lax.dynamic_slice_in_dim(v, i, R, -1)[..., :, None], rows)
        there = jax.tree.map(lambda v: lax.dynamic_slice_in_dim(v, j, S, -1)[..., None, :], columns)
        mask = counted(lag, i, j, R, S, min_lag)

        def one_bin(b: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
            y, w_i, w_j = measured.of(b, i, j, R, S)
            known = jnp.isfinite(y) & mask
            f, slopes = of_pairs(model, theta, here, there, Bin(q[b], phi[b]))
            first = jnp.stack([jnp.ones((R, S)), y.astype(float) - 1, jnp.broadcast_to(f, (R, S))])
            X = jnp.concatenate([first, jnp.broadcast_to(slopes, (m - 3, R, S))])
            X = jnp.where(known, X * jnp.sqrt(w_i)[:, None] * jnp.sqrt(w_j), 0.0)
            X = lax.optimization_barrier(X.reshape(m, R * S))
            pairs = jnp.sum(known, dtype=jnp.int32).astype(float)
            return add_at(sums[0], X @ X.T, (b,)), add_at(sums[1], pairs, (b,))

        return lax.fori_loop(0, bins, one_bin, sums)

    return lax.fori_loop(0, number, sub_block, (jnp.zeros((slots, m, m)), jnp.zeros(slots)))


def block_candidates(points: Sequence[SeparablePoint], block: Block) -> Gram:
    """Return Xᵀ W X over X = [1, y - 1, f] of every bin at some points: moments (bin, point, 3, 3)."""
    grams = [block_gram(at, block)[0] for at in points]
    moments = np.stack([gram.moments[:, :3, :3] for gram in grams], axis=1)
    return Gram(moments, grams[0].pairs)


def shape(
    at: SeparablePoint, time: np.ndarray, q: Bins, phi: Bins, t1: np.ndarray, t2: np.ndarray
) -> Float[np.ndarray, "bin ..."]:
    """Return f of bins at times that broadcast together; between frames tables are linear."""
    first, second = np.minimum(t1, t2), np.maximum(t1, t2)

    def tables_at(times: np.ndarray) -> Tables:
        return jax.tree.map(lambda values: np.interp(times, time, values), at.tables)

    there = tables_at(first), tables_at(second)
    with jax.enable_x64(True):
        of_bins = [
            _shape(at.theta, *there, Bin(*one), model=at.problem.model)
            for one in zip(q, phi, strict=True)
        ]
        return np.stack([np.broadcast_to(f, first.shape) for f in of_bins])


@partial(jax.jit, static_argnames=("model",))
def _shape(theta: Array, t1: Tables, t2: Tables, bin: Bin, *, model: SeparableModel) -> Array:
    return jnp.asarray(model.f(theta, t1, t2, bin), float)


def resolved(at: SeparablePoint, q: Bins, phi: Bins, frames: tuple[int, int], factor: int) -> bool:
    """Return whether f falls little enough over `factor` frames for block means to show it."""
    first, stop = frames
    t = np.arange(first, stop - factor, factor)
    if not t.size:
        return False
    near, far = (_by_frame(at, q, phi, t, t + lag) for lag in (1, factor))
    share = np.abs(far - near) / np.maximum(np.abs(near), np.finfo(float).tiny)
    return bool(np.quantile(share, 0.75, axis=1).max() < RESOLVED)


def memory(at: SeparablePoint, q: Bins, phi: Bins, frames: tuple[int, int]) -> float:
    """Return after how many frames f is down to 1/e, in the middle of the record and of the bins."""
    first, stop = frames
    middle = (first + stop) // 2
    lags = np.arange(1, stop - middle)
    if not lags.size:
        return 1.0
    f = np.abs(_by_frame(at, q, phi, np.array([middle]), middle + lags))
    gone = np.flatnonzero(
        np.median(f / np.maximum(f[:, :1], np.finfo(float).tiny), axis=0) < np.exp(-1)
    )
    return float(lags[gone[0]]) if len(gone) else float(stop - middle)


def _by_frame(at: SeparablePoint, q: Bins, phi: Bins, i: np.ndarray, j: np.ndarray) -> np.ndarray:
    """Return f of bins at pairs of frames, counted in frames instead of seconds."""
    return shape(at, np.arange(at.frames), q, phi, i, j)


def compilations() -> dict[str, int]:
    """Return how many times this process has compiled each kernel."""
    return {"gram": _gram._cache_size(), "candidates": 0}  # pyright: ignore[reportAttributeAccessIssue]


SEPARABLE = Kind(point, block_gram, block_candidates, shape, resolved, memory, compilations)
