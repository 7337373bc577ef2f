"""Grams of means over cells of age and lag, where c2 was averaged before ingest.

A cell is one measurement: its c2 is compared with the mean of f over its pairs, and it weighs as much as
they do together, n/sigma². Sums are made by loops whose order does not depend on the number of threads.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.kernels.backend_interface import GramColumns, Problem
from homodyne_dask.kernels.devices import float64_on_cpu
from homodyne_dask.kernels.gram import CellMeans, Gram, LinearParams
from homodyne_dask.kernels.losses import robust_terms


def cell_means(
    sums: Float[np.ndarray, "bin cell 1+p"],
    pairs: Int[np.ndarray, " cell"],
    y: Float[np.ndarray, "bin cell"],
    weight: Float[np.ndarray, "bin cell"],
) -> CellMeans:
    counted = weight > 0
    means = np.where(counted[..., None], sums, 0.0) / np.maximum(pairs, 1)[:, None]
    data = np.stack([counted, np.where(counted, y, 0.0)], axis=-1)
    columns = np.concatenate([data, means], axis=-1)
    return CellMeans(columns, weight, np.count_nonzero(counted, axis=1))


def cell_gram(
    means: list[CellMeans],
    columns: GramColumns,
    problem: Problem,
    linear_params: LinearParams | None,
) -> Gram:
    """Return the Gram of means at one theta, or at several."""
    first, loss = means[0], None
    if columns is GramColumns.DERIVATIVES:
        first, loss = _under_loss(first, problem, linear_params)
        moments = _moments(first.columns, first.weight)
    elif columns is GramColumns.POINTS:
        of_thetas = [_moments(of_theta.columns[..., :3], of_theta.weight) for of_theta in means]
        moments = np.stack(of_thetas, axis=1)
    else:
        head = first.columns[..., :3]
        changes = [of_theta.columns[..., 2:3] - head[..., 2:] for of_theta in means[1:]]
        moments = _moments(np.concatenate([head, *changes], axis=-1), first.weight)
    return Gram(moments, first.pairs, loss)


def cell_block_grams(
    means: CellMeans,
    problem: Problem,
    linear_params: LinearParams | None,
    blocks: Int[np.ndarray, "2 cell"],
    number: int,
) -> Gram:
    means = _under_loss(means, problem, linear_params)[0]
    columns = means.columns[..., :3]
    moments = np.zeros((len(columns), number, number, 3, 3))
    for a, b in np.unique(blocks.T, axis=0):
        inside = (blocks[0] == a) & (blocks[1] == b)
        moments[:, a, b] = _moments(columns[:, inside], means.weight[:, inside])
    return Gram(moments, means.pairs)


def _under_loss(
    means: CellMeans, problem: Problem, linear_params: LinearParams | None
) -> tuple[CellMeans, Float[np.ndarray, "bin 4"] | None]:
    if linear_params is None:
        return means, None
    X, weight, _ = means
    r = X[..., 1] - linear_params[:, :1] - linear_params[:, 1:] * X[..., 2]
    slopes, sums = [], []
    with float64_on_cpu():
        for residual, w in zip(r, weight, strict=True):
            slope, row = robust_terms(
                problem.loss, jnp.asarray(problem.loss_scale), jnp.asarray(w > 0)[:, None],
                jnp.asarray(residual)[:, None], jnp.asarray(w), jnp.ones(1),
            )  # fmt: skip
            slopes.append(np.asarray(slope)[:, 0])
            sums.append(np.asarray(row)[:4])
    return means._replace(weight=weight * np.array(slopes)), np.array(sums)


def _moments(
    X: Float[np.ndarray, "bin cell m"], weight: Float[np.ndarray, "bin cell"]
) -> Float[np.ndarray, "bin m m"]:
    return np.einsum("bcx,bcy->bxy", X * weight[..., None], X)
