"""Captions of the figures, and text alternatives with their main numbers."""

import numpy as np

from homodyne_dask.results.data.block_means import block_grid
from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.data.number_format import format_range
from homodyne_dask.results.data.rate_curves import rates_in
from homodyne_dask.results.views.figures.angles import at_one_lag
from homodyne_dask.results.views.figures.rates_figure import bands_sentence
from homodyne_dask.results.views.figures.style import bin_name
from homodyne_dask.results.views.report_content import errors_of_changes, influence_rows
from homodyne_dask.store.rings import describe_rings

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


def alternative(name: str, view: FitView) -> str:
    """Return the text alternative of a figure: what it shows, and its main numbers."""
    return {
        "maps": _maps,
        "cuts": _cuts,
        "angles": _angles,
        "rates": _rates,
        "passes": _passes,
        "residuals": _residuals,
        "influence": _influence,
    }[name](view)


def _shown(view: FitView) -> str:
    return "; ".join(bin_name(view.scan, int(b)) for b in view.shown)


def _maps(view: FitView) -> str:
    side = block_grid(view.scan).side
    return (
        f"Maps of measured c₂, fitted c₂ and residual over σ against t₁ and t₂, means over {side}×{side} "
        f"pairs, for {_shown(view)}. Reduced χ² per bin {_range(view.result, 'redchi')}."
    )


def _cuts(view: FitView) -> str:
    contrast, offset = (_range(view.result, name) for name in ("contrast", "offset"))
    return (
        f"Measured and fitted c₂ against lag at up to five ages, for {_shown(view)}. Offset {offset}; "
        f"contrast {contrast}."
    )


def _residuals(view: FitView) -> str:
    return (
        f"Histogram of residual over σ, and mean and standard deviation against lag, for {_shown(view)}. "
        f"Reduced χ² {view.result.redchi:.5g}; 1 is expected if σ is correct."
    )


def _influence(view: FitView) -> str:
    largest = "; ".join(" ".join(row) for row in influence_rows(view.result)[1:])
    return (
        f"Change of each parameter, in units of {errors_of_changes(view.result)}, against φ of the excluded "
        f"bin. Largest changes: {largest}."
    )


def _angles(view: FitView) -> str:
    lag, rings = at_one_lag(view), describe_rings(view.scan.q)
    words = [f"{name} {_range(view.result, name)}" for name in ("contrast", "offset")]
    words += [f"reduced χ² {_range(view.result, 'redchi')}"]
    words += [f"decay time (to 1/e) {format_range(view.decay_times, '.3g')} s"]
    if lag is not None:
        words += [f"f at a lag of {(lag.t2 - lag.t1).mean():.3g} s {format_range(lag.f, '.3g')}"]
    return f"Values of every bin{f' of {rings}' * bool(rings)} against φ: {'; '.join(words)}."


def _rates(view: FitView) -> str:
    rates = rates_in(view)
    t, names = rates["t"].values, [name for name in ("J", "gamma_dot", "strain") if name in rates]
    ends = ((name, *rates[name].values[[0, -1]], rates[name].attrs["units"]) for name in names)
    words = "; ".join(
        f"{name} from {low:.3g} to {high:.3g} {unit}" for name, low, high, unit in ends
    )
    return f"From {t[0]:.3g} to {t[-1]:.3g} s: {words}; {bands_sentence(rates)}."


def _passes(view: FitView) -> str:
    full = [entry for entry in view.result.run.history if "pass" in entry]
    accepted, words = sum(bool(entry["accepted"]) for entry in full), view.result.outcome.value
    return (
        f"χ² above its lowest value, estimated distance to the minimum, and time of each pass: {len(full)} "
        f"over all data, {accepted} of them accepted. {words[0].upper()}{words[1:]}."
    )


def _range(result: FitResult, name: str) -> str:
    table = result.scaling
    unknown = table["undetermined"].values & (name == "contrast")
    return format_range(np.where(unknown, np.nan, table[name].values), ".4g")
