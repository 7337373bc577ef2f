"""Fitted rates against time, and the convergence of the fit."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

from homodyne_dask.results.figures.fit_view import FitView
from homodyne_dask.results.figures.rates import Curve, Curves, curves, true_model
from homodyne_dask.results.figures.style import (
    COLOURS,
    FOOT,
    MARKERS,
    UNKNOWN_COLOUR,
    label_axes,
    limits,
    log_scale_if_wide,
    logarithmic,
    panels,
)
from homodyne_dask.results.fit_result import FitResult
from homodyne_dask.results.numbers import level_name
from homodyne_dask.solver import levenberg_marquardt as lm

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from homodyne_dask.results.figures.picture import FitFigure

BANDS = {
    "robust": "bands: 1σ and 95 %, cluster-robust covariance",
    "naive": "bands: 1σ and 95 %, naive covariance: too narrow for correlated speckle",
    "none": "no bands: the fit has no covariance",
}
ROOM_FOR_ZERO = 0.5
"""Length of the axis between 0 and the smallest difference of χ², in decades."""


def draw_rates(view: FitView) -> "FitFigure":
    """Draw J, γ̇ and the strain against time, with bands of one standard error and of 95 %."""
    result, scan = view.result, view.scan
    model = curves(view.model, result, scan)
    true = true_model(result, scan)
    truth = None if true is None else curves(true, result, scan)
    rates = _panels(model, truth, bool(np.isnan(scan.q).any()))
    picture, axes = panels(len(rates), len(rates), 2.85 if len(rates) > 1 else 4.0, 2.7, FOOT)
    for axis, panel in zip(axes, rates, strict=True):
        _band(axis, panel.curve, panel.truth)
        label_axes(axis, "t [s]", panel.y, panel.title)
        if panel.is_rate:
            log_scale_if_wide(axis, "x", panel.curve.time)
            log_scale_if_wide(axis, "y", panel.curve.value)
        shown = [curve.value for curve in (panel.curve, panel.truth) if curve is not None]
        limits(axis, np.concatenate(shown), _edges(panel.curve, panel.curve.quantile))
    if truth is not None:
        axes[0].legend(frameon=False, fontsize=8)
    picture.supxlabel(BANDS[model.errors], fontsize=8, color="#555555")
    return picture


class _Panel(NamedTuple):
    curve: Curve
    truth: Curve | None
    y: str
    title: str
    is_rate: bool


def _panels(model: Curves, truth: Curves | None, unknown_q: bool) -> list[_Panel]:
    y, title = (
        ("q²J [1/s]", "rate of decorrelation") if unknown_q else ("J [Å²/s]", "transport rate")
    )
    panels = [_Panel(model.transport, truth and truth.transport, y, title, True)]
    if model.shear_rate is not None and model.strain is not None:
        rate, strain = truth and truth.shear_rate, truth and truth.strain
        panels += [
            _Panel(model.shear_rate, rate, "dγ/dt [1/s]", "shear rate", True),
            _Panel(model.strain, strain, "γ", "accumulated strain", False),
        ]
    return panels


def _band(axis: "Axes", curve: Curve, truth: Curve | None) -> None:
    t, value = curve.time, curve.value
    if curve.stderr is not None:
        for width, strength in ((curve.quantile, 0.18), (1.0, 0.35)):
            low, high = _edges(curve, width)
            axis.fill_between(t, low, high, color=COLOURS[0], alpha=strength, linewidth=0)
    axis.plot(t, value, color=COLOURS[0], label="fit")
    if truth is not None:
        axis.plot(t, truth.value, "--", color=COLOURS[1], label="truth")


def _edges(curve: Curve, width: float) -> Float[np.ndarray, "2 n"]:
    """Return the edges of a band of `width` standard errors to each side."""
    half = np.zeros_like(curve.value) if curve.stderr is None else width * curve.stderr
    return np.maximum(curve.value + np.array([[-1.0], [1.0]]) * half, curve.floor)


def draw_passes(view: FitView) -> "FitFigure":
    """Draw χ² above its lowest, the estimated distance to the minimum, and the time of each pass."""
    from matplotlib.ticker import MaxNLocator

    result = view.result
    picture, (above, distance, duration) = panels(3, 3, 3.0, 2.7, FOOT, left=0.95)
    history = [entry for entry in result.history if "pass" in entry]
    number = np.array([entry["pass"] for entry in history], float)
    chisqr, decrement = (
        np.array([np.nan if e[key] is None else e[key] for e in history], float)
        for key in ("chisqr", "decrement")
    )
    accepted = np.array([entry["accepted"] for entry in history], bool)
    _difference(above, number, chisqr, accepted)
    _distance(distance, number, decrement, accepted)
    margin = max(0.5, 0.03 * result.passes)
    marks = {}
    begins = _durations(duration, result)
    for axis in (above, distance, duration):
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set_xlim((begins if axis is duration else 1) - margin, result.passes + margin)
        handles, names = axis.get_legend_handles_labels()
        marks |= dict(zip(names, handles, strict=True))
    picture.legend(marks.values(), marks, loc="lower center", ncols=6, frameon=False, fontsize=8)
    return picture


def _durations(axis: "Axes", result: FitResult) -> int:
    """Draw the time of each pass, coarse passes left of the first pass over all data.

    Return the position of the first coarse pass.
    """
    from matplotlib.ticker import FuncFormatter

    label_axes(axis, "pass over all data", "time of one pass [s]", "coarse and full passes")
    levels = [entry for entry in result.history if "level" in entry]
    begins = at = 1 - sum(entry["passes"] for entry in levels)
    for entry, colour, marker in zip(levels, COLOURS[2:], MARKERS[1:], strict=False):
        n = entry["passes"]
        each = np.full(n, entry["seconds"] / max(n, 1))
        axis.plot(
            np.arange(at, at + n), each, marker, color=colour, ms=6, markerfacecolor="none",
            label=level_name(entry["level"]),
        )  # fmt: skip
        at += n
    full = [entry for entry in result.history if "pass" in entry and "seconds" in entry]
    seconds = [entry["seconds"] for entry in full]
    axis.plot([entry["pass"] for entry in full], seconds, "o", color=COLOURS[0], ms=6)
    logarithmic(axis, "y")
    if levels:
        axis.axvline(0.5, color=UNKNOWN_COLOUR, zorder=0)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.0f}" if x >= 1 else ""))
    return begins


def _distance(axis: "Axes", number, decrement, accepted) -> None:
    label_axes(axis, "pass", "distance [standard errors]", "estimated distance to the minimum")
    logarithmic(axis, "y")
    enough = lm.Options().decrement
    known = decrement[decrement > 0]
    axis.set_ylim(known.min(initial=enough) / 3, known.max(initial=enough) * 3)
    axis.axhline(enough, color="#555555", linestyle=":", label="converged below")
    _by_pass(axis, number, np.where(decrement > 0, decrement, np.nan), accepted)


def _difference(axis: "Axes", number, chisqr, accepted) -> None:
    """Draw χ² - lowest χ² on a logarithmic axis that includes 0."""
    label_axes(axis, "pass", "χ² − lowest χ²", "χ² above its lowest value")
    known = chisqr[np.isfinite(chisqr)]
    above = chisqr - known.min() if len(known) else chisqr
    positive = above[above > 0]
    if len(positive):
        smallest = 10.0 ** np.floor(np.log10(positive.min()))
        logarithmic(axis, "y", "symlog", linthresh=smallest, linscale=ROOM_FOR_ZERO)
        axis.set_ylim(-0.3 * smallest, 3 * positive.max())
    _by_pass(axis, number, above, accepted)


def _by_pass(axis: "Axes", number, values, accepted) -> None:
    axis.plot(number, values, color=UNKNOWN_COLOUR, zorder=1)
    known = np.isfinite(values)
    for some, marker, colour, label in (
        (known & accepted, "o", COLOURS[0], "accepted"),
        (known & ~accepted, "X", COLOURS[1], "rejected"),
    ):
        if some.any():
            axis.plot(number[some], values[some], marker, ms=7, color=colour, label=label)
