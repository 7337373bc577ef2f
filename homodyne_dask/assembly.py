"""The sums a pass makes over the plane, and the Gram that follows from them.

∂f/∂theta is a field (f or v) times a difference u(t2) - u(t1) of a row of the tables, so that
Σ w F (u_j - u_i)(v_j - v_i) = Σ_j c_j u_j v_j + Σ_i r_i u_i v_i - Σ_ij w F (u_i v_j + v_i u_j)
with F's weighted column sums c and row sums r: no Jacobian is ever formed.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PlaneSums:
    """What the loop over sub-blocks carries, per slot."""

    thin: Float[Array, "slot F u u"]
    """Uᵀ F V of every product field."""
    by_row: Float[Array, "slot F2 T"]
    """Weighted row sums of the fields of second order."""
    by_column: Float[Array, "slot F2 T"]


@dataclass(frozen=True)
class Fields:
    """Which products of f, v and y are summed, those of second order first."""

    second: int
    number: int
    products: Callable[[Array, Array, Array], list[Array]]
    alone: Callable[[Array, Array], list[Array]]
    """Fields that are summed as they are, last in the order."""
    assemble: Callable[..., Array]


def _assemble_shear(
    sums: PlaneSums, data: Array, rows: Array, columns: Array, k: Array, s: Array, ds: Array
) -> Array:
    """Return Xᵀ W X from the sums; table rows are 1, C'×3, G'×3, G, and phi0 goes with G."""
    C, G = slice(1, 4), slice(4, 8)
    to_c = -jnp.ones((len(s), 3)) * k
    to_g = jnp.stack([s, s, s, ds], axis=1)
    second = _second_order(sums, rows, columns)
    ff = second[:, 0, C, C] * to_c[:, :, None] * to_c[:, None, :]
    fv = second[:, 1, C, G] * to_c[:, :, None] * to_g[:, None, :]
    vv = second[:, 2, G, G] * to_g[:, :, None] * to_g[:, None, :]
    gradient = jnp.block([[ff, fv], [fv.transpose(0, 2, 1), vv]])
    first = _first_order(sums.thin)
    f = sums.thin[:, :, 0, 0]
    to_all = jnp.concatenate([to_c, to_g], axis=1)

    def with_gradient(of_f: int, of_v: int) -> Array:
        return jnp.concatenate([first[:, of_f, C], first[:, of_v, G]], axis=1) * to_all

    return _moments(
        data, f[:, 5], f[:, 0], f[:, 3],
        with_gradient(5, 6), with_gradient(3, 4), with_gradient(0, 1), gradient,
    )  # fmt: skip


def _assemble_static(
    sums: PlaneSums, data: Array, rows: Array, columns: Array, k: Array, s: Array, ds: Array
) -> Array:
    """Return Xᵀ W X from the sums; table rows are 1, C'×3."""
    C = slice(1, 4)
    first = _first_order(sums.thin)[:, :, C] * -k
    f = sums.thin[:, :, 0, 0]
    gradient = _second_order(sums, rows, columns)[:, 0, C, C] * k * k
    return _moments(
        data, f[:, 2], f[:, 0], f[:, 1], first[:, 2], first[:, 1], first[:, 0], gradient
    )


SHEAR_FIELDS = Fields(
    second=3,
    number=7,
    products=lambda f, v, y: [f * f, f * v, v * v, f * y, v * y],
    alone=lambda f, v: [f, v],
    assemble=_assemble_shear,
)
STATIC_FIELDS = Fields(
    second=1,
    number=3,
    products=lambda f, v, y: [f * f, f * y],
    alone=lambda f, v: [f],
    assemble=_assemble_static,
)


def _second_order(sums: PlaneSums, rows: Array, columns: Array) -> Array:
    """Return Σ w F (u_j - u_i)(v_j - v_i) for every field of second order and every u, v."""
    thin = sums.thin[:, : sums.by_row.shape[1]]
    at_i = jnp.einsum("sfi,ui,vi->sfuv", sums.by_row, rows, rows)
    at_j = jnp.einsum("sfj,uj,vj->sfuv", sums.by_column, columns, columns)
    return at_i + at_j - thin - thin.transpose(0, 1, 3, 2)


def _first_order(thin: Array) -> Array:
    """Return Σ w F (u_j - u_i) for every field and every u."""
    return thin[:, :, 0, :] - thin[:, :, :, 0]


def _moments(
    data: Array, f: Array, ff: Array, fy: Array, d: Array, dy: Array, df: Array, dd: Array
) -> Array:
    """Return the symmetric matrix over the columns 1, y - 1, f, ∂f/∂theta from its parts."""
    head = jnp.stack(
        [
            jnp.stack([data[:, 0], data[:, 1], f], axis=1),
            jnp.stack([data[:, 1], data[:, 2], fy], axis=1),
            jnp.stack([f, fy, ff], axis=1),
        ],
        axis=1,
    )
    border = jnp.stack([d, dy, df], axis=1)
    return jnp.block([[head, border], [border.transpose(0, 2, 1), dd]])
