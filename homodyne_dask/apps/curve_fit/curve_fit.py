"""Least squares of any function over any data, called like scipy's curve_fit."""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from distributed import Client
from jaxtyping import Float
from numpy.typing import ArrayLike

from homodyne_dask.apps.curve_fit.curve_fit_result import CurveFit
from homodyne_dask.apps.curve_fit.numpy_functions import needs_numpy, with_numpy
from homodyne_dask.apps.curve_fit.residual_fit import fit
from homodyne_dask.errors import OptionError, require_function, require_type, shown
from homodyne_dask.fitting.predict import numbers_of
from homodyne_dask.kernels.user_function_checks import require_real
from homodyne_dask.models.parameters import Parameter
from homodyne_dask.models.user_defined import ResidualModel, name_of_model
from homodyne_dask.text import counted


@dataclass(frozen=True)
class _Curve:
    """The residual (y - f(x, *theta)) / sigma, or y - f without sigma."""

    f: Callable[..., Any]
    stacked: bool
    """x is an array with a row for each coordinate; else there is one coordinate."""
    weighted: bool
    numpy: bool = False
    """f is written with NumPy."""

    def at(self, x: Sequence[Any], theta: Any) -> Any:
        """Return f at columns of coordinates."""
        f = with_numpy(self.f) if self.numpy else self.f
        return f(jnp.stack(x) if self.stacked else x[0], *theta)

    def __call__(self, theta: Any, *columns: Any) -> Any:
        *x, y, sigma = columns if self.weighted else (*columns, None)
        values = self.at(x, theta)
        require_real(name_of_model(None, self.f), self.f, values)
        return y - values if sigma is None else (y - values) / sigma


def curve_fit(
    f: Callable[..., Any],
    xdata: ArrayLike | xarray.Dataset | str | Path,
    ydata: ArrayLike | None = None,
    p0: ArrayLike | None = None,
    sigma: ArrayLike | str | None = None,
    absolute_sigma: bool = False,
    *,
    bounds: Any = (-np.inf, np.inf),
    coords: str | Sequence[str] = "x",
    data_var: str = "y",
    client: Client | None = None,
    max_passes: int = 1000,
) -> CurveFit:
    """Fit f(x, *params) to data by least squares; popt, pcov = curve_fit(...).

        curve_fit(f, xdata, ydata, p0, sigma, absolute_sigma, bounds=...)      arrays, as in scipy
        curve_fit(f, dataset, coords="x", data_var="y", p0=..., sigma=..., ...)

    f: a function of jax.numpy or NumPy that returns one value per point. Each value may depend only on its
    own point, because f is called with subsets of the points. xdata: M values, or (k, M), or k arrays of M
    values: f then gets an array of k rows. ydata: M values. dataset, in place of xdata: an xarray Dataset, or
    the path of a Zarr store; lazy ones are read chunk by chunk. coords, data_var: variables of it; with a
    list of coords, which are broadcast together, f gets an array with a row for each. p0: initial values; by
    default 1, or the middle of finite bounds, as in scipy. sigma: standard deviations: a number, one for each
    point, or for a dataset the name of a variable. absolute_sigma: whether sigma is absolute; if False, pcov
    is scaled to a reduced χ² of 1. bounds: (low, high), each a number or one per parameter, or scipy's
    Bounds. client: as in `fit`; data in memory, and fewer than four million points, are fitted in this
    process. max_passes: maximum number of passes over the data.

    Points with NaN in any variable are excluded; infinite values are an error, as in scipy. If the data do
    not determine every parameter, pcov is None (in scipy it is infinite). Raises a HomodyneDaskError for
    invalid input; `outcome` tells how the fit ended.

    >>> x = np.arange(5.0)
    >>> hd.curve_fit(lambda x, slope: slope * x, x, 2 * x).popt.round(6)
    array([2.])
    """
    require_function("f", f, needed=True)
    require_type("data_var", data_var, str, "the name of a variable")
    if not isinstance(xdata, xarray.Dataset | str | PathLike):
        xdata, coords = _points_from_arrays(xdata, ydata, sigma)
        data_var, sigma = "y", None if sigma is None else "sigma"
    elif ydata is not None:
        raise OptionError(
            f"ydata = {shown(ydata)} cannot be used with a dataset: give coords and data_var"
        )
    require_type("coords", coords, str | list | tuple, "the name of a variable, or a list of names")
    require_type("sigma", sigma, str | None, "the name of a variable of the dataset")
    given = None if p0 is None else numbers_of("p0", p0).ravel()
    parameters = tuple(
        Parameter(name, bounds=of) for name, of in _bounds(_names(f, given), bounds).items()
    )
    if given is None:
        given = [_feasible(*p.bounds) for p in parameters]
    elif len(given) != len(parameters):
        raise OptionError(
            f"p0 has {counted(len(given), 'value')} for {counted(len(parameters), 'parameter')}: give one "
            f"for each of {', '.join(p.name for p in parameters)}"
        )
    initial = {p.name: float(value) for p, value in zip(parameters, given, strict=True)}
    names = [coords] if isinstance(coords, str) else list(coords)
    curve = _Curve(f, not isinstance(coords, str), sigma is not None)
    number, column = (jax.ShapeDtypeStruct(shape, float) for shape in ((), (3,)))
    arguments = [column] * len(names), [number] * len(parameters)
    curve = replace(curve, numpy=needs_numpy(curve.at, *arguments))
    variables = (*names, data_var, *([sigma] if isinstance(sigma, str) else []))
    model = ResidualModel(name_of_model(None, f), parameters, curve, variables, f)
    options = {"client": client, "max_passes": max_passes}
    return fit(xdata, model, initial=initial, absolute_sigma=absolute_sigma, **options)


