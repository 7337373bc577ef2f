"""Titles of the figures of a fit, and text alternatives."""

from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.views.figures.style import bin_name

TITLES = {
    "maps": "Data, model and residuals of single bins against both times",
    "cuts": "c₂ against lag at several ages: data with error bars that treat pairs as independent, and model "
    "as lines",
    "angles": "Dependence on the direction φ; the error bars of f and of the decay time treat pairs as "
    "independent",
    "rates": "Rates against time, with 68 % and 95 % bands",
    "passes": "Convergence of the fit",
    "residuals": "Residuals: distribution, and dependence on lag",
    "influence": "Change of each parameter, in units of its error, when one bin is excluded",
}
_OF_SHOWN_BINS = ("maps", "cuts", "residuals")


def alternative(name: str, view: FitView) -> str:
    """Return the text alternative of a figure; its numbers are in the tables of the report."""
    bins = "; ".join(bin_name(view.scan, int(b)) for b in view.shown)
    which = bins if name in _OF_SHOWN_BINS else f"{len(view.scan.bins)} bins"
    return f"{TITLES[name]}, for {which}. Reduced χ² {view.result.redchi:.5g}."
