"""Fit transport models to X-ray two-time correlations, chunk by chunk, on Dask.

    import homodyne_dask as hd

    hd.ingest("A0123_results.hdf")                             # → A0123_c2.zarr
    scan = hd.open_dataset("A0123_c2.zarr").select(q=0.0054)   # bins of one ring, nothing read yet
    print(hd.plan(scan, "laminar_flow"))                       # pairs, tiles, bytes, memory
    result = hd.fit(scan, "laminar_flow", gap="200 um")        # on this machine
    print(result)                                              # outcome, value ± error [unit]
    result.to_json("A0123.json")
    print(hd.guide.index())                                    # the pages of the user guide

Importing the package sets nothing and loads nothing heavy: each name below is loaded at first use.
Type checkers read `__init__.pyi`. The library lazy_loader would parse that file at each import, for ten times
as long as the import takes now, and has no second name for a module, as `guide` is one.
"""

from importlib import import_module
from types import ModuleType

_NAMES = {
    "api": ("ingest", "read_g2"),
    "apps.curve_fit.curve_fit": ("CurveFit", "curve_fit"),
    "apps.design.errors_of_plan": ("Design", "design", "design_like"),
    "apps.migration.translate_yaml": ("from_homodyne_yaml",),
    "apps.posterior.posterior": ("Posterior", "load_posterior"),
    "apps.posterior.sample_posterior": ("posterior",),
    "apps.slurm.jobs": ("slurm_cluster",),
    "apps.view.view_server": ("view",),
    "cluster.connect": ("connect",),
    "cluster.local": ("local_cluster",),
    "errors": ("HomodyneDaskError",),
    "fitting.choose_model": ("compare_models",),
    "fitting.fit": ("iterate", "plan"),
    "fitting.fit_any": ("fit",),
    "fitting.g2": ("g2",),
    "fitting.predict": ("predict",),
    "fitting.series.rings_and_windows": ("fit_each",),
    "models": (
        "BROWNIAN",
        "COUETTE",
        "Convention",
        "LAMINAR_FLOW",
        "MODELS",
        "POWER_LAW",
        "ResidualModel",
        "STATIC",
        "SeparableModel",
        "TransportModel",
        "model",
        "separable",
    ),
    "models.parameters": ("Parameter",),
    "results.result_classes": ("Comparison", "FitResult", "FitSeries"),
    "results.saved_results": (
        "compare",
        "compare_results",
        "load_comparison",
        "load_result",
        "load_series",
    ),
    "simulation": ("simulate",),
    "solver.levenberg_marquardt": ("Outcome",),
    "store.scan": ("Scan", "open_dataset"),
}
_MODULES = {"events": "fitting.events", "guide": "apps.guide.user_guide", "readers": "readers"}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted([*_HOMES, *_MODULES, "__version__"])  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name == "__version__":
        return import_module("importlib.metadata").version("homodyne-dask")
    if name in _MODULES:
        return _imported(_MODULES[name], name)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_imported(_HOMES[name], name), name)


def _imported(module: str, name: str) -> ModuleType:
    """Return a module; raises PackageError for an application that was taken out of the package."""
    application = ".".join([__name__, *module.split(".")[:2]])
    try:
        return import_module(f"{__name__}.{module}")
    except ModuleNotFoundError as e:
        if not module.startswith("apps.") or e.name not in (f"{__name__}.apps", application):
            raise
        from homodyne_dask.errors import PackageError  # lazy: nothing loads with the package

        sentence = f"{__name__}.{name} needs the application {application}, which is not installed"
        raise PackageError(sentence) from e


def __dir__() -> list[str]:
    return __all__
