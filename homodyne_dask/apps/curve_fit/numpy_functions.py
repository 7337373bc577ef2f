"""Functions of users that call NumPy, as JAX can trace them."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special


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
        counterpart = getattr(jnp, name, None) or getattr(special, name, None)
        if counterpart is None:
            raise TypeError(f"JAX has no function {name}: express it with other functions")
        return _wrapped(counterpart(*_unwrapped(arguments), **_unwrapped(options)))

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError("NumPy cannot make an array from arguments of f here: use np.stack")

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.value, name)
        if not callable(attribute):
            return _wrapped(attribute)
        return lambda *arguments, **options: _wrapped(
            attribute(*_unwrapped(arguments), **_unwrapped(options))
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
