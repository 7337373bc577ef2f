"""Least squares of any function over any data, with the solver of `fit`."""

import inspect
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

from homodyne_dask.apps.curve_fit import residuals as points
from homodyne_dask.apps.curve_fit.numpy_functions import with_numpy
from homodyne_dask.document.blocks import Document, Printed, Section, Sentences, Table, Verdict
from homodyne_dask.errors import OptionError, require_count, require_function, require_type, shown
from homodyne_dask.fitting.minimize import FitRecord, SolverRequest, minimize
from homodyne_dask.fitting.predict import numbers_of
from homodyne_dask.kernels.backend import compilations
from homodyne_dask.kernels.backend_interface import SUM_ROUNDING
from homodyne_dask.kernels.user_function_checks import require_real
from homodyne_dask.models.parameters import Parameter, search
from homodyne_dask.models.user_defined import ResidualModel, name_of_model
from homodyne_dask.read_only import HandedOut
from homodyne_dask.results.data.findings import Findings, finding
from homodyne_dask.results.data.fit_result import undetermined_names
from homodyne_dask.results.data.numbers_and_intervals import value_and_error
from homodyne_dask.solver import levenberg_marquardt as lm
from homodyne_dask.solver.covariance import determined_at, expanded
from homodyne_dask.solver.normal_matrix import eigensystem
from homodyne_dask.solver.scaling_modes import Scaling
from homodyne_dask.text import counted

OPTIONS = lm.SolverOptions(
    decrement=1e-10, relative_step=1e-10, relative_rounding=1e-9, trust_region=True
)
"""More than the eight digits that are promised; with a trust region, because the user's initial values
may be far from the optimum: of the 54 fits of NIST StRD 53 end at the certified values, 49 without it."""


@dataclass(frozen=True, repr=False)
class CurveFit(HandedOut, Printed):
    """The result of `curve_fit`, or of `fit` with a `ResidualModel`: popt, pcov = result."""

    names: tuple[str, ...]
    popt: Float[np.ndarray, " p"]
    pcov: Float[np.ndarray, "p p"] | None
    """NaN in rows of parameters that are fixed or at a bound; None where the data do not determine every
    parameter, or there are not more points than parameters."""
    outcome: lm.Outcome
    """How the fit ended: `Outcome.CONVERGED`, or another."""
    chisqr: float
    redchi: float
    """χ² divided by the degrees of freedom."""
    ndata: int
    """Number of points used: those at which every variable is known."""
    passes: int
    findings: Findings
    """On what the data do not determine."""
    model: str
    units: tuple[str, ...]
    compilations: dict[str, int]

    def __iter__(self) -> Iterator[np.ndarray | None]:
        """Yield popt and pcov, as scipy returns them."""
        return iter((self.popt, self.pcov))

    @property
    def converged(self) -> bool:
        """Whether the fit ended at its optimum with every parameter determined."""
        return self.outcome is lm.Outcome.CONVERGED

    @property
    def stderr(self) -> Float[np.ndarray, " p"]:
        """The square roots of the diagonal of pcov; NaN where unknown."""
        unknown = np.full(len(self.names), np.nan)
        return unknown if self.pcov is None else np.sqrt(np.diag(self.pcov))

    def _document(self) -> Document:
        lost = np.isin(self.names, [*undetermined_names(self.findings)])
        values = np.where(lost, np.nan, self.popt)
        cells = map(value_and_error, values, self.stderr)
        columns = zip(self.names, cells, self.units, strict=True)
        rows = [["parameter", "value ± stderr", "unit"], *map(list, columns)]
        findings = [(f.severity.value, f.sentence) for f in self.findings]
        facts = (
            f"χ² {self.chisqr:.6g} for {self.ndata:,} points, reduced χ² {self.redchi:.6g}, "
            f"{self.passes} pass{'es' * (self.passes != 1)}"
        )
        outcome = Verdict(self.converged, self.outcome.value, findings)
        parameters = Section("Parameters", [Table("", rows, 3), Sentences([facts])])
        return Document(self.model, [Section("Outcome", [outcome]), parameters])


