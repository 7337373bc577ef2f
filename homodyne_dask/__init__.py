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
    from homodyne_dask.cli import guide
    from homodyne_dask.cli.data_files import ingest, simulate
    from homodyne_dask.cli.homodyne.translate import from_homodyne_yaml
    from homodyne_dask.cluster.connect import connect
    from homodyne_dask.cluster.local import local_cluster
    from homodyne_dask.cluster.slurm.cluster import slurm_cluster
    from homodyne_dask.errors import HomodyneDaskError
    from homodyne_dask.fitting.api import fit, iterate, plan
    from homodyne_dask.fitting.check_rates import check_rates
    from homodyne_dask.fitting.compare_models import compare_models
    from homodyne_dask.fitting.curve_fit.curve_fit import curve_fit
    from homodyne_dask.fitting.curve_fit.result import CurveFit
    from homodyne_dask.fitting.forecast import forecast
    from homodyne_dask.fitting.posterior.posterior import posterior
    from homodyne_dask.fitting.predict import predict
    from homodyne_dask.fitting.series.fit_each import fit_each
    from homodyne_dask.live.view.server import view
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
        separable,
    )
    from homodyne_dask.models.parameters import Parameter
    from homodyne_dask.results.compare import compare
    from homodyne_dask.results.comparison import Comparison, load_comparison
    from homodyne_dask.results.fit_result import FitResult
    from homodyne_dask.results.posterior.posterior import Posterior, load_posterior
    from homodyne_dask.results.result_file import load_result
    from homodyne_dask.results.series import FitSeries, load_series
    from homodyne_dask.solver.levenberg_marquardt import Outcome
    from homodyne_dask.store.scan import Scan, open_dataset

    __version__: str

__path__.append(f"{__path__[0]}/live/old_names")  # for homodyne_dask.dashboard

_HOME = {
    "ingest": "cli.data_files",
    "simulate": "cli.data_files",
    "open_dataset": "store.scan",
    "Scan": "store.scan",
    "plan": "fitting.api",
    "fit": "fitting.api",
    "fit_each": "fitting.series.fit_each",
    "iterate": "fitting.api",
    "compare": "results.compare",
    "compare_models": "fitting.compare_models",
    "curve_fit": "fitting.curve_fit.curve_fit",
    "CurveFit": "fitting.curve_fit.result",
    "view": "live.view.server",
    "check_rates": "fitting.check_rates",
    "forecast": "fitting.forecast",
    "posterior": "fitting.posterior.posterior",
    "predict": "fitting.predict",
    "load_comparison": "results.comparison",
    "load_result": "results.result_file",
    "load_series": "results.series",
    "load_posterior": "results.posterior.posterior",
    "Posterior": "results.posterior.posterior",
    "Comparison": "results.comparison",
    "FitResult": "results.fit_result",
    "FitSeries": "results.series",
    "Outcome": "solver.levenberg_marquardt",
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
    "from_homodyne_yaml": "cli.homodyne.translate",
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
        return import_module(f"{__name__}.cli.guide")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
