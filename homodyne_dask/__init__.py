"""Fit transport models to X-ray two-time correlations, chunk by chunk, on Dask.

    import homodyne_dask as hd

    scan = hd.open_dataset("A0123_c2.zarr").select(q=0.0054)   # bins of one ring, nothing read yet
    print(hd.plan(scan, hd.LAMINAR_FLOW))                      # pairs, tiles, bytes, memory
    result = hd.fit(scan, hd.LAMINAR_FLOW, gap="200 um")       # workers on this machine
    print(result)                                              # outcome, value ± error [unit]
    result.to_json("A0123.json")

Importing the package sets nothing and loads nothing heavy: each name below is loaded at first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from homodyne_dask import guide
    from homodyne_dask.api import fit, iterate, plan
    from homodyne_dask.batch.clusters import slurm_cluster
    from homodyne_dask.cluster import local_cluster
    from homodyne_dask.connecting import connect
    from homodyne_dask.curvefit import CurveFit, curve_fit
    from homodyne_dask.dataset import Scan, open_dataset
    from homodyne_dask.each import fit_each
    from homodyne_dask.errors import HomodyneDaskError
    from homodyne_dask.forecasting import forecast
    from homodyne_dask.homodyne.translate import from_homodyne_yaml
    from homodyne_dask.lm import Outcome
    from homodyne_dask.models import (
        LAMINAR_FLOW,
        MODELS,
        STATIC,
        Convention,
        ResidualModel,
        SeparableModel,
        TransportModel,
        model,
        separable,
    )
    from homodyne_dask.parameters import Parameter
    from homodyne_dask.prediction import predict
    from homodyne_dask.result import FitResult, load_result
    from homodyne_dask.series import FitSeries, load_series

_HOME = {
    "open_dataset": "dataset",
    "Scan": "dataset",
    "plan": "api",
    "fit": "api",
    "fit_each": "each",
    "iterate": "api",
    "curve_fit": "curvefit",
    "CurveFit": "curvefit",
    "forecast": "forecasting",
    "predict": "prediction",
    "load_result": "result",
    "load_series": "series",
    "FitResult": "result",
    "FitSeries": "series",
    "Outcome": "lm",
    "LAMINAR_FLOW": "models",
    "STATIC": "models",
    "MODELS": "models",
    "Convention": "models",
    "TransportModel": "models",
    "SeparableModel": "models",
    "separable": "models",
    "ResidualModel": "models",
    "model": "models",
    "Parameter": "parameters",
    "local_cluster": "cluster",
    "connect": "connecting",
    "slurm_cluster": "batch.clusters",
    "from_homodyne_yaml": "homodyne.translate",
    "HomodyneDaskError": "errors",
}

__all__ = [
    "LAMINAR_FLOW",
    "MODELS",
    "STATIC",
    "Convention",
    "CurveFit",
    "FitResult",
    "FitSeries",
    "HomodyneDaskError",
    "Outcome",
    "Parameter",
    "ResidualModel",
    "Scan",
    "SeparableModel",
    "TransportModel",
    "connect",
    "curve_fit",
    "fit",
    "fit_each",
    "forecast",
    "from_homodyne_yaml",
    "guide",
    "iterate",
    "load_result",
    "load_series",
    "local_cluster",
    "model",
    "open_dataset",
    "plan",
    "predict",
    "separable",
    "slurm_cluster",
]


def __getattr__(name: str) -> Any:
    if name == "guide":
        return import_module(f"{__name__}.guide")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
