"""A sub-block of the plane of t1 and t2: what all bins of one q share there, and f of each bin."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Float32

from homodyne_dask.models.shear_factor import Wave, decay, sheared, strain, unsheared, wave
from homodyne_dask.models.sincos import NEAR, sin_cos
from homodyne_dask.models.transport import Convention

DTYPES = {"float64": jnp.float64, "mixed": jnp.float32}
"""What the plane is computed in."""
COMPILER: dict[str, str | int] = {
    # one step after the other, in one thread: in other orders XLA hands the steps of a loop to its
    # pool, where each core that is not needed waits for them at full speed
    "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
    "xla_cpu_prefer_vector_width": 512,
}
"""How XLA compiles the kernels."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Data:
    """What is measured on a block: c2, and 1/sigma_row² of rows and columns."""

    c2: Float32[Array, "slot T T"]
    weight_rows: Float[Array, "slot T"]
    weight_columns: Float[Array, "slot T"]

    def of(self, b: Array, i: Array, j: Array, R: int, S: int) -> tuple[Array, Array, Array]:
        """Return c2 and both weights of a bin on a sub-block."""
        y = lax.dynamic_slice(self.c2, (b, i, j), (1, R, S))[0]
        w_i = lax.dynamic_slice(self.weight_rows, (b, i), (1, R))[0]
        w_j = lax.dynamic_slice(self.weight_columns, (b, j), (1, S))[0]
        return y, w_i, w_j

    def sums(
        self, corners: Array, number: Array, bins: Array, lag: Array, min_lag: Array,
        R: int, S: int,
    ) -> Float[Array, "slot 4"]:  # fmt: skip
        """Return Σ w, Σ w(y - 1), Σ w(y - 1)² and the pairs of every bin, y = c2."""

        def sub_block(index: Array, sums: Array) -> Array:
            i, j = corners[index, 0], corners[index, 1]
            mask = counted(lag, i, j, R, S, min_lag)

            def one_bin(b: Array, sums: Array) -> Array:
                y, w_i, w_j = self.of(b, i, j, R, S)
                known = jnp.isfinite(y) & mask
                y = jnp.where(known, y.astype(jnp.float64) - 1, 0)
                fields = (known.astype(jnp.float64), y, y * y)
                weighted = jnp.stack([w_i @ (F @ w_j) for F in fields])
                pairs = jnp.sum(known, dtype=jnp.int32).astype(jnp.float64)
                return add_at(sums, jnp.append(weighted, pairs), (b,))

            return lax.fori_loop(0, bins, one_bin, sums)

        return lax.fori_loop(0, number, sub_block, jnp.zeros((len(self.c2), 4)))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Waves:
    """sin and cos of s·G along rows and columns: those of s·ΔG follow by the sum formulas."""

    rows: tuple[Array, Array]
    columns: tuple[Array, Array]

    def between(self, b: Array, i: Array, j: Array, R: int, S: int) -> tuple[Array, Array]:
        """Return sin and cos of s·(G_j - G_i) of a bin on a sub-block, with their common sign."""
        si, ci = (lax.dynamic_slice(w, (b, i), (1, R))[0][:, None] for w in self.rows)
        sj, cj = (lax.dynamic_slice(w, (b, j), (1, S)) for w in self.columns)
        return sj * ci - cj * si, cj * ci + sj * si


def waves(
    s: Float[Array, " slot"],
    rows: Float[Array, " T"],
    columns: Float[Array, " T"],
    kind: DTypeLike,
) -> Waves:
    """Return the waves of every bin, G given along rows and columns."""
    of = [sin_cos(s[:, None] * G[None, :]) for G in (rows, columns)]
    rounded = [tuple(part.astype(kind) for part in pair) for pair in of]
    return Waves(*lax.optimization_barrier(rounded))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Shared:
    """What all bins of one q have in common on a sub-block."""

    E: Float[Array, "R S"]
    """exp(-k ΔC); NaN marks pairs that do not count: it reaches f once and is taken out once."""
    strain: Float[Array, "R S"]
    """ΔG as f takes it."""
    sign: Float[Array, "R S"]
    """Derivative of the ΔG that f takes by ΔG."""
    inverse: Float[Array, "R S"]
    """1/ΔG."""
    nearest: Float[Array, ""]
    """No |ΔG| on the sub-block is below this."""


def shared(
    convention: Convention,
    k: Array,
    here: Float[Array, "2 R"],
    there: Float[Array, "2 S"],
    counted: Bool[Array, "R S"],
    kind: DTypeLike,
) -> Shared:
    """Return what bins share, from G and C along the rows (here) and the columns (there)."""
    E = decay(convention, k, there[1][None, :] - here[1][:, None])
    E = jnp.where(counted, E, jnp.nan).astype(kind)
    dG, sign = strain(convention, there[0][None, :] - here[0][:, None])
    of_all = E, dG.astype(kind), sign.astype(kind), (1 / dG).astype(kind)
    E, dG, sign, inverse = lax.optimization_barrier(of_all)
    apart = jnp.maximum(there[0].min() - here[0].max(), here[0].min() - there[0].max())
    return Shared(E, dG, sign, inverse, apart)


def fields_of_bin(
    convention: Convention,
    on: Shared,
    s: Float[Array, ""],
    trig: tuple[Array, Array],
    known: Bool[Array, "R S"],
) -> tuple[Float[Array, "R S"], Float[Array, "R S"]]:
    """Return f and E·S'(x) of a bin under shear, 0 where a pair does not count.

    The series near x = 0 are evaluated only on sub-blocks that come near it.
    """
    kind = on.E.dtype

    def fields(*, far: bool) -> tuple[Array, Array]:
        x = s.astype(kind) * on.strain
        if convention is Convention.PHYSICAL:
            f, v = sheared(
                convention, on.E, Wave(x, *trig, on.inverse * (1 / s).astype(kind)), far=far
            )
        else:
            f, v = sheared(convention, on.E, wave(x), far=far)
            v = v * on.sign
        return jnp.where(known, f, 0), jnp.where(known, v, 0)

    is_far = on.nearest * jnp.abs(s) >= NEAR
    return lax.cond(is_far, lambda: fields(far=True), lambda: fields(far=False))


def field_at_rest(
    convention: Convention, E: Float[Array, "R S"], known: Bool[Array, "R S"]
) -> Float[Array, "R S"]:
    """Return f without shear, 0 where a pair does not count."""
    return jnp.where(known, unsheared(convention, E), 0)


def counted(lag: Array, i: Array, j: Array, R: int, S: int, min_lag: Array) -> Bool[Array, "R S"]:
    """Return which pairs of a sub-block are at least min_lag apart."""
    return lag + (j + jnp.arange(S))[None, :] - (i + jnp.arange(R))[:, None] >= min_lag


def add_at(total: Array, part: Array, at: tuple) -> Array:
    """Return `total` with `part` added at an index of its first axes."""
    part = part.reshape((1,) * (total.ndim - part.ndim) + part.shape)
    at = (*at, *(0,) * (total.ndim - len(at)))
    return lax.dynamic_update_slice(total, lax.dynamic_slice(total, at, part.shape) + part, at)
