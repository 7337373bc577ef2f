"""`fit`, `iterate` and `plan` for scans and for any other dataset; the model decides which."""

from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from homodyne_dask.fitting import fit as fitting
from homodyne_dask.models import Model, ResidualModel, as_model

if TYPE_CHECKING:
    from collections.abc import Generator

    from distributed import Client

    from homodyne_dask.fitting.curve_fit.result import CurveFit
    from homodyne_dask.results.fit_result import FitResult
    from homodyne_dask.solver.levenberg_marquardt import State
    from homodyne_dask.store.scan import Scan
    from homodyne_dask.sweep.plan import Plan


@overload
def fit(data: "Scan | str | Path", model: Model | str, **options: Any) -> "FitResult": ...
@overload
def fit(data: Any, model: ResidualModel, **options: Any) -> "CurveFit": ...
@wraps(fitting.fit)
def fit(data: Any, model: Any, **options: Any) -> Any:
    """Fit a model to a scan, or one made by `model` to any dataset."""
    model = as_model(model)
    if not model.of_scans:
        from homodyne_dask.fitting.curve_fit.curve_fit import fit as fit_any

        return fit_any(data, model, **options)
    return fitting.fit(data, model, **options)


@overload
def iterate(
    data: "Scan | str | Path", model: Model | str, **options: Any
) -> "Generator[State, None, FitResult]": ...
@overload
def iterate(
    data: Any, model: ResidualModel, **options: Any
) -> "Generator[State, None, CurveFit]": ...
@wraps(fitting.iterate)
def iterate(data: Any, model: Any, **options: Any) -> Any:
    """Fit a model to a scan, or to any dataset, pass by pass."""
    model = as_model(model)
    if not model.of_scans:
        from homodyne_dask.fitting.curve_fit.curve_fit import iterate as iterate_any

        return iterate_any(data, model, **options)
    return fitting.iterate(data, model, **options)


@overload
def plan(data: "Scan | str | Path", model: Model | str, **options: Any) -> "Plan": ...
@overload
def plan(
    data: Any,
    model: ResidualModel,
    *,
    client: "Client | None" = None,
    workers: int | str | None = None,
    **options: Any,
) -> "Plan": ...
@wraps(fitting.plan)
def plan(data: Any, model: Any, **options: Any) -> Any:
    """Plan a fit of a scan, or of any dataset."""
    model = as_model(model)
    if not model.of_scans:
        from homodyne_dask.fitting.curve_fit.residual_fit import (
            plan_residual_fit,
            prepare_residual_fit,
        )

        client, workers = options.pop("client", None), options.pop("workers", None)
        return plan_residual_fit(prepare_residual_fit(data, model, **options), client, workers)
    return fitting.plan(data, model, **options)
