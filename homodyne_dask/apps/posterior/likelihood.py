"""χ² of every bin at any theta near the optimum, from a wide Gram: no pass over the data.

With f = f_0 + h, h = Σ a_n (f_n - f_0), and r the residual at the optimum, the residual at theta is
r - contrast·h, less what changes of offset and contrast take of it. All forms below are of the size of the
change of χ², so that nothing cancels. Far from the optimum f has a part outside of the columns; its square
counts as on the sample of pairs, so that χ² rises there, too.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from homodyne_dask.apps.posterior.interpolation_nodes import Basis
from homodyne_dask.apps.posterior.pair_sample import in_batches
from homodyne_dask.kernels.backend import backend_of
from homodyne_dask.kernels.backend_interface import PairSet, Problem
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.models import Convention, Model
from homodyne_dask.solver.reduce import constraint_columns
from homodyne_dask.solver.reduced_problem import ReducedProblem
from homodyne_dask.solver.scaling_modes import Scaling


class LikelihoodAt(NamedTuple):
    """The likelihood at one theta, contrast and offset at their best values there."""

    chisqr: Float[Array, " bin"]
    """Of every bin, less that at the optimum; a prior of contrast and offset counts."""
    linear_params: Float[Array, "bin 2"]
    """(offset - 1, contrast)."""
    spread: Float[Array, "bin 2 n"]
    """These times n independent normal numbers of a group of bins are draws around them."""


class LikelihoodArrays(NamedTuple):
    """All that the likelihood is computed from, besides theta."""

    pairs: PairSet
    basis: Basis
    moments: Float[np.ndarray, "bin m m"]
    """Over [1, r, f_0, f_1 - f_0, ...], r the residual at the optimum."""
    linear_params: Float[np.ndarray, "bin 2"]
    """At the optimum."""
    columns: Float[np.ndarray, "group member k"]
    """(offset - 1, contrast) of a bin change by these times the linear parameters of its group."""
    prior_weight: Float[np.ndarray, "bin 2"]
    """Of the priors of offset and contrast."""
    prior_pull: Float[np.ndarray, "bin 2"]
    """That weight times the mean less the value at the optimum."""
    determined: Bool[np.ndarray, "bin 2"]
    """Offsets and contrasts that the data determine; others keep their values."""


def likelihood_arrays(
    wide: Gram, basis: Basis, pairs: PairSet, reduced: ReducedProblem, scaling: Scaling
) -> LikelihoodArrays:
    """Return the arrays from the wide Gram at a basis; reduced: the problem at the optimum."""
    bins, used = len(wide.pairs), wide.pairs > 0
    linear = np.where(used[:, None], reduced.linear_params, 0.0)
    linear[reduced.undetermined, 1] = 0.0
    to_residual = np.broadcast_to(np.eye(wide.moments.shape[1]), wide.moments.shape).copy()
    to_residual[:, 1, 0], to_residual[:, 1, 2] = -linear[:, 0], -linear[:, 1]
    columns, groups = constraint_columns(scaling, bins)
    weight = mean = np.zeros((bins, 2))
    if scaling.prior is not None:
        each = used / max(used.sum(), 1) if scaling.mode == "shared" else used.astype(float)
        weight, mean = each[:, None] * scaling.prior.weight, scaling.prior.mean
    determined = np.stack([used, used], axis=1)
    if groups == bins:
        determined[reduced.undetermined, 1] = False
    return LikelihoodArrays(
        pairs=pairs,
        basis=basis,
        moments=to_residual @ wide.moments @ np.swapaxes(to_residual, 1, 2),
        linear_params=linear,
        columns=columns.reshape(groups, bins // groups, columns.shape[1]),
        prior_weight=weight,
        prior_pull=weight * (mean - linear),
        determined=determined,
    )


def likelihood_at(
    theta: Any, of: LikelihoodArrays, model: Model, convention: Convention
) -> LikelihoodAt:
    """Return χ² of every bin at theta, and contrast and offset; for JAX to trace."""
    f = backend_of(model).f_of_theta(theta, of.pairs, model, convention)
    change = ((f - of.basis.reference) * of.basis.scale).reshape(-1)
    a = of.basis.weights @ change
    outside = (change - of.basis.columns @ a).reshape(of.basis.scale.shape)
    G, contrast = jnp.asarray(of.moments), jnp.asarray(of.linear_params)[:, 1]
    of_h = G[:, :, 3:] @ a
    ones_h, r_h, f_h, h_h = of_h[:, 0], of_h[:, 1], of_h[:, 2], of_h[:, 3:] @ a
    alone = -2 * contrast * r_h + contrast**2 * h_h + (outside**2).sum(1)
    mixed, ff = G[:, 0, 2] + ones_h, G[:, 2, 2] + 2 * f_h + h_h
    A = jnp.stack([jnp.stack([G[:, 0, 0], mixed], -1), jnp.stack([mixed, ff], -1)], -2)
    b = jnp.stack([G[:, 0, 1] - contrast * ones_h, G[:, 1, 2] + r_h - contrast * (f_h + h_h)], -1)
    known = jnp.asarray(of.determined)
    A = A + jnp.asarray(of.prior_weight)[:, :, None] * jnp.eye(2)
    A = jnp.where(known[:, :, None] & known[:, None, :], A, 0.0)
    b = jnp.where(known, b + of.prior_pull, 0.0)
    step, spread = _best_step(A, b, jnp.asarray(of.columns))
    chisqr = alone - 2 * (step * b).sum(1) + jnp.einsum("bz,bzy,by->b", step, A, step)
    return LikelihoodAt(chisqr, jnp.asarray(of.linear_params) + step, spread)


def _best_step(
    A: Float[Array, "bin 2 2"], b: Float[Array, "bin 2"], columns: Float[Array, "group member k"]
) -> tuple[Float[Array, "bin 2"], Float[Array, "bin 2 n"]]:
    """Return the step of (offset, contrast) to the minimum of each group of bins, and the spread there."""
    groups, members, k = columns.shape
    if not k:
        return jnp.zeros_like(b), jnp.zeros((*b.shape, 0))
    each = A.reshape(groups, members, 2, 2)
    whole = jnp.einsum("gma,gmb,gmzy->gzayb", columns, columns, each).reshape(groups, 2 * k, 2 * k)
    right = jnp.einsum("gma,gmz->gza", columns, b.reshape(groups, members, 2))
    size = jnp.diagonal(whole, axis1=1, axis2=2)
    unit = jnp.where(size > 0, 1 / jnp.sqrt(jnp.where(size > 0, size, 1.0)), 0.0)
    scaled = whole * unit[:, :, None] * unit[:, None, :]
    scaled = scaled + jnp.where(size > 0, 0.0, 1.0)[:, :, None] * jnp.eye(2 * k)
    inverse_root = jnp.linalg.inv(jnp.linalg.cholesky(scaled)) * unit[:, None, :]
    root = jnp.swapaxes(inverse_root, 1, 2)  # root rootᵀ is the inverse
    step = root @ (inverse_root @ right.reshape(groups, 2 * k, 1))
    step = jnp.einsum("gma,gza->gmz", columns, step.reshape(groups, 2, k))
    spread = jnp.einsum("gma,gzan->gmzn", columns, root.reshape(groups, 2, k, 2 * k))
    return step.reshape(-1, 2), spread.reshape(-1, 2, 2 * k)


def likelihood_of(
    problem: Problem, of: LikelihoodArrays, thetas: Float[np.ndarray, "draw p"]
) -> LikelihoodAt:
    """Return the likelihood at any number of thetas, each field with a first axis of draws."""
    return in_batches(likelihood_at, problem, thetas, of)
