"""`fit` of any data: a scan, scans as one fit, or, with a `ResidualModel`, any dataset."""

from collections.abc import Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from homodyne_dask.fitting import fit as fitting
from homodyne_dask.models import Model, ResidualModel, as_model
from homodyne_dask.plugins import application

if TYPE_CHECKING:
    from homodyne_dask import CurveFit
    from homodyne_dask.results.result_classes import FitResult, FitSeries
    from homodyne_dask.store.scan import Scan


@overload
def fit(data: "Scan | str | Path", model: Model | str, **options: Any) -> "FitResult": ...
@overload
def fit(data: "Sequence[Scan | str | Path]", model: Model | str, **options: Any) -> "FitSeries": ...
@overload
def fit(data: Any, model: ResidualModel, **options: Any) -> "CurveFit": ...
@wraps(fitting.fit)
def fit(data: Any, model: Any, **options: Any) -> Any:
    model = as_model(model)
    if isinstance(model, ResidualModel):
        fit_residuals = application("curve_fit", "a fit of a ResidualModel")
        return fit_residuals(data, model, **options)
    if isinstance(data, list | tuple):
        # lazy: it loads Dask
        from homodyne_dask.fitting.series.rings_and_windows import fit_scans

        return fit_scans(data, model, **options)
    return fitting.fit(data, model, **options)
