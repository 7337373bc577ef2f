"""Least squares of any function over any dataset, with the names scipy and xarray use."""

import inspect
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray
from distributed import Client
from numpy.typing import ArrayLike

from homodyne_dask.errors import OptionError
from homodyne_dask.fitting.curve_fit import residual_fit
from homodyne_dask.fitting.curve_fit.result import CurveFit, curve_fit_result
from homodyne_dask.fitting.minimize import run_to_completion
from homodyne_dask.live.progress import Progress
from homodyne_dask.models.parameters import Parameter
from homodyne_dask.models.residual import ResidualModel
from homodyne_dask.solver import levenberg_marquardt as lm

SIGMA = "homodyne_dask_sigma"
"""Name of the variable that holds a sigma passed as an array or a data array."""


@dataclass(frozen=True)
class _Curve:
    """The residual (y - f(x, *theta)) / sigma, or y - f without sigma."""

    f: Callable[..., Any]
    coords: int
    weighted: bool

    def __call__(self, theta: Any, *columns: Any) -> Any:
        x = columns[: self.coords]
        residual = columns[self.coords] - self.f(x[0] if self.coords == 1 else x, *theta)
        return residual / columns[-1] if self.weighted else residual


def curve_fit(
    f: Callable[..., Any],
    dataset: Any,
    coords: str | Sequence[str] = "x",
    data_var: str = "y",
    *,
    p0: float | Sequence[float] | Mapping[str, float] | None = None,
    sigma: str | xarray.DataArray | float | None = None,
    absolute_sigma: bool = False,
    bounds: Mapping[str, tuple[float, float]] | tuple[ArrayLike, ArrayLike] = (-np.inf, np.inf),
    param_names: Sequence[str] | None = None,
    client: Client | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    max_passes: int = 1000,
) -> CurveFit:
    """Fit f(x, *params) to a variable of a dataset by least squares; popt, pcov = curve_fit(...).

    f: a JAX function; with several coords, x is a tuple of arrays that are broadcast together.
    dataset: an xarray Dataset or DataArray (data_var is then its name, or 'y'), or the path of a
    Zarr store; lazy ones are read chunk by chunk. coords, data_var: variables of it. A point of
    which any variable is NaN is excluded; an infinite value is an error, as in scipy.
    p0: initial values in order or by name; by default 1, or the middle of finite bounds, as in scipy.
    sigma: standard deviations: a variable's name, an array of the data's dimensions, or a number.
    absolute_sigma: sigma is absolute; if False, pcov is scaled to a reduced χ² of 1.
    bounds: (low, high), each a number or one per parameter, or by name. param_names: by default
    the arguments of f after x. client, checkpoint, resume: as in `fit`; data in memory are fitted
    in this process, and so are fewer than four million points.

    Raises a HomodyneDaskError for mistakes; how the fit ended is `outcome`.
    """
    coords = [coords] if isinstance(coords, str) else list(coords)
    names = tuple(param_names) if param_names is not None else _arguments(f)
    low_high = _bounds(names, bounds)
    dataset, data_var = _with_sigma(dataset, data_var, sigma)
    weighted = sigma is not None
    error = [] if not weighted else [sigma if isinstance(sigma, str) else SIGMA]
    model = ResidualModel(
        str(getattr(f, "__name__", "f")),
        tuple(Parameter(name, bounds=low_high[name]) for name in names),
        _Curve(f, len(coords), weighted),
        (*coords, data_var, *error),
        f,
    )
    return fit(
        dataset, model, initial=_initial(names, p0, low_high), absolute_sigma=absolute_sigma,
        client=client, checkpoint=checkpoint, resume=resume, max_passes=max_passes,
    )  # fmt: skip


def fit(
    data: Any,
    model: ResidualModel,
    *,
    progress: Callable[[lm.State], None] | None = None,
    **options: Any,
) -> CurveFit:
    """Fit a model made by `hd.model` to a dataset; see `iterate` for the options."""
    return run_to_completion(iterate(data, model, **options), progress)


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
    watch: Callable[[Progress], None] | None = None,
) -> Generator[lm.State, None, CurveFit]:
    """Fit as `fit` does and yield the state after each pass.

    absolute_sigma: residuals are divided by their standard deviations; if False, their scatter gives it.
    """
    request = residual_fit.prepare_residual_fit(
        data, model, initial, fixed, bounds, absolute_sigma, max_passes
    )
    path = None if checkpoint is None else Path(checkpoint)
    return curve_fit_result(
        request, (yield from residual_fit.iterate(request, client, path, resume, watch))
    )


def _arguments(f: Callable[..., Any]) -> tuple[str, ...]:
    arguments = list(inspect.signature(f).parameters.values())[1:]
    if not arguments or any(a.kind is not a.POSITIONAL_OR_KEYWORD for a in arguments):
        raise OptionError(
            f"the parameters of {getattr(f, '__name__', 'f')!r} cannot be read from its arguments: "
            f"write f(x, a, b), or give param_names"
        )
    return tuple(a.name for a in arguments)


def _bounds(names: tuple[str, ...], bounds: Any) -> dict[str, tuple[float, float]]:
    if isinstance(bounds, Mapping):
        unknown = [name for name in bounds if name not in names]
        if unknown:
            raise OptionError(f"bounds: {unknown[0]!r} is no parameter of {', '.join(names)}")
        return {name: bounds.get(name, (-np.inf, np.inf)) for name in names}
    try:
        low, high = (np.broadcast_to(np.asarray(edge, float), len(names)) for edge in bounds)
    except (TypeError, ValueError):
        raise OptionError(
            f"bounds = {bounds!r} are not (low, high), each a number or one for each of "
            f"{', '.join(names)}, nor pairs by name"
        ) from None
    return {name: (float(a), float(b)) for name, a, b in zip(names, low, high, strict=True)}


def _initial(
    names: tuple[str, ...], p0: Any, bounds: dict[str, tuple[float, float]]
) -> dict[str, float]:
    values: dict[str, float] = {}
    if isinstance(p0, Mapping):
        values = dict(p0)
    elif p0 is not None:
        given = np.ravel(p0).tolist()  # one number for one parameter, as in scipy
        if len(given) != len(names):
            raise OptionError(f"p0 has {len(given)} values for {len(names)} parameters")
        values = dict(zip(names, given, strict=True))
    return {name: _feasible(*bounds[name]) for name in names} | values


def _feasible(low: float, high: float) -> float:
    """Return the initial value that scipy takes without p0."""
    if math.isfinite(low):
        return 0.5 * (low + high) if math.isfinite(high) else low + 1
    return high - 1 if math.isfinite(high) else 1.0


def _with_sigma(dataset: Any, data_var: str, sigma: Any) -> tuple[Any, str]:
    """Return the dataset with sigma as a variable of it, and the name of the data variable."""
    if isinstance(dataset, xarray.DataArray):
        data_var = str(dataset.name or "y")
        dataset = dataset.to_dataset(name=data_var)
    if sigma is None or isinstance(sigma, str):
        return dataset, data_var
    if not isinstance(dataset, xarray.Dataset):
        raise OptionError("with a store, sigma must be the name of one of its variables")
    dims = dataset[data_var].dims if np.ndim(sigma) else ()
    if not isinstance(sigma, xarray.DataArray):
        return dataset.assign({SIGMA: (dims, np.asarray(sigma, float))}), data_var
    try:
        xarray.align(dataset, sigma, join="exact", copy=False)
    except ValueError as e:
        raise OptionError(
            f"sigma and the data differ in their coordinates: give sigma at each point of the data ({e})"
        ) from None
    return dataset.assign({SIGMA: sigma}), data_var
