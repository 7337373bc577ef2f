"""One block of data at one theta, contrast and offset: the Gram of what a loss leaves of each pair.

A residual of r standard deviations costs scale²·ρ(z), z = (r/scale)², instead of r², and its pair
weighs ρ'(z)/sigma² in the Gram (Holland and Welsch 1977). Names and ρ are those of
scipy.optimize.least_squares. The weights need contrast and offset, so both are given; and where
nothing is left of f the residual still counts, so that no sub-block is skipped.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float, Float32, Int

from homodyne_dask.kernels.assembly import SHEAR_FIELDS, STATIC_FIELDS, PlaneSums
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.kernels.pair_fields import (
    COMPILER,
    Data,
    add_at,
    counted,
    field_at_rest,
    fields_of_bin,
    shared,
    waves,
)
from homodyne_dask.kernels.subblocks import subblock_shape
from homodyne_dask.kernels.transport import Block, TransportPoint, arguments, padded_bins
from homodyne_dask.models.transport import Convention


def huber(z: Array) -> tuple[Array, Array, Array]:
    """Return ρ: z below 1, 2√z - 1 beyond; ρ', and ρ' + 2zρ'', the slope of the influence."""
    far = z > 1
    root = jnp.sqrt(jnp.where(far, z, 1))
    return jnp.where(far, 2 * root - 1, z), 1 / root, jnp.where(far, 0, jnp.ones_like(z))


def soft_l1(z: Array) -> tuple[Array, Array, Array]:
    """Return ρ = 2(√(1 + z) - 1), ρ' and ρ' + 2zρ''."""
    root = jnp.sqrt(1 + z)
    weight = 1 / root
    return 2 * z / (root + 1), weight, weight / (1 + z)


def cauchy(z: Array) -> tuple[Array, Array, Array]:
    """Return ρ = ln(1 + z), ρ' and ρ' + 2zρ''."""
    weight = 1 / (1 + z)
    return jnp.log1p(z), weight, (1 - z) * weight**2


_LOSSES = {"huber": huber, "soft_l1": soft_l1, "cauchy": cauchy}


def lost(
    loss: str,
    scale: Float[Array, ""],
    known: Bool[Array, "i j"],
    r: Float[Array, "i j"],
    w_i: Float[Array, " i"],
    w_j: Float[Array, " j"],
) -> tuple[Float[Array, "i j"], Float[Array, " 5"]]:
    """Return ρ' of every pair, 0 where it does not count, and the row of the loss and the pairs."""
    ones = jnp.ones(len(w_j))
    z = jnp.where(known, r * r, 0) * w_i[:, None] * (w_j / scale**2)[None, :]
    cost, weight, slope = _LOSSES[loss](z)
    terms = cost, weight, slope, z * weight * weight
    summed = [jnp.where(known, term, 0) @ ones for term in terms]
    row = jnp.stack([part.sum() for part in [*summed, known @ ones]])
    return jnp.where(known, weight, 0), row * jnp.array([scale**2, 1, 1, scale**2, 1])


def transport_robust_gram(
    at: TransportPoint, block: Block, linear_params: Float[np.ndarray, "bin 2"]
) -> Gram:
    """Return the Gram of every bin of the block under the loss of the point's problem.

    beta: (offset - 1, contrast) of the bins. Moments have the shape (bin, k + 1, k): Xᵀ W X with
    the weights ρ'/sigma², and a last row that begins with Σ scale²·ρ, Σ ρ', Σ (ρ' + 2zρ'') and
    Σ r²ρ'², r in units of sigma.
    """
    problem, (slots, bins) = at.problem, (len(block.c2), len(block.q))
    given = arguments(at, block)[:14]
    with jax.enable_x64(True):
        moments, pairs = robust_kernel(
            *given, *(padded_bins(values, slots) for values in linear_params.T), problem.loss_scale,
            shear=problem.model.shear, convention=problem.convention,
            loss=problem.loss,
        )  # fmt: skip
        moments, pairs = np.asarray(moments), np.asarray(pairs)
    return Gram(moments[:bins], pairs[:bins].astype(np.int64))


