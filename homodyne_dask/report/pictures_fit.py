"""What was fitted: scaling and decay by angle, rates by time, and the passes of the fit."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

from homodyne_dask import lm
from homodyne_dask.dataset import Scan
from homodyne_dask.report.pictures_model import (
    Curve,
    Curves,
    curves,
    decay_times,
    fitted,
    true_model,
)
from homodyne_dask.report.pictures_style import (
    COLOURS,
    UNKNOWN,
    figure,
    finish,
    limits,
    log_scale_if_wide,
    logarithmic,
    ring_colours,
)
from homodyne_dask.result import FitResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BANDS = {
    "robust": "bands: 1σ and 95 %, cluster-robust covariance",
    "naive": "bands: 1σ and 95 %, naive covariance: too narrow for correlated speckle",
    "none": "no bands: the fit has no covariance",
}
ROOM_FOR_ZERO = 0.5
"""Share of a decade between 0 and the smallest difference of χ²."""


def angles(result: FitResult, scan: Scan) -> "Figure":
    """Draw contrast, offset, reduced χ² and decay time of every bin against φ."""
    picture = figure(8.5, 6.4)
    axes = np.ravel(picture.subplots(2, 2, sharex=True))
    table = result.scaling
    hollow = table["undetermined"].values
    decay = np.where(hollow, np.nan, decay_times(fitted(result, scan), scan))
    middle = 0.5 * (scan.time[scan.frames[0]] + scan.time[scan.frames[1] - 1])
    columns = (
        (np.where(hollow, np.nan, table["contrast"].values), "contrast", ""),
        (table["offset"].values, "offset", ""),
        (table["redchi"].values, "reduced χ²", ""),
        (decay, "decay time [s]", f"lag at which f = 1/e, age {middle:.3g} s"),
    )
    for axis, (values, y, title) in zip(axes, columns, strict=True):
        _by_angle(axis, scan, values, hollow)
        finish(axis, "", y, title)
    for axis in axes[2:]:
        _angle_axis(axis, scan)
    log_scale_if_wide(axes[3], "y", decay)
    if not np.isfinite(decay).any():
        _say(axes[3], "slower than the scan")
    _legend(picture, scan.q, bool(hollow.any()))
    return picture


def _by_angle(axis: "Axes", scan: Scan, values: np.ndarray, hollow: np.ndarray) -> None:
    x = scan.phi if np.isfinite(scan.phi).all() else scan.label
    for ring, colour, marker in ring_colours(scan.q):
        here = (scan.q == ring) | np.isnan(ring)
        for some, face in ((here & ~hollow, colour), (here & hollow, "none")):
            axis.plot(
                x[some], values[some], marker, ms=5, color=colour, markerfacecolor=face,
                linestyle="none",
            )  # fmt: skip


def _angle_axis(axis: "Axes", scan: Scan) -> None:
    """Label the axis of φ, or of bins where φ is not known for all."""
    from matplotlib.ticker import MaxNLocator

    if not np.isfinite(scan.phi).all():
        axis.set_xlabel("bin")
        return
    axis.set_xlabel("φ [degree]")
    axis.xaxis.set_major_locator(MaxNLocator(steps=[1, 1.5, 3, 4.5, 9, 10]))
    if np.ptp(scan.phi) < 1:
        axis.set_xlim(scan.phi.mean() - 50, scan.phi.mean() + 50)


def _legend(picture: "Figure", q: np.ndarray, hollow: bool) -> None:
    """Name the rings where there are several, and the hollow marks where there are any."""
    from matplotlib.lines import Line2D

    rings = ring_colours(q)
    marks = []
    if len(rings) > 1:
        shown = (
            rings if len(rings) <= len(COLOURS) else [rings[0], rings[len(rings) // 2], rings[-1]]
        )
        marks = [
            Line2D([], [], color=c, marker=m, linestyle="none", label=f"q = {r:.4g} Å⁻¹")
            for r, c, m in shown
        ]
    if hollow:
        marks.append(
            Line2D(
                [], [], color=COLOURS[0], marker="o", markerfacecolor="none", linestyle="none",
                label="no decay seen: contrast unknown",
            )
        )  # fmt: skip
    if marks:
        picture.legend(
            handles=marks, loc="outside lower center", ncols=4, frameon=False, fontsize=8
        )


def _say(axis: "Axes", text: str) -> None:
    axis.text(0.5, 0.5, text, transform=axis.transAxes, ha="center", va="center", color="#555555")


def rates(result: FitResult, scan: Scan) -> "Figure":
    """Draw J, γ̇ and the strain against time, with bands of one standard error and of 95 %."""
    model = curves(fitted(result, scan), result, scan)
    true = true_model(result, scan)
    truth = None if true is None else curves(true, result, scan)
    panels = _panels(model, truth, bool(np.isnan(scan.q).any()))
    picture = figure(0.6 + 3.9 * len(panels), 3.8)
    axes = np.atleast_1d(np.asarray(picture.subplots(1, len(panels)), dtype=object))
    for axis, panel in zip(axes, panels, strict=True):
        _band(axis, panel.curve, panel.truth)
        finish(axis, "t [s]", panel.y, panel.title)
        if panel.is_rate:
            log_scale_if_wide(axis, "x", panel.curve.time)
            log_scale_if_wide(axis, "y", panel.curve.value)
        shown = [curve.value for curve in (panel.curve, panel.truth) if curve is not None]
        limits(axis, np.concatenate(shown), _edges(panel.curve, panel.curve.quantile))
        if truth is not None:
            axis.legend(frameon=False, fontsize=8)
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
    """Return the edges of a band `width` standard errors wide to each side."""
    half = np.zeros_like(curve.value) if curve.stderr is None else width * curve.stderr
    return np.maximum(curve.value + np.array([[-1.0], [1.0]]) * half, curve.floor)


def passes(result: FitResult, scan: Scan | None = None) -> "Figure":
    """Draw χ² above its lowest and the expected distance to the optimum by pass."""
    from matplotlib.ticker import MaxNLocator

    picture = figure(8.5, 3.8)
    above, distance = picture.subplots(1, 2)
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
    for axis in (above, distance):
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set_xlim(1 - margin, result.passes + margin)
        handles, names = axis.get_legend_handles_labels()
        marks |= dict(zip(names, handles, strict=True))
    picture.legend(
        marks.values(), marks, loc="outside lower center", ncols=3, frameon=False, fontsize=8
    )
    return picture


def _distance(axis: "Axes", number, decrement, accepted) -> None:
    finish(axis, "pass", "decrement [standard errors]", "expected distance to the optimum")
    logarithmic(axis, "y")
    enough = lm.Options().decrement
    known = decrement[decrement > 0]
    axis.set_ylim(known.min(initial=enough) / 3, known.max(initial=enough) * 3)
    axis.axhline(enough, color="#555555", linestyle=":", label="converged below")
    _by_pass(axis, number, np.where(decrement > 0, decrement, np.nan), accepted)


def _difference(axis: "Axes", number, chisqr, accepted) -> None:
    """Draw χ² - min χ² on a log axis that has a place for 0."""
    finish(axis, "pass", "χ² − lowest χ²", "χ² above its lowest")
    known = chisqr[np.isfinite(chisqr)]
    above = chisqr - known.min() if len(known) else chisqr
    positive = above[above > 0]
    if len(positive):
        smallest = 10.0 ** np.floor(np.log10(positive.min()))
        logarithmic(axis, "y", "symlog", linthresh=smallest, linscale=ROOM_FOR_ZERO)
        axis.set_ylim(-0.3 * smallest, 3 * positive.max())
    _by_pass(axis, number, above, accepted)


def _by_pass(axis: "Axes", number, values, accepted) -> None:
    axis.plot(number, values, color=UNKNOWN, zorder=1)
    known = np.isfinite(values)
    for some, marker, colour, label in (
        (known & accepted, "o", COLOURS[0], "accepted"),
        (known & ~accepted, "X", COLOURS[1], "rejected"),
    ):
        if some.any():
            axis.plot(number[some], values[some], marker, ms=7, color=colour, label=label)
