"""The arguments of curve_fit: names, bounds and initial values of the parameters, and sigma."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
import xarray
from jaxtyping import Float

from homodyne_dask.errors import OptionError, shown
from homodyne_dask.text import counted

SIGMA = "homodyne_dask_sigma"
"""Name of the variable that holds a sigma passed as an array or a data array."""


def function_name(f: Callable[..., object]) -> str:
    """Return the name of a function for reports."""
    return str(getattr(f, "__name__", "f"))


def names_of(what: str, given: str | Sequence[str]) -> list[str]:
    """Return one name or several as a list; raises OptionError for anything else."""
    names = [given] if isinstance(given, str) else given
    if not (isinstance(names, list | tuple) and names and all(isinstance(n, str) for n in names)):
        raise OptionError(
            f"{what} = {shown(given)} cannot be used: give a name, or a list of names"
        )
    return list(names)


def parameter_names(f: Callable[..., Any], given: Any, p0: Any) -> tuple[str, ...]:
    """Return the names given, or those of the arguments of f after x; of f(x, *p) those of p0, or p0, p1."""
    if given is not None:
        return tuple(names_of("param_names", given))
    arguments = [a for a in _signature(f).values() if a.kind is not a.KEYWORD_ONLY]
    any_number = [a.kind for a in arguments[-1:]] == [inspect.Parameter.VAR_POSITIONAL]
    if any_number and isinstance(p0, Mapping):
        return tuple(names_of("p0", list(p0)))
    if any_number and p0 is not None and len(arguments) <= 2:
        return tuple(f"p{n}" for n in range(np.size(p0)))
    named = arguments[1:]
    if not named or any(a.kind is not a.POSITIONAL_OR_KEYWORD for a in named):
        raise OptionError(
            f"the parameters of {function_name(f)!r} cannot be read from its arguments: "
            f"write f(x, a, b), or give param_names"
        )
    return tuple(a.name for a in named)


def _signature(f: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(f).parameters
    except (ValueError, TypeError):  # of some functions written in C
        return {}


def bounds_by_name(names: tuple[str, ...], bounds: Any) -> dict[str, tuple[float, float]]:
    """Return (low, high) by name; raises OptionError for what gives none."""
    if hasattr(bounds, "lb") and hasattr(bounds, "ub"):  # scipy.optimize.Bounds
        bounds = bounds.lb, bounds.ub
    if isinstance(bounds, Mapping):
        unknown = [name for name in bounds if name not in names]
        if unknown:
            raise OptionError(f"bounds: {unknown[0]!r} is not a parameter of {', '.join(names)}")
        return {name: bounds.get(name, (-np.inf, np.inf)) for name in names}
    try:
        low, high = (np.broadcast_to(np.asarray(edge, float), len(names)) for edge in bounds)
    except (TypeError, ValueError):
        raise OptionError(
            f"bounds = {shown(bounds)} cannot be used: give (low, high), each a number or one value "
            f"for each of {', '.join(names)}, or a dictionary with a pair for each name"
        ) from None
    return {name: (float(a), float(b)) for name, a, b in zip(names, low, high, strict=True)}


def initial_by_name(
    names: tuple[str, ...], p0: Any, bounds: dict[str, tuple[float, float]]
) -> dict[str, float]:
    """Return the initial values by name: those given, and for the others what scipy takes."""
    values: dict[str, float] = {}
    if isinstance(p0, Mapping):
        values = dict(p0)
    elif p0 is not None:
        given = np.ravel(p0).tolist()  # one number for one parameter, as in scipy
        if len(given) != len(names):
            raise OptionError(
                f"p0 has {counted(len(given), 'value')} for {counted(len(names), 'parameter')}: give one for "
                f"each of {', '.join(names)}"
            )
        values = dict(zip(names, given, strict=True))
    return {name: _feasible(*bounds[name]) for name in names} | values


def _feasible(low: float, high: float) -> float:
    """Return the initial value that scipy takes without p0."""
    if math.isfinite(low):
        return 0.5 * (low + high) if math.isfinite(high) else low + 1
    return high - 1 if math.isfinite(high) else 1.0


def with_sigma(dataset: Any, data_var: str, sigma: Any) -> tuple[Any, str]:
    """Return the dataset with sigma as a variable of it, and the name of the data variable."""
    if isinstance(dataset, xarray.DataArray):
        data_var = str(dataset.name or "y")
        dataset = dataset.to_dataset(name=data_var)
    if sigma is None or isinstance(sigma, str):
        return dataset, data_var
    if not isinstance(dataset, xarray.Dataset):
        raise OptionError("sigma of data in a store must be the name of one of its variables")
    if data_var not in dataset:
        there = ", ".join(map(str, dataset.variables))
        raise OptionError(f"the dataset has no variable {data_var!r}; choose from {there}")
    dims = dataset[data_var].dims if np.ndim(sigma) else ()
    if not isinstance(sigma, xarray.DataArray):
        return dataset.assign({SIGMA: (dims, _deviations(sigma, dataset[data_var]))}), data_var
    try:
        xarray.align(dataset, sigma, join="exact", copy=False)
    except ValueError as e:
        raise OptionError(
            f"sigma and the data differ in their coordinates: give sigma at each point of the data ({e})"
        ) from None
    return dataset.assign({SIGMA: sigma}), data_var


def _deviations(sigma: Any, data: xarray.DataArray) -> np.ndarray:
    """Return a number or one for each value of the data; raises OptionError for anything else."""
    try:
        values = np.asarray(sigma, float)
    except (TypeError, ValueError):
        values = None
    if values is None or values.shape not in ((), data.shape):
        raise OptionError(
            f"sigma = {shown(sigma)} cannot be used: give a number, an array of shape {data.shape}, or the "
            f"name of a variable"
        )
    return values


_OF_SCIPY = ("check_finite", "method", "jac", "full_output", "nan_policy", "maxfev", "max_nfev")
_POINT = "point"


def are_arrays(*data: Any) -> bool:
    """Return whether arguments begin with xdata and ydata, and not with a dataset or a path."""
    first, second = (*data, None, None)[:2]
    if isinstance(first, xarray.DataArray):
        names = [second] if isinstance(second, str) else list(second or ())
        return not all(isinstance(name, str) for name in names)
    return not isinstance(first, xarray.Dataset | str | PathLike)


def refuse_options_of_scipy(options: dict[str, object]) -> None:
    """Raise OptionError for options that scipy's curve_fit has and this one has not."""
    for name in _OF_SCIPY:
        if name in options:
            raise OptionError(
                f"{name} is an option of scipy's curve_fit and has no effect here: leave it out"
            )


