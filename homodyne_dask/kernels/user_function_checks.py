"""Validation of user-defined functions: one sentence that names the model and the line."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.errors import HomodyneDaskError, OptionError
from homodyne_dask.kernels._jax_internals import checked_indices
from homodyne_dask.kernels.backend_interface import Problem
from homodyne_dask.kernels.compiled import traced_for
from homodyne_dask.kernels.devices import float64_on_cpu
from homodyne_dask.kernels.separable_backend import (
    MANY_TIMES,
    f_and_derivatives_at,
    separable_point,
)
from homodyne_dask.models.user_defined import Bin, SeparableModel, UserDefined

_NEEDS_VALUES = (
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.ConcretizationTypeError,
)


@contextmanager
def in_function(model: str, function: Callable[..., Any]) -> Iterator[None]:
    try:
        with checked_indices():
            yield
    except HomodyneDaskError:
        raise
    except Exception as e:  # a user's function may raise anything
        traced = "JAX traces the function without values: use"
        # what JAX adds to the words of an IndexError names its own internals
        first = (str(e).splitlines() or [""])[0].partition(" (normalize_indices")[0]
        if isinstance(e, jax.errors.TracerBoolConversionError):
            advice = (
                f"a Python `if`, `while`, `and` or `bool()` needs a value, but {traced} jnp.where"
            )
        elif isinstance(e, _NEEDS_VALUES):
            advice = f"values are needed, but {traced} jax.numpy instead of numpy, math and float()"
        else:
            hint = ": theta has one value for each parameter" if isinstance(e, IndexError) else ""
            advice = f"{type(e).__name__}: {first}{hint}"
        raise OptionError(f"model {model!r}, {line_of(function, e)}: {advice}") from e


def line_of(function: Callable[..., Any], error: Exception | None = None) -> str:
    """Return the deepest line of the function's file that an error passed, else its first line."""
    code = getattr(getattr(function, "func", function), "__code__", None)
    if code is None:
        return repr(function)
    stack = [] if error is None else traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in stack if frame.filename == code.co_filename]
    where = Path(code.co_filename).name
    return f"{where} line {lines[-1] if lines else code.co_firstlineno}"


def check_separable(model: SeparableModel, frames: int) -> bool:
    """Trace f and precompute as a fit of so many frames will; return whether f uses q."""
    with float64_on_cpu(), traced_for(model):
        theta, tables = (jax.ShapeDtypeStruct((n,), float) for n in (model.size, frames))
        if model.precompute is not None:
            with in_function(model.name, model.precompute):
                tables = jax.eval_shape(checked(model.name, model.precompute), theta, tables)
            rule = f"arrays of one value per time, shape ({frames},) for {frames} times"
            leaves, rule = jax.tree.leaves(tables), f"precompute must return {rule}"
            require_shape(model, model.precompute, leaves or [None], [(frames,)], rule)

        def f(theta: Any, t1: Any, t2: Any, q: Any, phi: Any) -> Any:
            return checked(model.name, model.f)(theta, t1, t2, Bin(q, phi, 1.0))

        t1, t2 = (
            jax.tree.map(lambda _, shape=shape: jax.ShapeDtypeStruct(shape, float), tables)
            for shape in ((3, 1), (1, 2))
        )
        number = jax.ShapeDtypeStruct((), float)
        with in_function(model.name, model.f):
            jaxpr, output = jax.make_jaxpr(f, return_shape=True)(theta, t1, t2, number, number)
        allowed = [(), *product((1, 3), (1, 2)), (1,), (2,)]
        rule = (
            "f must return one value per pair, shape (3, 2) for times of shapes (3, 1) and (1, 2)"
        )
        require_shape(model, model.f, [output], allowed, rule)
        q = jaxpr.jaxpr.invars[-2]
        return any(q is used for equation in jaxpr.jaxpr.eqns for used in equation.invars)


def check_finite(
    problem: Problem, theta: Float[np.ndarray, " p"], time: Float[np.ndarray, " n"],
    frames: Int[np.ndarray, " used"], q: Float[np.ndarray, " bin"], phi: Float[np.ndarray, " bin"],
    everywhere: bool = False,
) -> None:  # fmt: skip
    """Raise OptionError where f or a derivative is not a number between the first frame used and others."""
    model, point = problem.model, separable_point(problem, theta, time)
    step = max(1, MANY_TIMES // len(frames)) if everywhere else 1
    later = np.searchsorted(frames, frames + problem.min_lag)
    shortest = np.stack([frames, frames[np.minimum(later, len(frames) - 1)]])
    for first in range(0, len(frames) if everywhere else 1, step):
        rows = np.broadcast_arrays(frames[first : first + step, None], frames)
        i, j = np.concatenate([np.reshape(rows, (2, -1)), shortest[:, : 0 if first else None]], 1)
        t1, t2 = time[i[j - i >= problem.min_lag]], time[j[j - i >= problem.min_lag]]
        f, derivatives = f_and_derivatives_at(point, time, q, phi, t1, t2)
        values = np.concatenate([f[:, None], derivatives], axis=1)
        for b, which, n in np.argwhere(~np.isfinite(values)):
            where = f"t1 = {t1[n]:g} s, t2 = {t2[n]:g} s, q = {q[b]:g} 1/Å, φ = {phi[b]:g}°"
            raise not_finite(model, model.f, "f", which, float(values[b, which, n]), where, theta)


def not_finite(
    model: UserDefined, function: Callable[..., Any], what: str, which: int,
    value: float, where: str, theta: np.ndarray,
) -> OptionError:  # fmt: skip
    value_of = what
    if which:
        value_of = f"the derivative of {what} with respect to {model.names[which - 1]}"
    parameters = ", ".join(f"{name} = {x:.6g}" for name, x in zip(model.names, theta, strict=True))
    return OptionError(
        f"model {model.name!r}, {line_of(function)}: {value_of} is {value} at {where} with "
        f"{parameters}: give other initial values, or keep {what} finite there"
    )


def require_real(model: str, function: Callable[..., Any], values: Any) -> None:
    """Raise OptionError where a function returned anything but arrays of real numbers, perhaps nested."""
    for value in jax.tree.leaves(values, is_leaf=lambda leaf: leaf is None):
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
    def called(*arguments: Any) -> Any:
        values = function(*arguments)
        if values is not None:
            require_real(model, written or function, values)
        return values

    return called


def require_shape(
    model: UserDefined, function: Callable[..., Any], values: list[Any],
    allowed: list[tuple[int, ...]], rule: str,
) -> None:  # fmt: skip
    for value in values:
        shape = getattr(value, "shape", None)
        if shape not in allowed:
            returned = type(value).__name__ if shape is None else f"shape {shape}"
            raise OptionError(
                f"model {model.name!r}, {line_of(function)}: {rule}, but returned {returned}"
            )