def fit(
    data: Any,
    model: ResidualModel,
    *,
    initial: Mapping[str, float] | None = None,
    fixed: Mapping[str, float] | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    absolute_sigma: bool = True,
    max_passes: int = 1000,
) -> CurveFit:
    """Fit a model made by `hd.model` to a dataset, or to the path of a Zarr store.

    absolute_sigma: residuals are divided by their standard deviations; if False, their scatter gives it.
    max_passes: maximum number of passes over the data. Raises a HomodyneDaskError for mistakes.
    """
    require_count("max_passes", max_passes)
    require_type("absolute_sigma", absolute_sigma, bool, "True or False")
    model = model.current()
    # nothing is eliminated: y is the residual, f is 0
    scaling = Scaling("fixed", fixed_params=np.array([[0.0, 1.0]]))
    search_of_fit = search(model.parameters, initial, fixed, bounds)
    solver = replace(OPTIONS, max_passes=max_passes)
    request = SolverRequest(search_of_fit, solver, scaling, SUM_ROUNDING["float64"])
    for name, value in zip(search_of_fit.names, search_of_fit.start, strict=True):
        if np.isnan(value):
            raise OptionError(f"{name} has no initial value: give initial={{{name!r}: ...}}")
    columns = points.columns_of(points.dataset_of(data, model.variables), model.variables)
    points.check_residual(model, search_of_fit.start, columns[0])
    passes: Any = points.ResidualPasses(
        model, columns
    )  # of what `Passes` lists it has what is called
    compiled_before = compilations()
    record = FitRecord(time.perf_counter())
    *_, state = minimize(request, passes, lambda _: lm.Trial(search_of_fit.start), record)
    reduced = state.reduced
    freedom = reduced.ndata - int(search_of_fit.free.sum())
    redchi = reduced.chisqr / freedom if freedom > 0 else np.nan
    scale = 1.0 if absolute_sigma else redchi
    inverse = _inverse(passes, state, search_of_fit.free_inside_bounds(state.theta))
    unknown = determined_at(search_of_fit, state).undetermined
    return CurveFit(
        names=search_of_fit.names,
        popt=state.theta.copy(),
        pcov=None if inverse is None or np.isnan(scale) else inverse * scale,
        outcome=state.outcome,
        chisqr=reduced.chisqr,
        redchi=redchi,
        ndata=reduced.ndata,
        passes=state.passes,
        findings=Findings(finding("undetermined", names) for names in unknown),
        model=model.name,
        units=tuple(p.unit for p in model.parameters),
        compilations={name: n - compiled_before.get(name, 0) for name, n in compilations().items()},
    )


def _inverse(
    passes: points.ResidualPasses, state: lm.State, free: Bool[np.ndarray, " p"]
) -> Float[np.ndarray, "p p"] | None:
    """Return (JᵀJ)⁻¹ from one more pass, with derivatives along the eigenvectors of JᵀJ.

    Along eigenvectors divided by the square roots of their eigenvalues, JᵀJ is the identity up to the
    rounding of the first sums: the inverse is as accurate as one from an orthogonal factorization of J.
    """
    if not (free.any() and state.reduced.finite):
        return None
    scaled = eigensystem(state.reduced.hessian[np.ix_(free, free)])
    if not scaled.above_rounding(state.reduced.relative_hessian_rounding[free]).all():
        return None
    n, directions = int(free.sum()), np.zeros((len(free), len(free)))
    directions[free, :n] = scaled.inverse_root
    gram = passes.along(state.theta, directions)
    nearly_one, along = gram.moments[0, 3 : 3 + n, 3 : 3 + n], scaled.inverse_root
    return expanded(along @ np.linalg.solve(nearly_one, along.T), free)


