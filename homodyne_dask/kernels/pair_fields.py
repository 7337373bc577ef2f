"""f and its derivative field on a sub-block: the factors common to bins of one q, and those of a bin."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import DTypeLike
from jaxtyping import Bool, Float

from homodyne_dask.kernels.subblock_loop import SubBlock
from homodyne_dask.models.shear_factor import (
    NEAR,
    Wave,
    decay,
    sheared,
    sin_cos,
    strain,
    unsheared,
    wave,
)
from homodyne_dask.models.transport import Convention

DTYPES = {"float64": jnp.float64, "mixed": jnp.float32}
"""The dtype of values per pair, by precision; sums are float64."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Waves:
    """sin and cos of s·G along rows and columns: those of s·ΔG follow by the sum formulas."""

    rows: tuple[Array, Array]
    columns: tuple[Array, Array]
    """Of shape (bin, T); there may be axes before these, of several thetas."""

    def between(self, b: Array, at: SubBlock) -> tuple[Array, Array]:
        """Return sin and cos of s·(G_j - G_i) of a bin on a sub-block, with their common sign."""
        R, S = at.counted.shape

        def of_bin(wave: Array, first: Array, length: int) -> Array:
            lead = wave.shape[:-2]
            cut = lax.dynamic_slice(wave, (*(0 for _ in lead), b, first), (*lead, 1, length))
            return cut[..., 0, :]

        si, ci = (of_bin(w, at.i, R)[..., :, None] for w in self.rows)
        sj, cj = (of_bin(w, at.j, S)[..., None, :] for w in self.columns)
        return sj * ci - cj * si, cj * ci + sj * si


def waves(
    s: Float[Array, " padded"],
    rows: Float[Array, " T"],
    columns: Float[Array, " T"],
    dtype: DTypeLike,
) -> Waves:
    """Return the waves of every bin, from G along rows and columns."""
    of = [sin_cos(s[:, None] * G[None, :]) for G in (rows, columns)]
    rounded = [tuple(part.astype(dtype) for part in pair) for pair in of]
    return Waves(*lax.optimization_barrier(rounded))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CommonFields:
    """Factors common to all bins of one q on a sub-block."""

    E: Float[Array, "R S"]
    """exp(-k ΔC); NaN marks pairs that do not count: it propagates to f and is masked there."""
    strain: Float[Array, "R S"]
    """ΔG in the form that f takes."""
    sign: Float[Array, "R S"]
    """Derivative of the ΔG that f takes by ΔG."""
    inverse: Float[Array, "R S"]
    """1/ΔG."""
    nearest: Float[Array, ""]
    """No |ΔG| on the sub-block is below this."""


def common_fields(
    convention: Convention,
    k: Array,
    here: Float[Array, "2 R"],
    there: Float[Array, "2 S"],
    counted: Bool[Array, "R S"],
    dtype: DTypeLike,
) -> CommonFields:
    """Return the common factors, from G and C along the rows (here) and the columns (there)."""
    E = decay(convention, k, there[1][None, :] - here[1][:, None])
    E = jnp.where(counted, E, jnp.nan).astype(dtype)
    dG, sign = strain(convention, there[0][None, :] - here[0][:, None])
    of_all = E, dG.astype(dtype), sign.astype(dtype), (1 / dG).astype(dtype)
    E, dG, sign, inverse = lax.optimization_barrier(of_all)
    apart = jnp.maximum(there[0].min() - here[0].max(), here[0].min() - there[0].max())
    return CommonFields(E, dG, sign, inverse, apart)


def fields_of_bin(
    convention: Convention,
    on: CommonFields,
    s: Float[Array, ""],
    trig: tuple[Array, Array],
    known: Bool[Array, "R S"],
) -> tuple[Float[Array, "R S"], Float[Array, "R S"]]:
    """Return f and E·S'(x) of a bin under shear, 0 where a pair does not count.

    The series near x = 0 are evaluated only on sub-blocks that come near it.
    """
    dtype = on.E.dtype

    def fields(*, far: bool) -> tuple[Array, Array]:
        x = s.astype(dtype) * on.strain
        if convention is Convention.PHYSICAL:
            inverse = on.inverse * (1 / s).astype(dtype)
            f, v = sheared(convention, on.E, Wave(x, *trig, inverse), far=far)
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