def points_from_arrays(xdata: Any, ydata: Any) -> tuple[xarray.Dataset, list[str]]:
    """Return x and y as a dataset of points, and the names of its coordinates.

    ydata: of M values. xdata: of M values, or of k rows of M values as an array or a list of k arrays: the
    coordinates are then x0, x1, ...; arrays of several dimensions are raveled. Raises OptionError for
    other shapes, and for what is not a number.
    """
    x, y = _numbers("xdata", xdata), _numbers("ydata", ydata)
    several = x.shape != y.shape and x.ndim > 1
    rows = x.reshape(len(x), -1) if several else x.reshape(1, -1)
    if rows.shape[1] != y.size or not y.size:
        raise OptionError(
            f"xdata of shape {x.shape} does not match ydata of shape {y.shape}: give M values of both, or "
            f"k rows of M values of xdata"
        )
    names = [f"x{n}" for n in range(len(rows))] if several else ["x"]
    columns = {name: (_POINT, row) for name, row in zip(names, rows, strict=True)}
    return xarray.Dataset(columns | {"y": (_POINT, y.ravel())}), names


def sigma_of_points(sigma: Any, points: int) -> float | np.ndarray | None:
    """Return one standard deviation, or one for each point; raises OptionError for anything else."""
    if sigma is None:
        return None
    values = _numbers("sigma", sigma)
    if values.ndim == 2 and values.shape == (points, points) and points > 1:
        raise OptionError(
            f"sigma of shape {values.shape} is a covariance matrix, but the errors of points are assumed to "
            f"be independent: give one standard deviation for each point"
        )
    if values.size not in (1, points):
        raise OptionError(
            f"sigma has {values.size} values for {points} points: give one, or {points}"
        )
    return float(values.item()) if values.size == 1 else values.ravel()


def _numbers(name: str, given: Any) -> Float[np.ndarray, "..."]:
    try:
        values = np.asarray(given)
    except (TypeError, ValueError):
        values = np.empty(0, object)  # lists of unequal lengths
    if values.dtype.kind not in "fiub":
        raise OptionError(
            f"{name} = {shown(given)} has dtype {values.dtype}, not numbers: give numbers, such as "
            f"{name}.astype(float), or an xarray dataset instead of arrays"
        )
    return values.astype(float)
