"""Validation of user-defined functions: one sentence that names the model and the line."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from homodyne_dask.errors import HomodyneDaskError, OptionError
from homodyne_dask.kernels._jax_internals import checked_indices
from homodyne_dask.kernels.autodiff import f_with_derivatives, separable_point
from homodyne_dask.kernels.compiled import traced_for
from homodyne_dask.kernels.devices import float64_on_cpu
from homodyne_dask.kernels.problem import Problem
from homodyne_dask.models.user_defined import Bin, SeparableModel

_NEEDS_VALUES = (
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.ConcretizationTypeError,
)


@contextmanager
def in_function(model: str, function: Callable[..., Any]) -> Iterator[None]:
    """Turn whatever a function raises into an OptionError of one sentence."""
    try:
        with checked_indices():
            yield
    except HomodyneDaskError:
        raise
    except Exception as e:
        traced = "JAX traces the function without values: use"
        first = (str(e).splitlines() or [""])[0].partition(" (normalize_indices")[0]
        advice = f"{type(e).__name__}: {first}"
        if isinstance(e, jax.errors.TracerBoolConversionError):
            advice = (
                f"a Python `if`, `while`, `and` or `bool()` needs a value, but {traced} jnp.where"
            )
        elif isinstance(e, _NEEDS_VALUES):
            advice = f"values are needed, but {traced} jax.numpy instead of numpy, math and float()"
        elif isinstance(e, IndexError):
            advice += ": theta has one value for each parameter"
        raise OptionError(f"model {model!r}, {line_of(function, e)}: {advice}") from e


def line_of(function: Callable[..., Any], error: Exception | None = None) -> str:
    """Return the deepest line of the function's file that an error passed, else its first line."""
    code = getattr(getattr(function, "func", function), "__code__", None)
    if code is None:
        return repr(function)
    stack = [] if error is None else traceback.extract_tb(error.__traceback__)
    lines = [at.lineno for at in stack if at.filename == code.co_filename]
    where = Path(code.co_filename).name
    return f"{where} line {lines[-1] if lines else code.co_firstlineno}"


def check_separable(model: SeparableModel, frames: int) -> bool:
    """Trace f and precompute as a fit of so many frames will; return whether f uses q.

    Raises OptionError, naming the model and the line, where they cannot be traced or give other
    shapes than one value per pair, or per time.
    """
    with float64_on_cpu(), traced_for(model):
        theta, tables = (jax.ShapeDtypeStruct((n,), float) for n in (model.size, frames))
        if model.precompute is not None:
            with in_function(model.name, model.precompute):
                tables = jax.eval_shape(checked(model.name, model.precompute), theta, tables)
            _one_per_time(model, tables, frames)

        def f(theta: Any, t1: Any, t2: Any, q: Any, phi: Any) -> Any:
            return checked(model.name, model.f)(theta, t1, t2, Bin(q, phi, 1.0))

        shape = 3, 2
        t1, t2 = (
            jax.tree.map(lambda _, at=at: jax.ShapeDtypeStruct(at, float), tables)
            for at in ((shape[0], 1), (1, shape[1]))
        )
        number = jax.ShapeDtypeStruct((), float)
        with in_function(model.name, model.f):
            jaxpr, output = jax.make_jaxpr(f, return_shape=True)(theta, t1, t2, number, number)
        _one_per_pair(model, output, shape)
        q = jaxpr.jaxpr.invars[-2]
        return any(q is used for equation in jaxpr.jaxpr.eqns for used in equation.invars)


def require_real(model: str, function: Callable[..., Any], values: Any) -> None:
    """Raise OptionError where a function returned anything but arrays of real numbers, perhaps nested."""
    for value in jax.tree.leaves(values, is_leaf=lambda one: one is None):
        dtype = getattr(value, "dtype", None)
        if dtype is None or not jnp.issubdtype(dtype, jnp.number) or jnp.iscomplexobj(value):
            gave = f"a {type(value).__name__}" if dtype is None else f"values of type {dtype}"
            raise OptionError(
                f"model {model!r}, {line_of(function)}: the function must return an array of real numbers "
                f"that depends on its arguments, but returned {gave}"
            )


def checked(
    model: str, function: Callable[..., Any], written: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Return the function with a check of what it returns, if anything; written: what a user wrote of it."""

    def called(*arguments: Any) -> Any:
        values = function(*arguments)
        if values is not None:
            require_real(model, written or function, values)
        return values

    return called


def _one_per_time(model: SeparableModel, tables: Any, n: int) -> None:
    shapes = [getattr(leaf, "shape", None) for leaf in jax.tree.leaves(tables)]
    wrong = [shape for shape in shapes if shape != (n,)]
    if wrong or not shapes:
        assert model.precompute is not None
        raise OptionError(
            f"model {model.name!r}, {line_of(model.precompute)}: precompute must return arrays of one "
            f"value per time, shape ({n},) for {n} times, but returned "
            + (f"shape {wrong[0]}" if wrong else "none")
        )


def _one_per_pair(model: SeparableModel, output: Any, shape: tuple[int, int]) -> None:
    actual = getattr(output, "shape", None)
    with suppress(ValueError):
        if actual is not None and np.broadcast_shapes(actual, shape) == shape:
            return
    raise OptionError(
        f"model {model.name!r}, {line_of(model.f)}: f must return one value per pair, shape {shape} "
        f"for times of shapes {(shape[0], 1)} and {(1, shape[1])}, but returned "
        + (f"shape {actual}" if actual is not None else type(output).__name__)
    )


def check_finite(
    problem: Problem, theta: Float[np.ndarray, " p"], time: Float[np.ndarray, " n"],
    q: Float[np.ndarray, " bin"], phi: Float[np.ndarray, " bin"],
) -> None:  # fmt: skip
    """Raise OptionError where f or a derivative is not a number between the first frames or at lag 1."""
    model = problem.model
    assert isinstance(model, SeparableModel)
    at = separable_point(problem, theta, time)
    last = len(time) - 1
    i = np.concatenate([np.zeros(last, int), np.arange(last)])
    j = np.concatenate([np.arange(1, last + 1)] * 2)
    both = at.tables, at.derivatives
    with float64_on_cpu(), traced_for(model):
        here, there = (jax.tree.map(lambda v, k=k: jnp.asarray(v[..., k]), both) for k in (i, j))
        for one in zip(q, phi, strict=True):
            of_bin = jnp.asarray(theta), here, there, at.bins(*one)
            f, derivatives = f_with_derivatives(model, *of_bin)
            values = np.concatenate([np.asarray(f)[None], np.asarray(derivatives)])
            values = np.broadcast_to(values, (len(values), len(i)))
            if not np.isfinite(values).all():
                _not_finite(model, theta, values, time[i], time[j])


def _not_finite(
    model: SeparableModel, theta: np.ndarray, values: np.ndarray, t1: np.ndarray, t2: np.ndarray
) -> None:
    which, where = np.argwhere(~np.isfinite(values))[0]
    of = "f" if which == 0 else f"the derivative of f with respect to {model.names[which - 1]}"
    at = ", ".join(f"{name} = {x:.6g}" for name, x in zip(model.names, theta, strict=True))
    raise OptionError(
        f"model {model.name!r}, {line_of(model.f)}: {of} is {values[which, where]} at t1 = "
        f"{t1[where]:g} s, t2 = {t2[where]:g} s with {at}: give other initial values, or keep f finite there"
    )
