"""Residuals of a model over an xarray dataset: its points in chunks, and the kernel that sums over them."""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any
from uuid import uuid4

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jax import Array, lax
from jax.scipy import special
from jaxtyping import Float
from zict import LRU

from homodyne_dask.errors import (
    OptionError,
    SelectionError,
    StoreError,
    require_type,
    why_unreadable,
)
from homodyne_dask.kernels import user_function_checks as user
from homodyne_dask.kernels.autodiff import with_derivatives
from homodyne_dask.kernels.compiled import kernel, traced_for
from homodyne_dask.kernels.devices import float64_on_cpu
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.models.user_defined import ResidualModel
from homodyne_dask.sweep.blocks import byte_cache, keep
from homodyne_dask.sweep.layout import Layout

MAX_POINTS_PER_CHUNK = 2**20
"""Most points of a chunk; larger chunks of a store are cut."""
POINTS_PER_STEP = 2**12
"""Points of a chunk that are processed at once; chunks are padded to a multiple of it, or to a power of 2."""
COLUMNS: LRU[Hashable, np.ndarray] = byte_cache(lambda columns: columns.nbytes)


@dataclass(frozen=True)
class PointsLayout(Layout):
    """A tile is a chunk, its side the number of padded points, and a pair is a point, as of one bin."""

    columns: int = 1

    @property
    def block_bytes(self) -> int:
        return 8 * self.columns * self.side

    def working_bytes(self, parameters: int, threads: int = 1) -> int:
        """Return the memory of tasks beside data that stay in memory; derivatives are of a few points."""
        return threads * 2 * self.block_bytes


