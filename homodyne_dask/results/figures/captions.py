"""Captions of the figures, and text alternatives with their main numbers."""

from collections.abc import Callable

import numpy as np

from homodyne_dask.results.figures.angles import at_one_lag
from homodyne_dask.results.figures.block_means import block_grid, representative
from homodyne_dask.results.figures.passes import BANDS
from homodyne_dask.results.figures.rates import Curve, curves, decay_times, fitted_model
from homodyne_dask.results.figures.style import bin_name
from homodyne_dask.results.fit_result import FitResult
from homodyne_dask.results.numbers import format_range, level_name
from homodyne_dask.results.report_content import influence_sentences
from homodyne_dask.store.rings import describe_rings
from homodyne_dask.store.scan import Scan

TITLES = {
    "maps": "Data, model and residual of single bins against both times",
    "cuts": "c₂ against lag at several ages: data with error bars, model as lines",
    "angles": "Dependence on the direction φ",
    "rates": "Rates against time, with bands of one standard error and of 95 %",
    "passes": "Convergence of the fit",
    "residuals": "Residuals: distribution, and dependence on lag",
    "influence": "Change of each parameter, in standard errors, when one bin is excluded",
}


def alternative(name: str, result: FitResult, scan: Scan) -> str:
    """Return the text alternative of a figure."""
    return _ALTERNATIVES[name](result, scan)


def _maps(result: FitResult, scan: Scan) -> str:
    side = block_grid(scan).side
    means = f", means over {side}×{side} pairs" if side > 1 else ""
    return (
        f"Maps against t₁ and t₂ of measured c₂, fitted c₂ on the same colour scale, and residual over σ"
        f"{means}, of {_bins(result, scan)}. Reduced χ² per bin {_range(result, 'redchi')}."
    )


def _cuts(result: FitResult, scan: Scan) -> str:
    contrast, offset = _range(result, "contrast"), _range(result, "offset")
    return (
        f"Measured and fitted c₂ against lag (logarithmic axis) at up to five ages, of "
        f"{_bins(result, scan)}. c₂ falls to the offset, {offset}; contrast {contrast}."
    )


def _angles(result: FitResult, scan: Scan) -> str:
    model = fitted_model(result, scan)
    found = at_one_lag(result, scan, model)
    words = [f"{name} {_range(result, name)}" for name in ("contrast", "offset")]
    words += [f"reduced χ² {_range(result, 'redchi')}"]
    words += [f"time to decay to 1/e {format_range(decay_times(model, scan), '.3g')} s"]
    if found is not None:
        at = f"{(found.t2 - found.t1).mean():.3g} s"
        words += [f"f at a lag of {at} {format_range(found.f, '.3g')}"]
    rings = describe_rings(scan.q)
    of = f" of {rings}, one colour each" if rings else ""
    return f"Against φ, of every bin{of}: " + "; ".join(words) + "."


def _rates(result: FitResult, scan: Scan) -> str:
    found = curves(fitted_model(result, scan), result, scan)
    unit = "1/s (times q²)" if np.isnan(scan.q).any() else "Å²/s"
    words = [f"J goes from {_ends(found.transport)} {unit}"]
    if found.shear_rate is not None and found.strain is not None:
        words += [f"the shear rate from {_ends(found.shear_rate)} 1/s"]
        words += [f"the strain from {_ends(found.strain)}"]
    t = found.transport.time
    return f"From {t[0]:.3g} to {t[-1]:.3g} s " + ", ".join(words) + f"; {BANDS[found.errors]}."


def _passes(result: FitResult, scan: Scan) -> str:
    full = [entry for entry in result.history if "pass" in entry]
    accepted = sum(bool(entry["accepted"]) for entry in full)
    levels = [entry for entry in result.history if "level" in entry]
    coarse = [f"{e['passes']} over {level_name(e['level'])}" for e in levels]
    before = f" after {', '.join(coarse)}" if coarse else ""
    return (
        f"χ² above its lowest value, expected distance to the optimum and time of each pass: "
        f"{len(full)} over all data, {accepted} of them accepted{before}. {result.outcome.value}."
    )


def _residuals(result: FitResult, scan: Scan) -> str:
    return (
        f"Histogram of residual over σ with the unit normal distribution, and mean and standard "
        f"deviation of the residuals against lag, of {_bins(result, scan)}. Reduced χ² {result.redchi:.5g}; "
        f"1 is expected if σ is correct."
    )


def _influence(result: FitResult, scan: Scan) -> str:
    (sentence,) = influence_sentences(result)
    return f"Against φ, one panel per parameter; the band is one standard error: {sentence}."


_ALTERNATIVES: dict[str, Callable[[FitResult, Scan], str]] = {
    "maps": _maps,
    "cuts": _cuts,
    "angles": _angles,
    "rates": _rates,
    "passes": _passes,
    "residuals": _residuals,
    "influence": _influence,
}


def _bins(result: FitResult, scan: Scan) -> str:
    return "; ".join(bin_name(scan, int(b)) for b in representative(result, scan))


def _range(result: FitResult, name: str) -> str:
    table = result.scaling
    unknown = table["undetermined"].values & (name == "contrast")
    return format_range(np.where(unknown, np.nan, table[name].values), ".4g")


def _ends(curve: Curve) -> str:
    return f"{curve.value[0]:.3g} to {curve.value[-1]:.3g}"
