"""Robust losses: the cost of a residual and the weight of its pair.

A residual of r standard deviations costs scale²·ρ(z), z = (r/scale)², instead of r², and its pair
weighs ρ'(z)/sigma² in the Gram (Holland and Welsch 1977). Names and ρ are those of
scipy.optimize.least_squares.
"""

from collections.abc import Iterator

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

OfPairs = Float[Array, "i j"]


def huber(z: Array) -> tuple[Array, Array, Array]:
    """Return ρ: z below 1, 2√z - 1 above; ρ', and ρ' + 2zρ'', the slope of the influence."""
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


LOSSES = {"huber": huber, "soft_l1": soft_l1, "cauchy": cauchy}


def robust_fields(
    loss: str,
    scale: Float[Array, ""],
    measured: Bool[Array, "i j"],
    r: OfPairs,
    w_i: Float[Array, " i"],
    w_j: Float[Array, " j"],
) -> tuple[OfPairs, Iterator[OfPairs]]:
    """Return ρ' of every pair, and ρ, ρ', ρ' + 2zρ'' and zρ'², 0 where it does not count."""
    z = jnp.where(measured, r * r, 0) * w_i[:, None] * (w_j / scale**2)[None, :]
    cost, weight, slope = LOSSES[loss](z)
    terms = cost, weight, slope, z * weight * weight
    return weight, (jnp.where(measured, term, 0) for term in terms)


def robust_terms(
    loss: str,
    scale: Float[Array, ""],
    measured: Bool[Array, "i j"],
    r: OfPairs,
    w_i: Float[Array, " i"],
    w_j: Float[Array, " j"],
) -> tuple[OfPairs, Float[Array, " 5"]]:
    """Return ρ' of every pair, 0 where it does not count, and the sums of a Gram's loss with the pairs."""
    ones = jnp.ones(len(w_j))
    weight, terms = robust_fields(loss, scale, measured, r, w_i, w_j)
    summed = [term @ ones for term in terms]
    row = jnp.stack([field.sum() for field in [*summed, measured @ ones]])
    return jnp.where(measured, weight, 0), row * jnp.array([scale**2, 1, 1, scale**2, 1])