@dataclass(frozen=True)
class _Curve:
    """The residual (y - f(x, *theta)) / sigma, or y - f without sigma."""

    f: Callable[..., Any]
    stacked: bool
    """x is an array with a row for each coordinate; else there is one coordinate."""
    weighted: bool

    def __call__(self, theta: Any, *columns: Any) -> Any:
        *x, y, sigma = columns if self.weighted else (*columns, 1.0)
        arguments = jnp.stack(x) if self.stacked else x[0], *theta
        try:
            values = self.f(*arguments)
        except jax.errors.TracerArrayConversionError:  # it calls NumPy
            values = with_numpy(self.f)(*arguments)
        require_real(name_of_model(None, self.f), self.f, values)
        return (y - values) / sigma


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
    max_passes: int = 1000,
) -> CurveFit:
    """Fit f(x, *params) to data by least squares; popt, pcov = curve_fit(...).

        curve_fit(f, xdata, ydata, p0, sigma, absolute_sigma, bounds=...)      arrays, as in scipy
        curve_fit(f, dataset, coords="x", data_var="y", p0=..., sigma=..., ...)

    f: a function of jax.numpy or NumPy that returns one value per point. Each value may depend only on its
    own point, because f is called with subsets of the points. xdata: M values, or (k, M), or k arrays of M
    values: f then gets an array of k rows. ydata: M values. dataset, in place of xdata: an xarray Dataset, or
    the path of a Zarr store; coords, data_var: variables of it; with a list of coords, which are broadcast
    together, f gets an array with a row for each. p0: initial values; by default 1, or the middle of finite
    bounds, as in scipy. sigma: standard deviations: a number, one for each point, or for a dataset the name
    of a variable. absolute_sigma: whether sigma is absolute; if False, pcov is scaled to a reduced χ² of 1.
    bounds: (low, high), each a number or one per parameter, or scipy's Bounds. max_passes: maximum number of
    passes over the data.

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
    start = None if p0 is None else numbers_of("p0", p0).ravel()
    names = _names(f, start)
    low, high = _bounds(names, bounds)
    if start is None:  # the middle of finite bounds, 1 beside a bound, as in scipy
        below = np.where(np.isfinite(low), low, np.where(np.isfinite(high), high - 2, 0.0))
        start = (below + np.where(np.isfinite(high), high, below + 2)) / 2
    if len(start) != len(names):
        raise OptionError(
            f"p0 has {counted(len(start), 'value')} for {counted(len(names), 'parameter')}: give one "
            f"for each of {', '.join(names)}"
        )
    bounds_of = zip(low.tolist(), high.tolist(), strict=True)
    parameters = tuple(Parameter(n, bounds=ends) for n, ends in zip(names, bounds_of, strict=True))
    stacked = not isinstance(coords, str)
    coordinates = list(coords) if stacked else [coords]
    variables = (*coordinates, data_var, *([sigma] if isinstance(sigma, str) else []))
    curve = _Curve(f, stacked, sigma is not None)
    model = ResidualModel(name_of_model(None, f), parameters, curve, variables, f)
    initial = dict(zip(names, start.tolist(), strict=True))
    options = {"absolute_sigma": absolute_sigma, "max_passes": max_passes}
    return fit(xdata, model, initial=initial, **options)


def _names(f: Callable[..., Any], p0: Float[np.ndarray, " p"] | None) -> list[str]:
    """Return the arguments of f after x; those of *p have the names p0, p1, ..., by their place in `p0`."""
    signature = inspect.signature(f).parameters.values()
    arguments = [a for a in signature if a.kind is not a.KEYWORD_ONLY]
    names = [
        a.name for a in arguments[1:] if a.kind in (a.POSITIONAL_ONLY, a.POSITIONAL_OR_KEYWORD)
    ]
    if p0 is not None and arguments and arguments[-1].kind is inspect.Parameter.VAR_POSITIONAL:
        names += [f"p{n}" for n in range(len(names), len(p0))]
        arguments = [*arguments[:1], *names]
    if not names or len({*names}) + 1 < len(arguments):
        raise OptionError(
            f"the parameters of {name_of_model(None, f)!r} cannot be read from its arguments: "
            f"write f(x, a, b), or give p0 for f(x, a, *p)"
        )
    return names


def _bounds(names: Sequence[str], bounds: Any) -> list[Float[np.ndarray, " p"]]:
    try:
        pair = (bounds.lb, bounds.ub) if hasattr(bounds, "lb") else bounds
        low, high = (np.broadcast_to(np.asarray(edge, float), len(names)) for edge in pair)
    except (TypeError, ValueError):
        raise OptionError(
            f"bounds = {shown(bounds)} cannot be used: give (low, high), each a number or one value "
            f"for each of {', '.join(names)}"
        ) from None
    return [low, high]


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
