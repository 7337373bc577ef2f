"""Registry of the functions that show a result as text, HTML or figures.

They import the classes of results, so these find them here by name. Each module is imported when it
is first needed: printing a result loads neither templates nor matplotlib.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

RENDERERS = {
    "report_text": "homodyne_dask.results.text",
    "report_fragment": "homodyne_dask.results.html",
    "Plots": "homodyne_dask.results.figures.save",
    "write_nexus": "homodyne_dask.results.nexus",
    "rates_of_fit": "homodyne_dask.results.rates",
    "fitted_c2": "homodyne_dask.results.fitted_c2",
    "c2_at": "homodyne_dask.results.fitted_c2",
    "confidence_intervals": "homodyne_dask.results.intervals",
    "FittedParameters": "homodyne_dask.results.fitted_parameters",
    "parameter_frame": "homodyne_dask.results.fitted_parameters",
    "series_text": "homodyne_dask.results.series_report",
    "series_fragment": "homodyne_dask.results.index",
    "posterior_text": "homodyne_dask.results.text",
    "posterior_fragment": "homodyne_dask.results.html",
    "PosteriorPlots": "homodyne_dask.results.posterior.pictures",
    "save_posterior": "homodyne_dask.results.posterior.save",
    "draw_series": "homodyne_dask.results.figures.scans",
}
"""Modules by the name of the function in them."""


def renderer(name: str) -> Callable[..., Any]:
    """Return one of `RENDERERS`."""
    return getattr(import_module(RENDERERS[name]), name)
