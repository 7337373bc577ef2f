"""The Gram at any theta near the optimum without a pass: from a wide Gram, or roughly from the model alone.

With f - f_0 = Σ a_n (f_n - f_0) and its derivatives as combinations of the same columns, the Gram of
[1, y - 1, f, ∂f/∂theta] is T M Tᵀ, M the wide Gram: all that follows from a pass follows from it. Parts of f
and of its derivatives outside of the columns count as on the sample of pairs, so that χ² rises where the
columns do not reach.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from homodyne_dask.fitting.surrogate.interpolation_nodes import Basis
from homodyne_dask.kernels.backend import backend_of
from homodyne_dask.kernels.backend_interface import PairSet
from homodyne_dask.kernels.compiled import Kernel, plain_kernel
from homodyne_dask.kernels.devices import float64_on_cpu
from homodyne_dask.kernels.gram import Gram, WideGram
from homodyne_dask.kernels.problem import Problem
from homodyne_dask.models import Convention, Model


def _f_and_slope(
    theta: Float[Array, " p"], at: PairSet, model: Model, convention: Convention
) -> Float[Array, "1+p bin pair"]:
    """Return f and ∂f/∂theta at pairs of frames."""

    def f(theta: Float[Array, " p"]) -> Float[Array, "bin pair"]:
        return backend_of(model).f_of_theta(theta, at, model, convention)

    return jnp.concatenate([f(theta)[None], jnp.moveaxis(jax.jacfwd(f)(theta), -1, 0)])


@plain_kernel("model", "convention")
def combination_kernel(
    theta: Float[Array, " p"], at: PairSet, basis: Basis, *, model: Model, convention: Convention
) -> tuple[Float[Array, "1+p r"], Float[Array, "bin 1+p 1+p"]]:
    """Return f - f_0 and ∂f/∂theta as combinations of columns, and products of what is left of them."""
    columns = _f_and_slope(theta, at, model, convention)
    columns = columns.at[0].add(-jnp.asarray(basis.reference)) * basis.scale
    flat = columns.reshape(len(columns), -1)
    a = flat @ basis.weights.T
    outside = (flat - a @ basis.columns.T).reshape(columns.shape)
    return a, jnp.einsum("cbn,dbn->bcd", outside, outside)


@plain_kernel("model", "convention")
def sampled_moments_kernel(
    theta: Float[Array, " p"],
    at: PairSet,
    signal: Float[Array, "bin pair"],
    weight: Float[Array, "bin pair"],
    *,
    model: Model,
    convention: Convention,
) -> Float[Array, "bin k k"]:
    """Return Xᵀ W X over a sample of pairs."""
    known = jnp.stack([jnp.ones_like(signal), signal])
    X = jnp.concatenate([known, _f_and_slope(theta, at, model, convention)])
    return jnp.einsum("cbn,dbn,bn->bcd", X, X, weight)


@dataclass(frozen=True)
class InterpolatedGrams:
    """The Grams of all pairs at any theta, from a wide Gram."""

    problem: Problem
    pairs: PairSet
    """The sample of the basis."""
    basis: Basis
    wide: WideGram
    contrast: Float[np.ndarray, " bin"]
    """That in the scale of the basis."""

    def __call__(self, theta: Float[np.ndarray, " p"]) -> Gram:
        """Return the Gram at theta."""
        a, outside = _called(combination_kernel, self.problem, theta, self.pairs, self.basis)
        T = np.eye(len(a) + 2, self.wide.moments.shape[1])
        T[2:, 3:] = a
        moments = T @ self.wide.moments @ T.T
        shown = self.contrast != 0
        weight = np.where(shown, 1 / np.where(shown, self.contrast, 1.0), 0.0)
        moments[:, 2:, 2:] += outside * (weight**2)[:, None, None]
        return Gram(moments, self.wide.pairs)


@dataclass(frozen=True)
class SampledGrams:
    """Roughly the Grams of all pairs, were the data the model at the optimum: from a sample of pairs."""

    problem: Problem
    pairs: PairSet
    signal: Float[np.ndarray, "bin pair"]
    """c2 - 1 at the optimum."""
    weight: Float[np.ndarray, "bin pair"]
    """1/sigma², times the number of pairs that each stands for."""
    counted: Float[np.ndarray, " bin"]
    """Pairs of the record; χ² at the optimum is as many."""

    def __call__(self, theta: Float[np.ndarray, " p"]) -> Gram:
        """Return the Gram at theta."""
        arguments = self.pairs, self.signal, self.weight
        moments = _called(sampled_moments_kernel, self.problem, theta, *arguments).copy()
        moments[:, 1, 1] += self.counted
        return Gram(moments, self.counted.astype(np.int64))


def _called(kernel: Kernel, problem: Problem, *arguments: Any) -> Any:
    with float64_on_cpu():
        found = kernel(*arguments, model=problem.model, convention=problem.convention)
        return jax.tree.map(np.asarray, found)
