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
    from homodyne_dask.api import fit, plan
    from homodyne_dask.cluster import local_cluster
    from homodyne_dask.curvefit import CurveFit, curve_fit
    from homodyne_dask.dataset import Scan, open_dataset
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

_HOME = {
    "open_dataset": "dataset",
    "Scan": "dataset",
    "plan": "api",
    "fit": "api",
    "curve_fit": "curvefit",
    "CurveFit": "curvefit",
    "forecast": "forecasting",
    "predict": "prediction",
    "load_result": "result",
    "FitResult": "result",
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
    "HomodyneDaskError",
    "Outcome",
    "Parameter",
    "ResidualModel",
    "Scan",
    "SeparableModel",
    "TransportModel",
    "curve_fit",
    "fit",
    "forecast",
    "from_homodyne_yaml",
    "load_result",
    "local_cluster",
    "model",
    "open_dataset",
    "plan",
    "predict",
    "separable",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
