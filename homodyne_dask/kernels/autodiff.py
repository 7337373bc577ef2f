"""A user-defined f and its derivatives by forward-mode differentiation, at one theta."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float

from homodyne_dask.kernels.backend_interface import (
    ModelPoint,
    Problem,
    SubBlocks,
    of_level,
    sub_blocks,
)
from homodyne_dask.kernels.compiled import plain_kernel
from homodyne_dask.kernels.devices import float64_on_cpu
from homodyne_dask.kernels.subblock_loop import SubBlock
from homodyne_dask.models.derived_models import Ties
from homodyne_dask.models.user_defined import Bin, SeparableModel

Tables = Any
"""Arrays whose last axis is time, as `precompute` nests them."""


@dataclass(frozen=True)
class SeparablePoint(ModelPoint):
    tables: Tables
    derivatives: Tables
    """By theta, of shape (p, n); None of times."""
    n: int

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
        kept = np.asarray(values)[..., : m * factor]
        return kept.reshape(*kept.shape[:-1], m, factor).mean(axis=-1)

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
    f: Callable[..., Any], theta: Float[Array, " p"], *more: Any
) -> tuple[Any, Any]:
    """Return f(theta, ...) and its derivatives by theta on a first axis; more: values with derivatives."""
    values, derivatives = [value for value, _ in more], [derivative for _, derivative in more]
    value, tangent = jax.linearize(f, theta, *values)
    return value, jax.vmap(tangent)(jnp.eye(len(theta)), *derivatives)


def f_of(
    model: SeparableModel, theta: Array, t1: Tables, t2: Tables, bin: Bin, shape: tuple[int, ...]
) -> Float[Array, "..."]:
    return jnp.broadcast_to(jnp.asarray(model.f(theta, t1, t2, bin), float), shape)


def f_with_derivatives(
    model: SeparableModel, theta: Array, here: tuple[Tables, Tables], there: tuple[Tables, Tables],
    bin: Bin, shape: tuple[int, ...],
) -> tuple[Float[Array, "..."], Float[Array, "p ..."]]:  # fmt: skip
    """Return f of this shape and its derivatives from tables and derivatives at t1 (here) and t2."""
    if model.precompute is None:
        return with_derivatives(lambda at: f_of(model, at, here[0], there[0], bin, shape), theta)
    return with_derivatives(
        lambda at, t1, t2: f_of(model, at, t1, t2, bin, shape), theta, here, there
    )


def of_frames(tables: Tables, frames: int, first: int, T: int) -> Tables:
    """Return the tables of T frames; past the end the last frame is repeated, where there are no data."""
    some = np.minimum(np.arange(first, first + T), frames - 1)
    return jax.tree.map(lambda values: np.ascontiguousarray(values[..., some]), tables)


def at_times(tables: Tables, time: Float[np.ndarray, " n"], t: Float[np.ndarray, " m"]) -> Tables:
    return jax.tree.map(lambda v: np.apply_along_axis(partial(np.interp, t, time), -1, v), tables)


def sides_of[T](rows: T, columns: T, at: SubBlock) -> tuple[T, T]:
    R, S = at.counted.shape
    return (
        jax.tree.map(lambda v: lax.dynamic_slice_in_dim(v, at.i, R, -1)[..., :, None], rows),
        jax.tree.map(lambda v: lax.dynamic_slice_in_dim(v, at.j, S, -1)[..., None, :], columns),
    )


def slopes_of_ties(ties: Ties, theta: Float[np.ndarray, " m"]) -> Float[np.ndarray, "p m"]:
    with float64_on_cpu():
        return np.asarray(_slopes_of_ties(np.asarray(theta, float), ties=ties))


@plain_kernel("ties")
def _slopes_of_ties(theta: Float[Array, " m"], *, ties: Ties) -> Float[Array, "p m"]:
    return jax.jacfwd(ties.expand)(theta)
