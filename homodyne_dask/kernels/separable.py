"""Models of one's own on the engine: Grams of f and of what JAX differentiates."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Float32, Int

from homodyne_dask.kernels.autodiff import SeparablePoint, Tables, of_pairs, separable_point
from homodyne_dask.kernels.backend import Backend
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.kernels.pair_fields import COMPILER, Data, add_at, counted
from homodyne_dask.kernels.subblocks import subblock_shape
from homodyne_dask.kernels.transport import Block, padded_bins
from homodyne_dask.kernels.transport_robust import lost
from homodyne_dask.models.separable import Bin, SeparableModel

ADEQUATE = 0.3
"""A level is used where over three quarters of its frames f falls by less than this share."""
Bins = Float[np.ndarray, " bin"]


def separable_gram(
    at: SeparablePoint, block: Block, data: Float[np.ndarray, "slot 4"] | None = None
) -> tuple[Gram, Float[np.ndarray, "slot 4"]]:
    """Return the Gram of every bin of the block at a point, and the sums of the data alone."""
    moments, pairs, _ = _sums(at, block, "linear", np.zeros((len(block.q), 2)))
    sums = np.stack([*moments[:, [0, 0, 1], [0, 1, 1]].T, pairs], axis=1)
    bins = len(block.q)
    return Gram(moments[:bins], pairs[:bins].astype(np.int64)), sums


def separable_robust_gram(
    at: SeparablePoint, block: Block, linear_params: Float[np.ndarray, "bin 2"]
) -> Gram:
    """Return the Gram of every bin under the loss of the point's problem; see `robust.block_robust`."""
    moments, pairs, lost = _sums(at, block, at.problem.loss, linear_params)
    row = np.pad(lost, ((0, 0), (0, moments.shape[-1] - lost.shape[1])))
    moments, bins = np.concatenate([moments, row[:, None]], axis=1), len(block.q)
    return Gram(moments[:bins], pairs[:bins].astype(np.int64))


def _sums(
    at: SeparablePoint, block: Block, loss: str, linear_params: Float[np.ndarray, "bin 2"]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return moments, pairs and the row of the loss of every slot."""
    T, bins, slots = block.c2.shape[-1], len(block.q), len(block.c2)
    cut = at.sub_blocks(0.0, block.i0, block.j0, T)
    both = at.tables, at.slopes
    with jax.enable_x64(True):
        moments, lost = _gram(
            block.c2,
            block.weight_rows,
            block.weight_columns,
            at.theta,
            cut_out(both, at.n, block.i0, T),
            cut_out(both, at.n, block.j0, T),
            padded_bins(block.q, slots),
            padded_bins(block.phi, slots),
            cut.corners,
            cut.number,
            bins,
            block.j0 - block.i0,
            at.min_lag,
            np.pad(linear_params, ((0, slots - bins), (0, 0))),
            at.problem.loss_scale,
            model=at.problem.model,
            loss=loss,
        )
        moments, lost = np.asarray(moments), np.asarray(lost)
    return moments, lost[:, -1], lost[:, :-1]


def cut_out(tables: Tables, frames: int, first: int, T: int) -> Tables:
    """Return the tables of T frames; past the end the last frame again: no data are there."""
    some = np.minimum(np.arange(first, first + T), frames - 1)
    return jax.tree.map(lambda values: np.ascontiguousarray(values[..., some]), tables)


@partial(jax.jit, static_argnames=("model", "loss"), compiler_options=COMPILER)
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
    linear_params: Float[Array, "slot 2"],
    scale: Float[Array, ""],
    *,
    model: SeparableModel,
    loss: str,
) -> tuple[Float[Array, "slot m m"], Float[Array, "slot 5"]]:
    """Return Xᵀ W X over X = [1, y - 1, f, ∂f/∂theta], and the row of the loss and the pairs."""
    measured = Data(c2, weight_rows, weight_columns)
    slots, T, _ = c2.shape
    R, S = subblock_shape(T)
    m = len(theta) + 3

    def sub_block(index: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        i, j = corners[index, 0], corners[index, 1]
        here = jax.tree.map(lambda v: lax.dynamic_slice_in_dim(v, i, R, -1)[..., :, None], rows)
        there = jax.tree.map(lambda v: lax.dynamic_slice_in_dim(v, j, S, -1)[..., None, :], columns)
        mask = counted(lag, i, j, R, S, min_lag)

        def one_bin(b: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
            y, w_i, w_j = measured.of(b, i, j, R, S)
            known = jnp.isfinite(y) & mask
            y = y.astype(float) - 1
            f, slopes = of_pairs(model, theta, here, there, Bin(q[b], phi[b]))
            X = jnp.stack([jnp.ones((R, S)), y, jnp.broadcast_to(f, (R, S))])
            X = jnp.concatenate([X, jnp.broadcast_to(slopes, (m - 3, R, S))])
            root = jnp.sqrt(w_i)[:, None] * jnp.sqrt(w_j)
            if loss == "linear":
                pairs = jnp.sum(known, dtype=jnp.int32).astype(float)
                row = jnp.zeros(5).at[4].set(pairs)
            else:
                r = y - linear_params[b, 0] - linear_params[b, 1] * f
                weight, row = lost(loss, scale, known, r, w_i, w_j)
                root = root * jnp.sqrt(weight)
            X = lax.optimization_barrier(jnp.where(known, X * root, 0.0).reshape(m, R * S))
            return add_at(sums[0], X @ X.T, (b,)), add_at(sums[1], row, (b,))

        return lax.fori_loop(0, bins, one_bin, sums)

    return lax.fori_loop(0, number, sub_block, (jnp.zeros((slots, m, m)), jnp.zeros((slots, 5))))


def separable_candidate_grams(points: Sequence[SeparablePoint], block: Block) -> Gram:
    """Return Xᵀ W X over X = [1, y - 1, f] of every bin at some points: moments (bin, point, 3, 3)."""
    grams = [separable_gram(at, block)[0] for at in points]
    moments = np.stack([gram.moments[:, :3, :3] for gram in grams], axis=1)
    return Gram(moments, grams[0].pairs)


def separable_f(
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


def separable_adequate(
    at: SeparablePoint, q: Bins, phi: Bins, frames: tuple[int, int], factor: int
) -> bool:
    """Return whether f falls little enough over `factor` frames for block means to show it."""
    first, stop = frames
    t = np.arange(first, stop - factor, factor)
    if not t.size:
        return False
    near, far = (_by_frame(at, q, phi, t, t + lag) for lag in (1, factor))
    share = np.abs(far - near) / np.maximum(np.abs(near), np.finfo(float).tiny)
    return bool(np.quantile(share, 0.75, axis=1).max() < ADEQUATE)


def separable_correlation_time(
    at: SeparablePoint, q: Bins, phi: Bins, frames: tuple[int, int]
) -> float:
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
    return separable_f(at, np.arange(at.n), q, phi, i, j)


SEPARABLE = Backend(
    separable_point,
    separable_gram,
    separable_robust_gram,
    separable_candidate_grams,
    separable_f,
    separable_adequate,
    separable_correlation_time,
    {"gram": _gram},
)