def _names(f: Callable[..., Any], p0: Float[np.ndarray, " p"] | None) -> Sequence[str]:
    """Return the arguments of f after x; those of *p have the names p0, p1, ..., by their place in `p0`."""
    signature = inspect.signature(f).parameters.values()
    arguments = [a for a in signature if a.kind is not a.KEYWORD_ONLY]
    named = arguments[1:] or arguments
    if p0 is not None and named and named[-1].kind is inspect.Parameter.VAR_POSITIONAL:
        named = named[:-1]
        more = [f"p{n}" for n in range(len(named), len(p0))]
        if all(a.kind is a.POSITIONAL_OR_KEYWORD for a in named):
            return [*(a.name for a in named), *more]
    if len(arguments) < 2 or any(a.kind is not a.POSITIONAL_OR_KEYWORD for a in named):
        raise OptionError(
            f"the parameters of {name_of_model(None, f)!r} cannot be read from its arguments: "
            f"write f(x, a, b), or give p0 for f(x, a, *p)"
        )
    return [a.name for a in named]


def _bounds(names: Sequence[str], bounds: Any) -> dict[str, tuple[float, float]]:
    if hasattr(bounds, "lb") and hasattr(bounds, "ub"):  # scipy.optimize.Bounds
        bounds = bounds.lb, bounds.ub
    try:
        low, high = (np.broadcast_to(np.asarray(edge, float), len(names)) for edge in bounds)
    except (TypeError, ValueError):
        raise OptionError(
            f"bounds = {shown(bounds)} cannot be used: give (low, high), each a number or one value "
            f"for each of {', '.join(names)}"
        ) from None
    return dict(zip(names, zip(low.tolist(), high.tolist(), strict=True), strict=True))


def _feasible(low: float, high: float) -> float:
    """Return the initial value that scipy takes without p0."""
    if math.isfinite(low):
        return 0.5 * (low + high) if math.isfinite(high) else low + 1
    return high - 1 if math.isfinite(high) else 1.0


def _points_from_arrays(
    xdata: Any, ydata: Any, sigma: Any
) -> tuple[xarray.Dataset, str | list[str]]:
    """Return x (of k rows x0, x1, ...), y and sigma as a dataset, and the names of its coordinates."""
    x, y = numbers_of("xdata", xdata), numbers_of("ydata", ydata)
    several = x.shape != y.shape and x.ndim > 1
    rows = x.reshape(len(x), -1) if several else x.reshape(1, -1)
    if rows.shape[1] != y.size or not y.size:
        raise OptionError(
            f"xdata of shape {x.shape} does not match ydata of shape {y.shape}: give M values of both, or "
            f"k rows of M values of xdata"
        )
    names = [f"x{n}" for n in range(len(rows))] if several else ["x"]
    columns = dict(zip(names, rows, strict=True)) | {"y": y.ravel()}
    if sigma is not None:
        deviations = numbers_of("sigma", sigma)
        if deviations.size not in (1, y.size):
            raise OptionError(
                f"sigma of shape {deviations.shape} does not match {y.size} points: give one standard "
                f"deviation, or one for each point; covariances of points are not supported"
            )
        columns["sigma"] = np.broadcast_to(deviations.ravel(), y.size)
    dataset = xarray.Dataset({name: ("point", column) for name, column in columns.items()})
    return dataset, names if several else "x"
