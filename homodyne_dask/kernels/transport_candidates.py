"""One block of data and many thetas: what χ² needs of each, and no derivative."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Float32, Int

from homodyne_dask.kernels.gram import Gram
from homodyne_dask.kernels.pair_fields import (
    COMPILER,
    DTYPES,
    Data,
    add_at,
    counted,
    field_at_rest,
    fields_of_bin,
    shared,
    waves,
)
from homodyne_dask.kernels.subblocks import sub_blocks, subblock_shape
from homodyne_dask.kernels.transport import Block, TransportPoint, centred, padded_bins
from homodyne_dask.models.transport import Convention

AT_ONCE = 8
"""Thetas of one call; fewer are filled up, so that the kernel is compiled once."""


def transport_candidate_grams(points: Sequence[TransportPoint], block: Block) -> Gram:
    """Return Xᵀ W X over X = [1, y - 1, f] of every bin at up to AT_ONCE points of one problem.

    Moments have the shape (bin, point, 3, 3).
    """
    problem, given = points[0].problem, len(points)
    points = [*points, *[points[-1]] * (AT_ONCE - given)]
    T = block.c2.shape[-1]
    slots, bins = len(block.c2), len(block.q)
    both = [centred(at.rows[-2:], block.i0, block.j0, T, ones=False) for at in points]
    scales = [at.scales(block.q, block.phi) for at in points]
    kC = np.array([of.k[0] * at.rows[-1] for of, at in zip(scales, points, strict=True)])
    cut = sub_blocks(block.i0, block.j0, T, points[0].min_lag, kC, points[0].frames)
    with jax.enable_x64(True):
        moments, pairs = candidates_kernel(
            block.c2,
            np.array([rows for rows, _ in both]),
            np.array([columns for _, columns in both]),
            block.weight_rows,
            block.weight_columns,
            scales[0].k[0],
            np.array([padded_bins(of.s, slots) for of in scales]),
            cut.corners,
            cut.live,
            cut.number,
            given,
            bins,
            block.j0 - block.i0,
            points[0].min_lag,
            shear=problem.model.shear,
            convention=problem.convention,
            precision=problem.precision,
        )
        moments, pairs = np.asarray(moments), np.asarray(pairs)
    return Gram(moments[:bins, :given], pairs[:bins].astype(np.int64))


@partial(jax.jit, static_argnames=("shear", "convention", "precision"), compiler_options=COMPILER)
def candidates_kernel(
    c2: Float32[Array, "slot T T"],
    rows: Float[Array, "point 2 T"],
    columns: Float[Array, "point 2 T"],
    weight_rows: Float[Array, "slot T"],
    weight_columns: Float[Array, "slot T"],
    k: Float[Array, ""],
    s: Float[Array, "point slot"],
    corners: Int[Array, "all 2"],
    live: Int[Array, ""],
    number: Int[Array, ""],
    given: Int[Array, ""],
    bins: Int[Array, ""],
    lag: Int[Array, ""],
    min_lag: Int[Array, ""],
    *,
    shear: bool,
    convention: Convention,
    precision: str,
) -> tuple[Float[Array, "slot point 3 3"], Float[Array, " slot"]]:
    """Return Xᵀ W X of every slot and point, and the pairs of every slot."""
    kind = DTYPES[precision]
    slots, T, _ = c2.shape
    R, S = subblock_shape(T)
    measured = Data(c2, weight_rows, weight_columns)
    trig = jax.vmap(lambda s, r, c: waves(s, r[0], c[0], kind))(s, rows, columns)

    def summed(fields: list[Array], w_i: Array, w_j: Array) -> Array:
        by_row = [(F @ w_j.astype(F.dtype)).astype(jnp.float64) for F in fields]
        return jnp.stack(by_row) @ w_i

    def at_point(index: Array, n: Array, sums: Array) -> Array:
        i, j = corners[index, 0], corners[index, 1]
        here = lax.dynamic_slice(rows, (n, 0, i), (1, 2, R))[0]
        there = lax.dynamic_slice(columns, (n, 0, j), (1, 2, S))[0]
        on = shared(convention, k, here, there, counted(lag, i, j, R, S, min_lag), kind)
        trig_n = jax.tree.map(lambda w: lax.dynamic_index_in_dim(w, n, keepdims=False), trig)

        def one_bin(b: Array, sums: Array) -> Array:
            y, w_i, w_j = measured.of(b, i, j, R, S)
            y = y.astype(kind)
            known = jnp.isfinite(y + on.E)
            if shear:
                f, _ = fields_of_bin(convention, on, s[n, b], trig_n.between(b, i, j, R, S), known)
            else:
                f = field_at_rest(convention, on.E, known)
            f = lax.optimization_barrier(f)
            y = jnp.where(jnp.isfinite(y), y - 1, 0)
            return add_at(sums, summed([f, f * f, f * y], w_i, w_j), (b, n))

        return lax.fori_loop(0, bins, one_bin, sums)

    def sub_block(index: Array, sums: Array) -> Array:
        return lax.fori_loop(0, given, lambda n, sums: at_point(index, n, sums), sums)

    of_f = lax.fori_loop(0, live, sub_block, jnp.zeros((slots, AT_ONCE, 3)))
    data = measured.sums(corners, number, bins, lag, min_lag, R, S)
    f, ff, fy = (of_f[:, :, n] for n in range(3))
    w, wy, wyy = (jnp.broadcast_to(data[:, None, n], f.shape) for n in range(3))
    lines = [jnp.stack(line, axis=-1) for line in ((w, wy, f), (wy, wyy, fy), (f, fy, ff))]
    return jnp.stack(lines, axis=-2), data[:, 3]
