"""Registry of the functions that show a result as text, HTML or figures.

They import the classes of results, so these find them here by name. Each module is imported when it
is first needed: printing a result loads neither templates nor matplotlib.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

RENDERERS = {
    "report_text": "homodyne_dask.results.views.text_report",
    "report_fragment": "homodyne_dask.results.views.html_report",
    "Plots": "homodyne_dask.results.views.figures.plots",
    "write_nexus": "homodyne_dask.results.files.nexus",
    "rates_of_fit": "homodyne_dask.results.data.rate_curves",
    "fitted_c2": "homodyne_dask.results.data.model_c2",
    "c2_at": "homodyne_dask.results.data.model_c2",
    "confidence_intervals": "homodyne_dask.results.data.fitted_parameters",
    "FittedParameters": "homodyne_dask.results.data.fitted_parameters",
    "parameter_frame": "homodyne_dask.results.data.fitted_parameters",
    "series_text": "homodyne_dask.results.views.series_report",
    "series_fragment": "homodyne_dask.results.files.scans_index",
    "posterior_text": "homodyne_dask.results.views.text_report",
    "posterior_fragment": "homodyne_dask.results.views.html_report",
    "PosteriorPlots": "homodyne_dask.results.views.figures.posterior_figures",
    "save_posterior": "homodyne_dask.results.files.posterior_files",
    "draw_series": "homodyne_dask.results.views.figures.scans_figure",
}
"""Modules by the name of the function in them."""


def renderer(name: str) -> Callable[..., Any]:
    """Return one of `RENDERERS`."""
    return getattr(import_module(RENDERERS[name]), name)
