"""Fit transport models to X-ray two-time correlations, chunk by chunk, on Dask.

    import homodyne_dask as hd

    hd.ingest("A0123_results.hdf")                             # → A0123_c2.zarr
    scan = hd.open_dataset("A0123_c2.zarr").select(q=0.0054)   # bins of one ring, nothing read yet
    print(hd.plan(scan, "laminar_flow"))                       # pairs, tiles, bytes, memory
    result = hd.fit(scan, "laminar_flow", gap="200 um")        # workers on this machine
    print(result)                                              # outcome, value ± error [unit]
    result.to_json("A0123.json")
    print(hd.guide.index())                                    # the pages of the user guide

Importing the package sets nothing and loads nothing heavy: each name below is loaded at first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from homodyne_dask.api import fit, ingest, iterate, plan, simulate
    from homodyne_dask.apps.guide import user_guide as guide
    from homodyne_dask.apps.migration.translate_yaml import from_homodyne_yaml
    from homodyne_dask.apps.view.view_server import view
    from homodyne_dask.cluster.connect import connect
    from homodyne_dask.cluster.local import local_cluster
    from homodyne_dask.cluster.slurm.cluster import slurm_cluster
    from homodyne_dask.errors import HomodyneDaskError
    from homodyne_dask.fitting.check_rates import check_rates
    from homodyne_dask.fitting.choose_model import compare_models
    from homodyne_dask.fitting.curve_fit.curve_fit import curve_fit
    from homodyne_dask.fitting.curve_fit.curve_fit_result import CurveFit
    from homodyne_dask.fitting.forecast import forecast
    from homodyne_dask.fitting.posterior.sample_posterior import posterior
    from homodyne_dask.fitting.predict import predict
    from homodyne_dask.fitting.series.rings_and_windows import fit_each
    from homodyne_dask.models import (
        BROWNIAN,
        LAMINAR_FLOW,
        MODELS,
        POWER_LAW,
        STATIC,
        Convention,
        ResidualModel,
        SeparableModel,
        TransportModel,
        model,
    )
    from homodyne_dask.models import user_defined as separable
    from homodyne_dask.models.parameters import Parameter
    from homodyne_dask.results.data.compare import compare
    from homodyne_dask.results.data.fit_result import FitResult
    from homodyne_dask.results.data.model_ranking import Comparison, load_comparison
    from homodyne_dask.results.data.posterior import Posterior, load_posterior
    from homodyne_dask.results.data.series import FitSeries, load_series
    from homodyne_dask.results.files.load_result import load_result
    from homodyne_dask.solver.state import Outcome
    from homodyne_dask.store.scan import Scan, open_dataset

    __version__: str

__path__.append(f"{__path__[0]}/apps/old_names")  # for homodyne_dask.dashboard

_HOME = {
    "ingest": "api",
    "simulate": "api",
    "open_dataset": "store.scan",
    "Scan": "store.scan",
    "plan": "api",
    "fit": "api",
    "fit_each": "fitting.series.rings_and_windows",
    "iterate": "api",
    "compare": "results.data.compare",
    "compare_models": "fitting.choose_model",
    "curve_fit": "fitting.curve_fit.curve_fit",
    "CurveFit": "fitting.curve_fit.curve_fit_result",
    "view": "apps.view.view_server",
    "check_rates": "fitting.check_rates",
    "forecast": "fitting.forecast",
    "posterior": "fitting.posterior.sample_posterior",
    "predict": "fitting.predict",
    "load_comparison": "results.data.model_ranking",
    "load_result": "results.files.load_result",
    "load_series": "results.data.series",
    "load_posterior": "results.data.posterior",
    "Posterior": "results.data.posterior",
    "Comparison": "results.data.model_ranking",
    "FitResult": "results.data.fit_result",
    "FitSeries": "results.data.series",
    "Outcome": "solver.state",
    "BROWNIAN": "models",
    "POWER_LAW": "models",
    "LAMINAR_FLOW": "models",
    "STATIC": "models",
    "MODELS": "models",
    "Convention": "models",
    "TransportModel": "models",
    "SeparableModel": "models",
    "separable": "models",
    "ResidualModel": "models",
    "model": "models",
    "Parameter": "models.parameters",
    "local_cluster": "cluster.local",
    "connect": "cluster.connect",
    "slurm_cluster": "cluster.slurm.cluster",
    "from_homodyne_yaml": "apps.migration.translate_yaml",
    "HomodyneDaskError": "errors",
}

__all__ = [
    "BROWNIAN",
    "LAMINAR_FLOW",
    "MODELS",
    "POWER_LAW",
    "STATIC",
    "Comparison",
    "Convention",
    "CurveFit",
    "FitResult",
    "FitSeries",
    "HomodyneDaskError",
    "Outcome",
    "Parameter",
    "Posterior",
    "ResidualModel",
    "Scan",
    "SeparableModel",
    "TransportModel",
    "__version__",
    "check_rates",
    "compare",
    "compare_models",
    "connect",
    "curve_fit",
    "fit",
    "fit_each",
    "forecast",
    "from_homodyne_yaml",
    "guide",
    "ingest",
    "iterate",
    "load_comparison",
    "load_posterior",
    "load_result",
    "load_series",
    "local_cluster",
    "model",
    "open_dataset",
    "plan",
    "posterior",
    "predict",
    "separable",
    "simulate",
    "slurm_cluster",
    "view",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("homodyne-dask")
    if name == "guide":
        return import_module(f"{__name__}.apps.guide.user_guide")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
