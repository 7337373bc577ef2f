"""Functions written with NumPy or scipy.special, traced by JAX.

NumPy lets a type of array answer for its functions (`__array_ufunc__`, `__array_function__`); arrays that
JAX traces do not. `TracedArray` does: it passes each on to the function of that name in jax.numpy or
jax.scipy.special.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special

from homodyne_dask.kernels.devices import float64_on_cpu


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
    if isinstance(values, TracedArray):
        return values.value
    if isinstance(values, tuple | list):
        return type(values)(map(_unwrapped, values))
    if isinstance(values, dict):
        return {name: _unwrapped(value) for name, value in values.items()}
    return values
