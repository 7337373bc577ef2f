"""The Gram of a residual model over columns of points, and the check of its function before a fit.

Functions may be written with NumPy or scipy.special. NumPy lets a type of array answer for its functions
(`__array_ufunc__`, `__array_function__`); arrays that JAX traces do not. `TracedArray` does: it passes
each on to the function of that name in jax.numpy or jax.scipy.special.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy import special
from jaxtyping import Float

from homodyne_dask.errors import OptionError
from homodyne_dask.kernels.autodiff import with_derivatives
from homodyne_dask.kernels.compiled import kernel, traced_for
from homodyne_dask.kernels.devices import float64_on_cpu
from homodyne_dask.kernels.gram import Gram
from homodyne_dask.kernels.user_function_checks import (
    checked,
    in_function,
    line_of,
    not_finite,
    require_shape,
)
from homodyne_dask.models.user_defined import ResidualModel


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
    """Return a function of arrays of JAX from one that calls NumPy."""
    return lambda *arguments: _unwrapped(f(*_wrapped(arguments)))


class TracedArray(np.lib.mixins.NDArrayOperatorsMixin):
    """An array of JAX that functions of NumPy and scipy.special take."""

    def __init__(self, value: jax.Array) -> None:
        self.value = value

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or "out" in options:
            raise TypeError(
                f"np.{ufunc.__name__}.{method} is not supported here: use another function"
            )
        return _called(ufunc.__name__, inputs, options)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        return _called(function.__name__, arguments, options)

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("NumPy cannot make an array from arguments of f here: use np.stack")

    def __jax_array__(self) -> jax.Array:
        return self.value

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.value, name)
        if not callable(found):
            return _wrapped(found)
        return lambda *given, **options: _wrapped(found(*_unwrapped(given), **_unwrapped(options)))

    def __getitem__(self, where: Any) -> "TracedArray":
        return TracedArray(self.value[_unwrapped(where)])

    def __iter__(self) -> Iterator["TracedArray"]:
        return (TracedArray(part) for part in self.value)

    def __len__(self) -> int:
        return len(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __float__(self) -> float:
        return float(self.value)


def _called(name: str, arguments: Any, options: Any) -> Any:
    function = getattr(jnp, name, None) or getattr(special, name, None)
    if function is None:
        raise TypeError(f"JAX has no function {name}: express it with other functions")
    return _wrapped(function(*_unwrapped(arguments), **_unwrapped(options)))


def _wrapped(values: Any) -> Any:
    return jax.tree.map(lambda v: TracedArray(v) if isinstance(v, jax.Array) else v, values)


def _unwrapped(values: Any) -> Any:
    return jax.tree.map(lambda v: v.value if isinstance(v, TracedArray) else v, values)


POINTS_PER_STEP = 2**12
"""Points of a chunk that are processed at once; chunks are padded to a multiple of it, or to a power of 2."""


def columns_gram(
    model: ResidualModel, at: Float[np.ndarray, "q p"], columns: Float[np.ndarray, "v n"]
) -> Gram:
    """Return the Gram over X = [1, r, 0, -∂r/∂theta] of the points whose variables are all known.

    That is a model of y = r, f = 0 with contrast 1, which is not separable. at: theta, and below
    it, where it has more than one row, the directions along which derivatives are taken.
    """
    with float64_on_cpu():
        moments, pairs = columns_kernel(at, columns, model=model)
        return Gram(np.asarray(moments)[None], np.asarray(pairs)[None].astype(np.int64))


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
    with float64_on_cpu(), traced_for(model):
        column = jax.ShapeDtypeStruct((3,), float)
        with in_function(model.name, model.written):
            output = jax.eval_shape(
                checked(model.name, model.residual, model.written),
                jax.ShapeDtypeStruct((model.size,), float), *[column] * len(columns),
            )  # fmt: skip
        require_shape(
            model, model.written, [output], [(), (1,), (3,)],
            "the function must return one value per point, shape (3,) for 3 points",
        )  # fmt: skip
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
                    f"model {model.name!r}, {line_of(model.written)}: the residual at a point depends on "
                    f"other points, but residuals are computed for subsets of the points: means over all "
                    f"points and convolutions are not supported"
                )
    for which, *at in np.argwhere(~np.isfinite(values)):
        point = zip(model.variables, columns[:, at[0] if at else 0], strict=True)
        where = ", ".join(f"{name} = {x:.6g}" for name, x in point)
        value = float(values[(which, *at)])
        raise not_finite(model, model.written, "the residual", which, value, where, theta)