@partial(jax.jit, static_argnames=("shear", "convention", "loss"), compiler_options=COMPILER)
def robust_kernel(
    c2: Float32[Array, "slot T T"],
    rows: Float[Array, "rows T"],
    columns: Float[Array, "rows T"],
    weight_rows: Float[Array, "slot T"],
    weight_columns: Float[Array, "slot T"],
    k: Float[Array, ""],
    s: Float[Array, " slot"],
    ds: Float[Array, " slot"],
    corners: Int[Array, "all 2"],
    live: Int[Array, ""],
    number: Int[Array, ""],
    bins: Int[Array, ""],
    lag: Int[Array, ""],
    min_lag: Int[Array, ""],
    offset: Float[Array, " slot"],
    contrast: Float[Array, " slot"],
    scale: Float[Array, ""],
    *,
    shear: bool,
    convention: Convention,
    loss: str,
) -> tuple[Float[Array, "slot m+1 m"], Float[Array, " slot"]]:
    """Return Xᵀ W X with the row of the loss, and the pairs of every slot."""
    kind = jnp.float64
    slots, T, _ = c2.shape
    R, S = subblock_shape(T)
    fields = SHEAR_FIELDS if shear else STATIC_FIELDS
    u = len(rows) - 1  # the last row is C itself
    measured = Data(c2, weight_rows, weight_columns)
    trig = waves(s, rows[u - 1], columns[u - 1], kind)

    def of_data(weight: Array, y: Array, w_i: Array, w_j: Array) -> Array:
        by_row = jnp.stack([F @ w_j for F in (weight, weight * y, weight * y * y)])
        return by_row @ w_i

    def sub_block(index: Array, sums: tuple[PlaneSums, Array]) -> tuple[PlaneSums, Array]:
        i, j = corners[index, 0], corners[index, 1]
        here = lax.dynamic_slice(rows, (0, i), (u + 1, R))
        there = lax.dynamic_slice(columns, (0, j), (u + 1, S))
        mask = counted(lag, i, j, R, S, min_lag)
        on = shared(convention, k, here[u - 1 :], there[u - 1 :], mask, kind)

        def one_bin(b: Array, sums: tuple[PlaneSums, Array]) -> tuple[PlaneSums, Array]:
            plane, alone = sums
            y, w_i, w_j = measured.of(b, i, j, R, S)
            known = jnp.isfinite(y) & mask
            if shear:
                between = trig.between(b, i, j, R, S)
                f, v = fields_of_bin(convention, on, s[b], between, known)
            else:
                f = v = field_at_rest(convention, on.E, known)
            f, v = lax.optimization_barrier((f, v))
            y = jnp.where(known, y.astype(kind) - 1, 0)
            r = y - offset[b] - contrast[b] * f
            weight, row = lost(loss, scale, known, r, w_i, w_j)
            weight, y = lax.optimization_barrier((weight, y))
            products = [weight * F for F in fields.products(f, v, y) + fields.alone(f, v)]
            products = lax.optimization_barrier(products)
            part = fields.summed(products, here[:u] * w_i, there[:u] * w_j, kind)
            alone = add_at(alone, jnp.append(of_data(weight, y, w_i, w_j), row), (b,))
            return plane.plus(part, b, i, j, w_i, w_j), alone

        return lax.fori_loop(0, bins, one_bin, sums)

    def without_f(index: Array, alone: Array) -> Array:
        i, j = corners[index, 0], corners[index, 1]
        mask = counted(lag, i, j, R, S, min_lag)

        def one_bin(b: Array, alone: Array) -> Array:
            y, w_i, w_j = measured.of(b, i, j, R, S)
            known = jnp.isfinite(y) & mask
            y = jnp.where(known, y.astype(kind) - 1, 0)
            weight, row = lost(loss, scale, known, y - offset[b], w_i, w_j)
            return add_at(alone, jnp.append(of_data(weight, y, w_i, w_j), row), (b,))

        return lax.fori_loop(0, bins, one_bin, alone)

    nothing = fields.nothing(slots, T), jnp.zeros((slots, 8))
    plane, alone = lax.fori_loop(0, live, sub_block, nothing)
    alone = lax.fori_loop(live, number, without_f, alone)
    moments = fields.assemble(plane, alone[:, :3], rows[:u], columns[:u], k, s, ds)
    row = jnp.pad(alone[:, 3:7], ((0, 0), (0, moments.shape[-1] - 4)))
    return jnp.concatenate([moments, row[:, None, :]], axis=1), alone[:, 7]
