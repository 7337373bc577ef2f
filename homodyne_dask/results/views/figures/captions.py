"""Captions of the figures, and text alternatives with their main numbers."""

import numpy as np
import xarray

from homodyne_dask.results.data.block_means import block_grid
from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.data.number_format import format_range, level_name
from homodyne_dask.results.data.rate_curves import rates_in
from homodyne_dask.results.views.figures.angles import at_one_lag
from homodyne_dask.results.views.figures.rates_figure import bands_sentence
from homodyne_dask.results.views.figures.style import bin_name
from homodyne_dask.results.views.report_content import errors_of_changes, influence_rows
from homodyne_dask.store.rings import describe_rings
from homodyne_dask.text import joined_with_and

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
    """Return the text alternative of a figure."""
    bins = "; ".join(bin_name(view.scan, int(b)) for b in view.shown)
    if name == "maps":
        side = block_grid(view.scan).side
        means = f", means over {side}×{side} pairs" if side > 1 else ""
        return (
            f"Maps against t₁ and t₂ of measured c₂, fitted c₂ on the same colour scale, and residual over σ"
            f"{means}, for {bins}. Reduced χ² per bin {_range(view.result, 'redchi')}."
        )
    if name == "cuts":
        contrast, offset = _range(view.result, "contrast"), _range(view.result, "offset")
        return (
            f"Measured and fitted c₂ against lag (logarithmic axis) at up to five ages, for {bins}. c₂ falls "
            f"to the offset. Offset {offset}; contrast {contrast}."
        )
    if name == "residuals":
        return (
            f"Histogram of residual over σ with the unit normal distribution, and mean and standard "
            f"deviation of the residuals against lag, for {bins}. Reduced χ² {view.result.redchi:.5g}; "
            f"1 is expected if σ is correct."
        )
    if name == "influence":
        largest = "; ".join(" ".join(row) for row in influence_rows(view.result)[1:])
        return (
            f"Change of each parameter against φ of the excluded bin, in units of "
            f"{errors_of_changes(view.result)}, one panel per parameter; the band spans ±1. "
            f"Largest changes: {largest}."
        )
    return {"angles": _angles, "rates": _rates, "passes": _passes}[name](view)


def _angles(view: FitView) -> str:
    found = at_one_lag(view)
    words = [f"{name} {_range(view.result, name)}" for name in ("contrast", "offset")]
    words += [f"reduced χ² {_range(view.result, 'redchi')}"]
    words += [f"decay time (to 1/e) {format_range(view.decay_times, '.3g')} s"]
    if found is not None:
        at = f"{(found.t2 - found.t1).mean():.3g} s"
        words += [f"f at a lag of {at} {format_range(found.f, '.3g')}"]
    rings = describe_rings(view.scan.q)
    of = f" of {rings}, one colour each" if rings else ""
    return f"Values of every bin{of} against φ: " + "; ".join(words) + "."


def _rates(view: FitView) -> str:
    found = rates_in(view)
    unit = "1/s (times q²)" if np.isnan(view.scan.q).any() else "Å²/s"
    words = [f"J goes from {_ends(found['J'])} {unit}"]
    if "gamma_dot" in found:
        words += [f"the shear rate from {_ends(found['gamma_dot'])} 1/s"]
        words += [f"the strain from {_ends(found['strain'])}"]
    t = found["t"].values
    return f"From {t[0]:.3g} to {t[-1]:.3g} s, {joined_with_and(words)}; {bands_sentence(found)}."


def _passes(view: FitView) -> str:
    full = [entry for entry in view.result.run.history if "pass" in entry]
    accepted = sum(bool(entry["accepted"]) for entry in full)
    levels = [entry for entry in view.result.run.history if "level" in entry]
    coarse = [f"{e['passes']} over {level_name(e['level'])}" for e in levels]
    before = f", after {', '.join(coarse)}" if coarse else ""
    words = view.result.outcome.value
    return (
        f"χ² above its lowest value, estimated distance to the minimum, and time of each pass: {len(full)} "
        f"over all data, {accepted} of them accepted{before}. {words[0].upper()}{words[1:]}."
    )


def _range(result: FitResult, name: str) -> str:
    table = result.scaling
    unknown = table["undetermined"].values & (name == "contrast")
    return format_range(np.where(unknown, np.nan, table[name].values), ".4g")


def _ends(rate: xarray.DataArray) -> str:
    first, last = rate.values[[0, -1]]
    return f"{first:.3g} to {last:.3g}"
