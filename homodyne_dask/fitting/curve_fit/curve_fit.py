"""Least squares of any function over any dataset, with the names scipy and xarray use."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from distributed import Client
from numpy.typing import ArrayLike

from homodyne_dask.errors import require_function, require_type
from homodyne_dask.fitting.curve_fit import residual_fit
from homodyne_dask.fitting.curve_fit.arguments import (
    SIGMA,
    are_arrays,
    bounds_by_name,
    function_name,
    initial_by_name,
    names_of,
    parameter_names,
    points_from_arrays,
    refuse_options_of_scipy,
    sigma_of_points,
    with_sigma,
)
from homodyne_dask.fitting.curve_fit.curve_fit_result import CurveFit, curve_fit_result
from homodyne_dask.fitting.events import Callback
from homodyne_dask.fitting.minimize import run_to_completion
from homodyne_dask.kernels.numpy_functions import needs_numpy, with_numpy
from homodyne_dask.kernels.user_function_checks import require_real
from homodyne_dask.models.parameters import Parameter
from homodyne_dask.models.user_defined import ResidualModel
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.sweep.plan import Plan

Initial = float | ArrayLike | Mapping[str, float] | None


@dataclass(frozen=True)
class _Curve:
    """The residual (y - f(x, *theta)) / sigma, or y - f without sigma."""

    f: Callable[..., Any]
    coords: int
    weighted: bool
    stacked: bool = False
    """Several coordinates are one array of as many rows; else a tuple of arrays."""
    numpy: bool = False
    """f is written with NumPy."""

    def at(self, x: Sequence[Any], theta: Any) -> Any:
        """Return f at columns of coordinates."""
        f = with_numpy(self.f) if self.numpy else self.f
        if self.stacked:
            return f(jnp.stack(x), *theta)
        return f(x[0] if self.coords == 1 else x, *theta)

    def __call__(self, theta: Any, *columns: Any) -> Any:
        values = self.at(columns[: self.coords], theta)
        require_real(function_name(self.f), self.f, values)
        residual = columns[self.coords] - values
        return residual / columns[-1] if self.weighted else residual


@overload
def curve_fit(
    f: Callable[..., Any],
    dataset: xarray.Dataset | xarray.DataArray | str | Path,
    coords: str | Sequence[str] = "x",
    data_var: str = "y",
    *,
    p0: Initial = None,
    sigma: str | xarray.DataArray | ArrayLike | None = None,
    absolute_sigma: bool = False,
    bounds: Any = ...,
    param_names: Sequence[str] | None = None,
    client: Client | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    max_passes: int = 1000,
) -> CurveFit: ...
@overload
def curve_fit(
    f: Callable[..., Any],
    xdata: ArrayLike,
    ydata: ArrayLike,
    p0: Initial = None,
    sigma: ArrayLike | None = None,
    absolute_sigma: bool = False,
    *,
    bounds: Any = ...,
    param_names: Sequence[str] | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    max_passes: int = 1000,
) -> CurveFit: ...
def curve_fit(f: Callable[..., Any], *data: Any, **options: Any) -> CurveFit:
    """Fit f(x, *params) to data by least squares; popt, pcov = curve_fit(...).

        curve_fit(f, xdata, ydata, p0, sigma, absolute_sigma, bounds=...)      arrays, as in scipy
        curve_fit(f, dataset, coords="x", data_var="y", p0=..., sigma=..., ...)

    f: a function of jax.numpy or NumPy that returns one value per point. Each value may depend only on its
    own point, because f is called with subsets of the points. xdata: M values, or (k, M), or k arrays of M
    values: f then gets an array of k rows. ydata: M values. dataset: an xarray Dataset or DataArray
    (data_var is then its name, or 'y'), or the path of a Zarr store; lazy ones are read chunk by chunk.
    coords, data_var: variables of it; with several coords, x is a tuple of arrays that are broadcast
    together. p0: initial values in order or by name; by default 1, or the middle of finite bounds, as in
    scipy. sigma: standard deviations: a number, one for each point, or for a dataset the name of a
    variable. absolute_sigma: whether sigma is absolute; if False, pcov is scaled to a reduced χ² of 1.
    bounds: (low, high), each a number or one per parameter, or by name, or scipy's Bounds. param_names: by
    default the arguments of f after x. client, checkpoint, resume: as in `fit`; data in memory, and fewer
    than four million points, are fitted in this process. max_passes: maximum number of passes over the
    data.

    Points with NaN in any variable are excluded; infinite values are an error, as in scipy. If the data do
    not determine every parameter, pcov is None (in scipy it is infinite). Raises a HomodyneDaskError for
    invalid input; `outcome` tells how the fit ended.

    >>> x = np.arange(5.0)
    >>> hd.curve_fit(lambda x, slope: slope * x, x, 2 * x).popt.round(6)
    array([2.])
    """
    require_function("f", f, needed=True)
    if "xdata" in options or (data and are_arrays(*data)):
        return _fit_arrays(f, *data, **options)
    return _fit_dataset(f, *data, **options)


def _fit_arrays(
    f: Callable[..., Any],
    xdata: ArrayLike,
    ydata: Any = None,
    p0: Initial = None,
    sigma: ArrayLike | None = None,
    absolute_sigma: bool = False,
    **options: Any,
) -> CurveFit:
    refuse_options_of_scipy(options)
    points, coords = points_from_arrays(xdata, ydata)
    return _fit_dataset(
        f, points, coords, p0=p0, sigma=sigma_of_points(sigma, points.sizes["point"]),
        absolute_sigma=absolute_sigma, stacked=coords != ["x"], **options,
    )  # fmt: skip


def _fit_dataset(
    f: Callable[..., Any],
    dataset: Any,
    coords: str | Sequence[str] = "x",
    data_var: str = "y",
    *,
    p0: Initial = None,
    sigma: Any = None,
    absolute_sigma: bool = False,
    bounds: Any = (-np.inf, np.inf),
    param_names: Sequence[str] | None = None,
    stacked: bool = False,
    client: Client | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    max_passes: int = 1000,
) -> CurveFit:
    coords, names = names_of("coords", coords), parameter_names(f, param_names, p0)
    require_type("data_var", data_var, str, "the name of a variable")
    low_high = bounds_by_name(names, bounds)
    dataset, data_var = with_sigma(dataset, data_var, sigma)
    weighted = sigma is not None
    error = [] if not weighted else [sigma if isinstance(sigma, str) else SIGMA]
    model = ResidualModel(
        function_name(f),
        tuple(Parameter(name, bounds=low_high[name]) for name in names),
        _traceable(_Curve(f, len(coords), weighted, stacked), len(names)),
        (*coords, data_var, *error),
        f,
    )
    initial = initial_by_name(names, p0, low_high)
    return fit(
        dataset, model, initial=initial, absolute_sigma=absolute_sigma, client=client,
        checkpoint=checkpoint, resume=resume, max_passes=max_passes,
    )  # fmt: skip


def _traceable(curve: _Curve, parameters: int) -> _Curve:
    """Return the curve with a note where its function is written with NumPy."""
    number = jax.ShapeDtypeStruct((), float)
    x = [jax.ShapeDtypeStruct((3,), float)] * curve.coords
    return replace(curve, numpy=needs_numpy(curve.at, x, [number] * parameters))


def fit(data: Any, model: ResidualModel, **options: Any) -> CurveFit:
    """Fit a model made by `hd.model` to a dataset; see `iterate` for the options."""
    return run_to_completion(iterate(data, model, **options))


def plan(
    data: Any,
    model: ResidualModel,
    *,
    client: Client | None = None,
    workers: int | str | None = None,
    **options: Any,
) -> Plan:
    """Return the plan of a fit of a model made by `hd.model`; see `iterate` for the options."""
    request = residual_fit.prepare_residual_fit(data, model, **options)
    return residual_fit.plan_residual_fit(request, client, workers)


def iterate(
    data: Any,
    model: ResidualModel,
    *,
    initial: Mapping[str, float] | None = None,
    fixed: Mapping[str, float] | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    absolute_sigma: bool = True,
    client: Client | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    max_passes: int = 1000,
    callbacks: Sequence[Callback] = (),
) -> Generator[lm.State, None, CurveFit]:
    """Fit as `fit` does and yield the state after each pass.

    absolute_sigma: residuals are divided by their standard deviations; if False, their scatter gives it.
    """
    request = residual_fit.prepare_residual_fit(
        data, model, initial, fixed, bounds, absolute_sigma, max_passes
    )
    return curve_fit_result(
        request, (yield from residual_fit.iterate(request, client, checkpoint, resume, callbacks))
    )
