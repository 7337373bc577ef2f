"""Residuals of a model over an xarray dataset: its points as columns, and the kernel that sums over them."""

import math
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jax import Array
from jaxtyping import Float

from homodyne_dask import errors
from homodyne_dask.cluster.workers import require_memory, this_process
from homodyne_dask.kernels import user_function_checks as user
from homodyne_dask.kernels.compiled import kernel, traced_for
from homodyne_dask.kernels.devices import float64_on_cpu
from homodyne_dask.kernels.gram import Gram, merge_tree
from homodyne_dask.kernels.separable_backend import with_derivatives
from homodyne_dask.models.user_defined import ResidualModel
from homodyne_dask.sweep.blocks import NO_COST

POINTS_PER_TILE = 2**12
"""Most points that are processed at once; tiles are padded to it, a single one to a power of 2."""


def dataset_of(data: Any, variables: Sequence[str]) -> xarray.Dataset:
    """Return these variables of a dataset, or of the Zarr store at a path; lazy ones stay lazy."""
    dataset = data
    if not isinstance(data, xarray.Dataset):
        errors.require_type(
            "data", data, str | PathLike, "an xarray.Dataset, or the path of a Zarr store"
        )
        try:
            dataset = xarray.open_zarr(data, chunks=None, consolidated=False)
        except (OSError, ValueError) as e:
            raise errors.StoreError(
                f"{data} is not a Zarr store: {errors.why_unreadable(e)}"
            ) from e
    for name in variables:
        if name not in dataset.variables:
            variables_of_dataset = ", ".join(map(str, dataset.variables))
            raise errors.SelectionError(
                f"the dataset has no variable {name!r}; choose from {variables_of_dataset}"
            )
        if dataset[name].dtype.kind not in "fiub":
            raise errors.SelectionError(
                f"variable {name!r} has dtype {dataset[name].dtype}, not numbers: convert it first"
            )
    return dataset.reset_coords()[list(dict.fromkeys(variables))]


def columns_of(
    dataset: xarray.Dataset, variables: Sequence[str]
) -> Float[np.ndarray, "tile variable point"]:
    """Return the variables, broadcast to all dimensions, as columns; NaN beyond the last point."""
    points = math.prod(dataset.sizes.values())
    if not points:
        raise errors.SelectionError(f"the variables {', '.join(variables)} contain no points")
    side = min(POINTS_PER_TILE, 2 ** math.ceil(math.log2(max(points, 2))))
    tiles = -(-points // side)
    # as columns, and as they are loaded
    require_memory("the points in memory", 2 * 8 * len(variables) * points)
    try:
        loaded = dataset.compute(scheduler="synchronous")
    except (OSError, RuntimeError, ValueError) as e:
        raise errors.StoreError(f"{', '.join(variables)} cannot be read: {e}") from e
    columns = np.full((len(variables), tiles * side), np.nan)
    broadcast = xarray.broadcast(*(loaded[name] for name in variables))
    for name, column, values in zip(variables, columns, broadcast, strict=True):
        column[:points] = values.values.ravel()
        if np.isinf(column).any():
            raise errors.SelectionError(
                f"{name!r} is infinite at some points: correct these, or set them to NaN to leave them out"
            )
    return columns.reshape(len(columns), tiles, -1).swapaxes(0, 1)


@dataclass
class ResidualPasses:
    """The sums of a fit over points in memory: of tiles on threads, added in the order of the tiles."""

    model: ResidualModel
    columns: Float[np.ndarray, "tile variable point"]
    cost, peak, factor = NO_COST, 0, 1

    def gram(self, theta: Float[np.ndarray, " p"], linear_params: object = None) -> Gram:
        return self.along(theta, [])

    def along(self, theta: Float[np.ndarray, " p"], directions: Iterable[np.ndarray]) -> Gram:
        """Return the sum of `columns_gram`, with derivatives along directions where there are any."""
        tile_gram = partial(columns_gram, self.model, np.stack([theta, *directions]))
        with ThreadPoolExecutor(this_process(len(self.columns)).threads) as threads:
            return merge_tree(threads.map(tile_gram, self.columns))


def _residual(model: ResidualModel, columns: Any, theta: Any) -> Array:
    return jnp.broadcast_to(jnp.asarray(model.residual(theta, *columns), float), columns.shape[1:])


def columns_gram(
    model: ResidualModel, rows: Float[np.ndarray, "q p"], columns: Float[np.ndarray, "v n"]
) -> Gram:
    """Return the Gram over X = [1, r, 0, -∂r/∂theta] of the points whose variables are all known.

    That is a model of y = r, f = 0 with contrast 1, which is not separable. rows: theta, and below
    it, where there is more than one row, the directions along which derivatives are taken.
    """
    with float64_on_cpu():
        moments, points = columns_kernel(rows, columns, model=model)
        return Gram(np.asarray(moments)[None], np.asarray(points)[None].astype(np.int64))


@kernel("model")
def columns_kernel(rows: Array, columns: Array, *, model: ResidualModel) -> tuple[Array, Array]:
    """Return Xᵀ W X and the number of points whose variables are all known."""
    complete = jnp.isfinite(columns).all(axis=0)
    r, derivatives = with_derivatives(partial(_residual, model, columns), rows[0])
    if len(rows) > 1:
        derivatives = rows[1:].T @ derivatives
    X = jnp.concatenate([jnp.ones((1, len(r))), r[None], jnp.zeros((1, len(r))), -derivatives])
    X = jnp.where(complete, X, 0.0)
    return X @ X.T, complete.sum()


def check_residual(
    model: ResidualModel, theta: Float[np.ndarray, " p"], columns: Float[np.ndarray, "v n"]
) -> None:
    """Trace the residual as a fit will, and evaluate it at theta on some points.

    Raises OptionError, naming the model and the line, where it cannot be traced, gives another
    shape than one value per point, depends at a point on others, of which a fit computes it for some,
    or is not a number at a point that is known.
    """
    source = model.written
    with float64_on_cpu(), traced_for(model):
        lengths = model.size, *[3] * len(columns)
        shapes = [jax.ShapeDtypeStruct((length,), float) for length in lengths]
        with user.in_function(model.name, source):
            output = jax.eval_shape(user.checked(model.name, model.residual, source), *shapes)
        rule = "the function must return one value per point, shape (3,) for 3 points"
        user.require_shape(model, source, [output], [(), (1,), (3,)], rule)
        columns = columns[:, np.isfinite(columns).all(axis=0)]
        points = jnp.asarray(columns)
        values_of = partial(_residual, model, points)
        with user.in_function(model.name, source):
            # arrays of NumPy: outside of the context JAX would use a GPU
            r, derivatives = map(np.asarray, with_derivatives(values_of, jnp.asarray(theta)))
            residual_of_some = np.asarray(_residual(model, points[:, 1::2], jnp.asarray(theta)))
    values = np.concatenate([r[None], derivatives])
    if np.isfinite(r).all() and not np.allclose(
        residual_of_some, r[1::2], rtol=1e-6, atol=1e-6 * np.abs(r).max(initial=0.0)
    ):
        raise errors.OptionError(
            f"model {model.name!r}, {user.line_of(source)}: the residual at a point depends on other "
            f"points, but residuals are computed for subsets of the points: means over all points and "
            f"convolutions are not supported"
        )
    for row, place in np.argwhere(~np.isfinite(values)):
        point = zip(model.variables, columns[:, place], strict=True)
        coordinates = ", ".join(f"{name} = {x:.6g}" for name, x in point)
        value = float(values[row, place])
        raise user.not_finite(model, source, "the residual", row, value, coordinates, theta)
