"""Contrast, offset, χ² and decay of every bin against φ, and the influence of every bin."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from homodyne_dask.errors import OptionError
from homodyne_dask.results.data.cuts import cell_errors
from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.fit_view import FittedModel, FitView, decay_times, fall_to_1_e
from homodyne_dask.results.views.figures import panels as draw
from homodyne_dask.results.views.figures.style import (
    COLOURS,
    GREY,
    UNKNOWN_COLOUR,
    ring_styles,
)
from homodyne_dask.solver.covariance import CLUSTER_ROBUST
from homodyne_dask.store.scan import Scan

OfModel = Callable[[FittedModel], Float[np.ndarray, " n"]]
"""A value of each bin of a model."""
POLAR_RANGE = 150.0
"""Range of φ [degree] from which a polar plot is added."""
AGE_FRACTION = 1 / 3
"""Share of the selected time: age at which the decays of the bins are compared at one lag."""
MARKS_PER_ROW = 4
"""Of the legend."""
ACROSS = 4
"""Panels of influence in a row."""
LINE_POINTS = 181
"""Of a line of the model against φ."""
MAX_SAMPLES = 12
"""Most frames, and most lags, at which the model is averaged over a cell."""


def draw_angles(view: FitView) -> draw.FitFigure:
    """Draw contrast, offset, reduced χ² and decay of every bin against φ."""
    scan, table = view.scan, view.result.scaling
    found, hollow = at_one_lag(view), table["undetermined"].values
    compared = found is not None and bool(np.isfinite(found.f).any())
    around = compared and bool(np.ptp(scan.phi) >= POLAR_RANGE)  # not where a φ is unknown
    marks = _marks(scan.q, bool(hollow.any()))
    picture, axes = draw.panels(5 + around, 3, 2.85, 2.3, _legend_height(marks, MARKS_PER_ROW))
    contrast_error, of_contrast = _scaling_errors(view.result, "contrast")
    offset_error, of_offset = _scaling_errors(view.result, "offset")
    decay, decay_error = measured_decay_times(view)
    middle = 0.5 * (scan.time[scan.frames[0]] + scan.time[scan.frames[1] - 1])
    of_decay = f"lag where f = 1/e, age {middle:.3g} s; line: model"
    contrast = np.where(hollow, np.nan, table["contrast"].values)
    for axis, y, title, values, stderr, line in (
        (axes[0], "contrast", of_contrast, contrast, contrast_error, None),
        (axes[1], "offset", of_offset, table["offset"].values, offset_error, None),
        (axes[2], "reduced χ²", "", table["redchi"].values, None, None),
        (axes[3], "decay time [s]", of_decay, decay, decay_error, partial(decay_times, scan=scan)),
    ):
        draw.label_axes(axis, "", y, title)
        _by_angle(axis, view, values, stderr, hollow, line)
    both = np.concatenate([decay, np.where(hollow, np.nan, view.decay_times)])
    draw.log_scale_if_wide(axes[3], "y", both)
    if not np.isfinite(both).any():
        _write(axes[3], "no decay to 1/e in the scan")
    draw.label_axes(axes[4], "", "(c₂ − offset) / contrast")
    if found is None or not compared:
        _write(axes[4], "no lag has data in all bins")
    else:
        age, lag = found.t1.mean(), (found.t2 - found.t1).mean()
        axes[4].set_title(f"f at lag {lag:.3g} s, age {age:.3g} s; line: model", fontsize=10)
        _by_angle(axes[4], view, found.f, found.stderr, None, found.of_model, 4)
        if around:
            _around(picture, axes, view, found)
    for axis in axes[:5]:
        _angle_axis(axis, scan)
    _legend(picture, marks, MARKS_PER_ROW)
    return picture


def _scaling_errors(result: FitResult, name: str) -> tuple[Float[np.ndarray, " bin"] | None, str]:
    """Return the errors of contrast or offset, and which they are: by their method, else naive, else none."""
    method = result.parameters.attrs["method"] or CLUSTER_ROBUST
    for suffix, words in (("", f"one standard error, {method}"), ("_naive", "naive error")):
        stderr = result.scaling[f"{name}_stderr{suffix}"].values
        if np.isfinite(stderr).any():
            return stderr, f"bars: {words}"
    return None, ""


def measured_decay_times(
    view: FitView,
) -> tuple[Float[np.ndarray, " bin"], Float[np.ndarray, " bin"]]:
    """Return the lag [s] at which the data of each bin fall to 1/e, and its error; NaN where they do not.

    Between cells in the middle of the record, as if pairs were independent.
    """
    scan, read = view.scan, view.cuts
    first, last = scan.time[scan.frames[0]], scan.time[scan.frames[1] - 1]
    age = read.age[np.argmin(np.abs(read.t1 - 0.5 * (first + last)))]
    cells = np.flatnonzero(read.age == age)
    cells = cells[np.argsort(read.lag[cells])]
    decays, sigmas = _measured(view, cells)
    log_lag = np.log(read.t2[cells] - read.t1[cells])
    found = []
    for f, sigma in zip(decays, sigmas, strict=True):
        at, slope, n = fall_to_1_e(log_lag, f)
        found.append((np.exp(at), np.exp(at) * sigma[n : n + 2].mean() / slope))
    times, errors = np.array(found).T
    return times, errors


def _measured(
    view: FitView, cells: Int[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, "bin n"], Float[np.ndarray, "bin n"]]:
    """Return (c2 - offset)/contrast of every bin in some cells, and its error; NaN without a contrast."""
    table = view.result.scaling
    known = (table["ndata"].values > 0) & ~table["undetermined"].values
    contrast = np.where(known, table["contrast"].values, np.nan)[:, None]
    f = (view.cuts.c2[:, cells] - table["offset"].values[:, None]) / contrast
    return f, np.abs(cell_errors(view.scan, view.cuts, cells) / contrast)


class AtLag(NamedTuple):
    """The decay of every bin at one age and lag: means over the pairs of one cell of the cuts."""

    t1: Float[np.ndarray, " n"]
    """s, of pairs spread over the cell, which is too wide for f at its centre to equal the mean of f."""
    t2: Float[np.ndarray, " n"]
    f: Float[np.ndarray, " bin"]
    """Measured, (c2 - offset)/contrast."""
    stderr: Float[np.ndarray, " bin"]

    def of_model(self, model: FittedModel) -> Float[np.ndarray, " n"]:
        """Return the mean of f of each bin of a model."""
        return model.shape(np.arange(len(model.phi)), self.t1, self.t2).mean(axis=1)


def at_one_lag(view: FitView) -> AtLag | None:
    """Return the decay at the lag where the bins differ most, a third of the time into the scan.

    None if no lag is known for all bins that have pairs.
    """
    scan, read = view.scan, view.cuts
    there = view.result.scaling["ndata"].values > 0
    cells = np.flatnonzero(np.isfinite(read.c2[there]).all(axis=0)) if there.any() else []
    if not len(cells):
        return None
    first, last = scan.time[scan.frames[0]], scan.time[scan.frames[1] - 1]
    age = read.age[cells[np.argmin(np.abs(read.t1[cells] - first - AGE_FRACTION * (last - first)))]]
    cells = cells[read.age[cells] == age]
    f = view.model.shape(np.arange(len(scan.bins)), read.t1[cells], read.t2[cells])
    differ = f[there].std(axis=0) if there.sum() > 1 else -np.abs(f[there][0] - 0.5)
    cell = int(cells[np.argmax(np.nan_to_num(differ, nan=-1.0))])
    # times of pairs spread over the cell
    edges = read.age_edges[read.age[cell] :], read.lag_edges[read.lag[cell] :]
    starts, lags = (_spread(int(of[0]), int(of[1])) for of in edges)
    later = starts[:, None] + lags
    inside = later < scan.n_frames
    earlier = np.broadcast_to(starts[:, None], later.shape)
    t1, t2 = scan.time[earlier[inside]], scan.time[later[inside]]
    measured, stderr = (of[:, 0] for of in _measured(view, np.array([cell])))
    return AtLag(t1, t2, measured, stderr)


def _spread(first: int, stop: int) -> Int[np.ndarray, " n"]:
    """Return up to `MAX_SAMPLES` whole numbers spread evenly over first ... stop - 1."""
    n = min(stop - first, MAX_SAMPLES)
    return first + ((np.arange(n) + 0.5) * (stop - first) / n).astype(int)


def _around(picture: draw.FitFigure, axes: list[Axes], view: FitView, found: AtLag) -> None:
    """Draw the same in polar axes in the place of the last panel, smaller by the labels around them."""
    axes[5].remove()
    left, bottom, width, height = axes[5].get_position().bounds
    polar: Any = picture.add_axes((left, bottom, width, 0.92 * height), projection="polar")
    polar.set_title("the same, polar", fontsize=10)
    degrees = ("0", "45", "90", "135", "180", "−135", "−90", "−45")
    polar.set_thetagrids(range(0, 360, 45), [f"{angle}°" for angle in degrees])
    _by_angle(polar, view, found.f, found.stderr, None, found.of_model, 4)
    low, high = axes[4].get_ylim()
    polar.set_ylim(min(low, 0.0), high)
    polar.set_yticks([tick for tick in axes[4].get_yticks() if 0 < tick < 0.9 * high][1::2])


def draw_influence(view: FitView) -> draw.FitFigure:
    """Draw the change of each parameter without each bin, in standard errors, against φ.

    Raises OptionError where the result does not hold it.
    """
    scan, table = view.scan, view.result.diagnosis.influence
    if table is None:
        raise OptionError("the result does not contain the influence of bins: it has no errors")
    moved = influential(view.result)
    names, change = table["param"].values[moved], table["change"].values[:, moved]
    across = min(len(names), ACROSS)
    marks, per_row = _marks(scan.q, hollow=False), min(2 * across, MARKS_PER_ROW)
    picture, axes = draw.panels(len(names), across, 2.2, 1.85, _legend_height(marks, per_row), 0.75)
    for n, (axis, name) in enumerate(zip(axes, names, strict=True)):
        draw.label_axes(axis, "", "change / error" if n % across == 0 else "", str(name))
        axis.axhspan(-1, 1, color=UNKNOWN_COLOUR, alpha=0.5, linewidth=0)
        axis.axhline(0, color=GREY, linewidth=0.8)
        _by_angle(axis, view, change[:, n])
        _angle_axis(axis, scan)
        if n + across < len(names):
            axis.set_xlabel("")
    _legend(picture, marks, per_row)
    return picture


def influential(result: FitResult) -> Bool[np.ndarray, " p"]:
    """Return for which parameters the influence of any bin is known."""
    table = result.diagnosis.influence
    return np.zeros(0, bool) if table is None else np.isfinite(table["change"].values).any(axis=0)


def _by_angle(
    axis: Axes,
    view: FitView,
    values: Float[np.ndarray, " bin"],
    stderr: Float[np.ndarray, " bin"] | None = None,
    hollow: Bool[np.ndarray, " bin"] | None = None,
    line: OfModel | None = None,
    ms: float = 5,
) -> None:
    """Draw a value of each bin, with its error, against φ, or the label if φ is not known for all.

    line: the same of a model, which has the angles of the bins, or others.
    """
    scan, polar = view.scan, axis.name == "polar"
    known = bool(np.isfinite(scan.phi).all())
    x = np.deg2rad(scan.phi) if polar else scan.phi if known else scan.label
    hollow = np.zeros(len(x), bool) if hollow is None else hollow
    for ring, colour, marker in ring_styles(scan.q):
        here = (scan.q == ring) | np.isnan(ring)
        for empty in (False, True):
            some = here & (hollow == empty)
            error = None if stderr is None else stderr[some]
            look = {"fmt": marker, "ms": ms, "color": colour, "hollow": empty}
            draw.points(axis, x[some], values[some], error, **look)
        if line is not None and known:
            ends = (-180.0, 180.0) if polar else (scan.phi[here].min(), scan.phi[here].max())
            phi = np.linspace(*ends, LINE_POINTS)
            f = line(view.at_angles(ring if np.isfinite(ring) else 1.0, phi))
            axis.plot(np.deg2rad(phi) if polar else phi, f, color=colour, lw=1)
        elif line is not None:
            order, f = np.argsort(x[here]), np.where(hollow, np.nan, line(view.model))
            axis.plot(x[here][order], f[here][order], color=colour, lw=1)


def _angle_axis(axis: Axes, scan: Scan) -> None:
    """Label the axis of φ, or of labels if φ is not known for all."""
    if not np.isfinite(scan.phi).all():
        axis.set_xlabel("bin")
        return
    axis.set_xlabel("φ [°]")
    axis.xaxis.set_major_locator(MaxNLocator(draw.MAX_INTERVALS, steps=[1, 1.5, 3, 4.5, 9, 10]))
    if np.ptp(scan.phi) < 1:
        axis.set_xlim(scan.phi.mean() - 50, scan.phi.mean() + 50)


def _marks(q: Float[np.ndarray, " bin"], hollow: bool) -> list[Line2D]:
    """Return a mark for each ring if there are several, and one for hollow symbols if there are any."""
    rings = ring_styles(q)
    if len(rings) > len(COLOURS):
        rings = [rings[0], rings[len(rings) // 2], rings[-1]]
    looks: list[dict[str, Any]] = [
        {"label": f"q = {ring:.4g} Å⁻¹", "color": colour, "marker": marker}
        for ring, colour, marker in rings
    ]
    looks = looks if len(rings) > 1 else []
    if hollow:
        face = {"color": COLOURS[0], "marker": "o", "markerfacecolor": "none"}
        looks.append({"label": "no decay: contrast unknown", **face})
    return [Line2D([], [], linestyle="none", **look) for look in looks]


def _legend_height(marks: list[Line2D], columns: int) -> float:
    """Return the height of a legend in inches."""
    return draw.LINE * -(-len(marks) // columns) + 0.11 if marks else 0.0


def _legend(picture: draw.FitFigure, marks: list[Line2D], columns: int) -> None:
    """Add a legend below all panels."""
    if marks:
        draw.legend(picture, *marks, loc="lower center", ncols=columns)


def _write(axis: Axes, text: str) -> None:
    axis.text(0.5, 0.5, text, transform=axis.transAxes, ha="center", va="center", color=GREY)