@dataclass(frozen=True, eq=False)
class Points:
    """Some variables of a dataset, broadcast to all their dimensions and cut into chunks."""

    dataset: xarray.Dataset
    """These variables alone; lazy ones stay lazy."""
    variables: tuple[str, ...]
    chunk: dict[Hashable, int]
    capacity: int
    """Points of a padded chunk: all have one shape, so that the kernel is compiled once."""
    token: str = field(default_factory=lambda: uuid4().hex)
    """The key of these points in the caches of workers: another fit may be of changed data."""

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of chunks along each dimension; they are summed in C order."""
        return tuple(-(-n // self.chunk[dim]) for dim, n in self.dataset.sizes.items())

    @property
    def layout(self) -> PointsLayout:
        tiles = tuple((number, -1) for number in range(math.prod(self.counts)))
        number = math.prod(self.dataset.sizes.values())
        size = {"datum": "points", "columns": len(self.variables)}
        return PointsLayout(self.capacity, 1, ((0,),), tiles, number, **size)

    def columns(self, number: int, budget: int = 0) -> Float[np.ndarray, "variable capacity"]:
        """Return the variables of a chunk as columns, NaN beyond its end; budget: bytes that may be kept."""
        key = self.token, number
        if (columns := COLUMNS.get(key)) is not None:
            return columns
        place = zip(self.dataset.sizes, np.unravel_index(number, self.counts), strict=True)
        cut = {dim: slice(at * self.chunk[dim], (at + 1) * self.chunk[dim]) for dim, at in place}
        columns = np.full((len(self.variables), self.capacity), np.nan)
        try:
            inside = self.dataset.isel(cut).compute(scheduler="synchronous")
            each = xarray.broadcast(*(inside[name] for name in self.variables))
            for row, variable in zip(columns, each, strict=True):
                values = variable.transpose(*self.dataset.sizes).values.ravel()
                row[: len(values)] = values
        except (OSError, RuntimeError, ValueError) as e:
            what = f"chunk {number} of {', '.join(self.variables)}"
            raise StoreError(f"{what} cannot be read: {e}") from e
        infinite = np.isinf(columns).any(axis=1)
        if infinite.any():
            raise SelectionError(
                f"{self.variables[int(infinite.argmax())]!r} is infinite at some points: correct these, or "
                f"set them to NaN to leave them out"
            )
        if budget:
            keep(COLUMNS, key, columns, budget)
        return columns


def points_of(data: Any, variables: Sequence[str]) -> Points:
    dataset = data
    if not isinstance(data, xarray.Dataset):
        require_type("data", data, str | PathLike, "an xarray.Dataset, or the path of a Zarr store")
        try:
            dataset = xarray.open_zarr(data, chunks=None, consolidated=False)
        except (OSError, ValueError) as e:
            raise StoreError(f"{data} is not a Zarr store: {why_unreadable(e)}") from e
    for name in variables:
        if name not in dataset.variables:
            there = ", ".join(map(str, dataset.variables))
            raise SelectionError(f"the dataset has no variable {name!r}; choose from {there}")
        if dataset[name].dtype.kind not in "fiub":
            raise SelectionError(
                f"variable {name!r} has dtype {dataset[name].dtype}, not numbers: convert it first"
            )
    chosen = dataset.reset_coords()[list(dict.fromkeys(variables))]
    chunk: dict[Hashable, int] = dict(chosen.sizes)
    for variable in chosen.variables.values():  # the smallest chunks of any variable
        stored = variable.encoding.get("preferred_chunks", {})
        for dim, n in ({d: n[0] for d, n in variable.chunksizes.items()} or stored).items():
            chunk[dim] = min(chunk.get(dim, n), int(n))
    while math.prod(chunk.values()) > MAX_POINTS_PER_CHUNK:
        longest = max(chunk, key=lambda dim: chunk[dim])
        chunk[longest] = -(-chunk[longest] // 2)
    if not (largest := math.prod(chunk.values())):
        raise SelectionError(f"the variables {', '.join(variables)} contain no points")
    step = min(POINTS_PER_STEP, 2 ** math.ceil(math.log2(max(largest, 2))))
    return Points(chosen, tuple(variables), chunk, -(-largest // step) * step)


def columns_gram(
    model: ResidualModel, at: Float[np.ndarray, "q p"], columns: Float[np.ndarray, "v n"]
) -> Gram:
    """Return the Gram over X = [1, r, 0, -∂r/∂theta] of the points whose variables are all known.

    That is a model of y = r, f = 0 with contrast 1, which is not separable. at: theta, and below
    it, where it has more than one row, the directions along which derivatives are taken.
    """
    with float64_on_cpu():
        moments, points = columns_kernel(at, columns, model=model)
        return Gram(np.asarray(moments)[None], np.asarray(points)[None].astype(np.int64))


@kernel("model")
def columns_kernel(at: Array, columns: Array, *, model: ResidualModel) -> tuple[Array, Array]:
    """Return Xᵀ W X and the number of points whose variables are all known."""
    theta = at[0]
    m, step = len(theta) + 3, min(POINTS_PER_STEP, columns.shape[1])

    def residual(theta: Array, part: Array) -> Array:
        r = jnp.asarray(model.residual(theta, *part), float)
        return jnp.broadcast_to(r, part.shape[1:])

    def add(sums: tuple[Array, Array], part: Array) -> tuple[tuple[Array, Array], None]:
        known = jnp.isfinite(part).all(axis=0)
        r, derivatives = with_derivatives(lambda theta: residual(theta, part), theta)
        if len(at) > 1:
            derivatives = at[1:].T @ derivatives
        X = jnp.concatenate([jnp.ones((1, step)), r[None], jnp.zeros((1, step)), -derivatives])
        X = jnp.where(known, X, 0.0)
        return (sums[0] + X @ X.T, sums[1] + known.sum()), None

    parts = columns.reshape(len(columns), -1, step).swapaxes(0, 1)
    start = jnp.zeros((m, m)), jnp.zeros((), int)
    return lax.scan(add, start, parts)[0]


def check_residual(
    model: ResidualModel, theta: Float[np.ndarray, " p"], columns: Float[np.ndarray, "v n"]
) -> None:
    """Trace the residual as a fit will, and evaluate it at theta on some points.

    Raises OptionError, naming the model and the line, where it cannot be traced, gives another
    shape than one value per point, depends at a point on others, of which a fit computes it for some,
    or is not a number at a point that is known.
    """
    written = model.written
    with float64_on_cpu(), traced_for(model):
        shapes = [jax.ShapeDtypeStruct(of, float) for of in ((model.size,), *[(3,)] * len(columns))]
        with user.in_function(model.name, written):
            output = jax.eval_shape(user.checked(model.name, model.residual, written), *shapes)
        rule = "the function must return one value per point, shape (3,) for 3 points"
        user.require_shape(model, written, [output], [(), (1,), (3,)], rule)
        columns = columns[:, np.isfinite(columns).all(axis=0)]
        r, derivatives = with_derivatives(
            lambda theta: jnp.asarray(model.residual(theta, *columns), float), jnp.asarray(theta)
        )
        values, half = np.concatenate([r[None], derivatives]), columns.shape[1] // 2
        r = values[0]
        if r.size > 1 and np.isfinite(r).all():
            alone = np.asarray(model.residual(jnp.asarray(theta), *columns[:, :half]))
            if not np.allclose(alone, r[:half], rtol=1e-6, atol=1e-6 * np.abs(r).max()):
                raise OptionError(
                    f"model {model.name!r}, {user.line_of(written)}: the residual at a point depends on "
                    f"other points, but residuals are computed for subsets of the points: means over all "
                    f"points and convolutions are not supported"
                )
    for which, *at in np.argwhere(~np.isfinite(values)):
        point = zip(model.variables, columns[:, at[0] if at else 0], strict=True)
        where = ", ".join(f"{name} = {x:.6g}" for name, x in point)
        value = float(values[(which, *at)])
        raise user.not_finite(model, written, "the residual", which, value, where, theta)


def needs_numpy(f: Callable[..., Any], *arguments: Any) -> bool:
    """Return whether a function cannot be traced because it calls NumPy; arguments: shapes."""
    try:
        with float64_on_cpu():
            jax.eval_shape(f, *arguments)
    except jax.errors.TracerArrayConversionError:
        return True
    except Exception:  # whatever else is wrong with it is said where it is checked
        return False
    return False


def with_numpy(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: _unwrapped(f(*_wrapped(arguments)))


class TracedArray(np.lib.mixins.NDArrayOperatorsMixin):
    """An array of JAX that passes functions of NumPy and scipy.special on to those of one name in JAX."""

    def __init__(self, value: jax.Array) -> None:
        self.value = value

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or "out" in options:
            raise TypeError(
                f"np.{ufunc.__name__}.{method} is not supported here: use another function"
            )
        return self.__array_function__(ufunc, None, inputs, options)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        name = function.__name__
        known = getattr(jnp, name, None) or getattr(special, name, None)
        if known is None:
            raise TypeError(f"JAX has no function {name}: express it with other functions")
        return _wrapped(known(*_unwrapped(arguments), **_unwrapped(options)))

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("NumPy cannot make an array from arguments of f here: use np.stack")

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.value, name)
        if not callable(attribute):
            return _wrapped(attribute)
        return lambda *given, **options: _wrapped(
            attribute(*_unwrapped(given), **_unwrapped(options))
        )

    def __getitem__(self, where: Any) -> "TracedArray":
        return TracedArray(self.value[_unwrapped(where)])

    def __jax_array__(self) -> jax.Array:
        return self.value

    def __iter__(self) -> Iterator["TracedArray"]:
        return map(TracedArray, self.value)

    def __len__(self) -> int:
        return len(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __float__(self) -> float:
        return float(self.value)


def _wrapped(values: Any) -> Any:
    return jax.tree.map(lambda v: TracedArray(v) if isinstance(v, jax.Array) else v, values)


def _unwrapped(values: Any) -> Any:
    return jax.tree.map(lambda v: v.value if isinstance(v, TracedArray) else v, values)
