"""Functions of users that call NumPy, as JAX can trace them."""

from functools import partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special

MODULES = {"numpy": jnp, "scipy": jax.scipy, "scipy.special": special}


def of_jax(value: Any, made: dict[int, Any] | None = None) -> Any:
    """Return a function with jax.numpy in place of NumPy, as in the functions that it calls by name.

    Of a module or a function of NumPy and scipy.special that of the same name in JAX; other values as
    they are. made: what has been returned, by the identity of what was given.
    """
    made = {} if made is None else made
    name, module = getattr(value, "__name__", ""), getattr(value, "__module__", None) or ""
    if isinstance(value, ModuleType):
        return MODULES.get(name, value)
    if isinstance(value, np.ufunc) or module.partition(".")[0] == "numpy":
        return getattr(jnp, name, None) or getattr(special, name, value)
    if isinstance(value, MethodType):
        return MethodType(of_jax(value.__func__, made), value.__self__)
    if isinstance(value, partial):
        return partial(of_jax(value.func, made), *value.args, **value.keywords)
    if not isinstance(value, FunctionType) or module.partition(".")[0] == "jax":
        return value
    if id(value) not in made:
        names: dict[str, Any] = {}
        cells = tuple(CellType() for _ in value.__closure__ or ())
        copy = FunctionType(value.__code__, names, value.__name__, value.__defaults__, cells)
        copy.__kwdefaults__, made[id(value)] = value.__kwdefaults__, copy
        used = _names(value.__code__) & value.__globals__.keys()
        names |= {name: of_jax(value.__globals__[name], made) for name in used}
        for cell, given in zip(cells, value.__closure__ or (), strict=True):
            cell.cell_contents = of_jax(given.cell_contents, made)
    return made[id(value)]


def _names(code: CodeType) -> set[str]:
    inside = [_names(inner) for inner in code.co_consts if isinstance(inner, CodeType)]
    return set(code.co_names).union(*inside)
