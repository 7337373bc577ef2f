"""The functions that show a result as text, HTML or figures, imported when they are first called.

A result and a series hold numbers; what shows them imports them, and not the other way round. So a
result that was unpickled prints itself without loading HTML templates or matplotlib.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

RENDERERS = {
    "report_text": "homodyne_dask.results.text",
    "report_fragment": "homodyne_dask.results.html",
    "Plots": "homodyne_dask.results.figures.save",
    "series_text": "homodyne_dask.results.series_report",
    "series_fragment": "homodyne_dask.results.index",
    "draw_series": "homodyne_dask.results.figures.scans",
}
"""Modules by the name of the function in them."""


def renderer(name: str) -> Callable[..., Any]:
    """Return one of `RENDERERS`."""
    return getattr(import_module(RENDERERS[name]), name)
