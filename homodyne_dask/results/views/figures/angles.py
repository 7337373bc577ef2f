"""Contrast, offset, χ² and decay of every bin against φ."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.fit_view import FittedModel, FitView, decay_times
from homodyne_dask.results.views.figures.lag_cuts import cell_errors
from homodyne_dask.results.views.figures.picture import FitFigure
from homodyne_dask.results.views.figures.style import (
    COLOURS,
    MAX_INTERVALS,
    label_axes,
    log_scale_if_wide,
    panels,
    ring_colours,
)
from homodyne_dask.solver.covariance import CLUSTER_ROBUST
from homodyne_dask.store.scan import Scan

POLAR_RANGE = 150.0
"""Range of φ [degree] from which a polar plot is added."""
AGE_FRACTION = 1 / 3
"""Share of the selected time: age at which the decays of the bins are compared at one lag."""
MARKS_PER_ROW = 4
"""Of the legend."""
LINE_POINTS = 181
"""Of a line of the model against φ."""
CIRCLE = np.linspace(-180.0, 180.0, 361)
"""Degrees."""
MAX_SAMPLES = 12
"""Most frames, and most lags, at which the model is averaged over a cell."""


def draw_angles(view: FitView) -> FitFigure:
    """Draw contrast, offset, reduced χ² and decay of every bin against φ."""
    scan, table = view.scan, view.result.scaling
    found = at_one_lag(view)
    known = bool(np.isfinite(scan.phi).all())
    around = found is not None and known and bool(np.ptp(scan.phi) >= POLAR_RANGE)
    hollow = table["undetermined"].values
    marks = legend_marks(scan.q, bool(hollow.any()))
    picture, axes = panels(5 + around, 3, 2.85, 2.3, legend_height(marks, MARKS_PER_ROW))
    decay, decay_error = measured_decay_times(view)
    middle = 0.5 * (scan.time[scan.frames[0]] + scan.time[scan.frames[1] - 1])
    contrast = np.where(hollow, np.nan, table["contrast"].values)
    errors = {name: scaling_errors(view.result, name) for name in ("contrast", "offset")}
    about_decay = f"lag where f = 1/e, age {middle:.3g} s; line: model"
    columns = (
        (contrast, errors["contrast"][0], "contrast", errors["contrast"][1]),
        (table["offset"].values, errors["offset"][0], "offset", errors["offset"][1]),
        (table["redchi"].values, None, "reduced χ²", ""),
        (decay, decay_error, "decay time [s]", about_decay),
    )
    for axis, (values, stderr, y, title) in zip(axes, columns, strict=False):
        by_angle(axis, scan, values, hollow, stderr)
        label_axes(axis, "", y, title)
    of_model = np.where(hollow, np.nan, view.decay_times)
    for ring, colour, _ in ring_colours(scan.q):
        x, of_ring = _model_line(view, ring, of_model, lambda model: decay_times(model, scan))
        axes[3].plot(x, of_ring, color=colour, lw=1)
    log_scale_if_wide(axes[3], "y", np.concatenate([decay, of_model]))
    if not np.isfinite(np.concatenate([decay, of_model])).any():
        _write(axes[3], "no decay to 1/e in the scan")
    _at_one_lag(axes[4], _compass(picture, axes[5]) if around else None, view, found)
    for axis in axes[:5]:
        angle_axis(axis, scan)
    legend(picture, marks, MARKS_PER_ROW)
    return picture


def scaling_errors(result: FitResult, name: str) -> tuple[Float[np.ndarray, " bin"] | None, str]:
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
    scan, read, table = view.scan, view.cuts, view.result.scaling
    first, last = scan.time[scan.frames[0]], scan.time[scan.frames[1] - 1]
    age = read.age[np.argmin(np.abs(read.t1 - 0.5 * (first + last)))]
    cells = np.flatnonzero(read.age == age)
    cells = cells[np.argsort(read.lag[cells])]
    contrast = np.where(table["undetermined"].values, np.nan, table["contrast"].values)[:, None]
    f = (read.c2[:, cells] - table["offset"].values[:, None]) / contrast
    log_lag = np.log(read.t2[cells] - read.t1[cells])
    sigma = np.abs(cell_errors(scan, read, cells) / contrast)
    found = np.full((2, len(f)), np.nan)
    for bin, row in enumerate(f):
        below = np.flatnonzero(row < np.exp(-1))
        if len(below) and below[0] > 0:
            at = slice(below[0] - 1, below[0] + 1)
            (high, low), (begin, end) = row[at], log_lag[at]
            slope = (high - low) / (end - begin)
            lag = np.exp(begin + (high - np.exp(-1)) / slope)
            found[:, bin] = lag, lag * sigma[bin, at].mean() / slope
    return found[0], found[1]


def _model_line(
    view: FitView,
    ring: float,
    of_bins: Float[np.ndarray, " bin"],
    value: Callable[[FittedModel], Float[np.ndarray, " n"]],
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Return φ between the bins of a ring and a value of the model there; of the bins if φ is unknown."""
    scan = view.scan
    here = np.flatnonzero((scan.q == ring) | np.isnan(ring))
    if not np.isfinite(scan.phi).all():
        here = here[np.argsort(scan.label[here])]
        return scan.label[here], of_bins[here]
    x = np.linspace(scan.phi[here].min(), scan.phi[here].max(), LINE_POINTS)
    return x, value(view.at_angles(ring if np.isfinite(ring) else 1.0, x))


class AtLag(NamedTuple):
    """The decay of every bin at one age and lag: means over the pairs of one cell of the cuts."""

    t1: Float[np.ndarray, " n"]
    """s, of pairs spread over the cell, which is too wide for f at its centre to equal the mean of f."""
    t2: Float[np.ndarray, " n"]
    f: Float[np.ndarray, " bin"]
    """Measured, (c2 - offset)/contrast."""
    stderr: Float[np.ndarray, " bin"]
    model: Float[np.ndarray, " bin"]


def at_one_lag(view: FitView) -> AtLag | None:
    """Return the decay at the lag where the bins differ most, a third of the time into the scan.

    None if no lag is known for all bins that have pairs.
    """
    result, scan, model, read = view.result, view.scan, view.model, view.cuts
    there = result.scaling["ndata"].values > 0
    cells = np.flatnonzero(np.isfinite(read.c2[there]).all(axis=0)) if there.any() else []
    if not len(cells):
        return None
    first, last = scan.time[scan.frames[0]], scan.time[scan.frames[1] - 1]
    age = read.age[cells[np.argmin(np.abs(read.t1[cells] - first - AGE_FRACTION * (last - first)))]]
    cells = cells[read.age[cells] == age]
    f = model.shape(np.arange(len(scan.bins)), read.t1[cells], read.t2[cells])
    differ = f[there].std(axis=0) if there.sum() > 1 else -np.abs(f[there][0] - 0.5)
    cell = int(cells[np.argmax(np.nan_to_num(differ, nan=-1.0))])
    # times of pairs spread over the cell
    edges = read.age_edges[read.age[cell] :], read.lag_edges[read.lag[cell] :]
    first, lags = (_spread(int(of[0]), int(of[1])) for of in edges)
    later = first[:, None] + lags
    inside = later < scan.n_frames
    t1, t2 = (scan.time[np.broadcast_to(of, later.shape)[inside]] for of in (first[:, None], later))
    contrast, offset = (result.scaling[name].values for name in ("contrast", "offset"))
    contrast = np.where(there & ~result.scaling["undetermined"].values, contrast, np.nan)
    predicted = model.shape(np.arange(len(scan.bins)), t1, t2).mean(axis=1)
    measured = (read.c2[:, cell] - offset) / contrast
    stderr = np.abs(cell_errors(scan, read, np.array([cell]))[:, 0] / contrast)
    return AtLag(t1, t2, measured, stderr, predicted)


def _spread(first: int, stop: int) -> Int[np.ndarray, " n"]:
    """Return up to `MAX_SAMPLES` whole numbers spread evenly over first ... stop - 1."""
    n = min(stop - first, MAX_SAMPLES)
    return first + ((np.arange(n) + 0.5) * (stop - first) / n).astype(int)


def _at_one_lag(axis: Axes, compass: Axes | None, view: FitView, found: AtLag | None) -> None:
    """Draw the decay at one lag against φ, and as a polar plot for a wide range of φ."""
    scan = view.scan
    label_axes(axis, "", "(c₂ − offset) / contrast")
    if found is None or not np.isfinite(found.f).any():
        _write(axis, "no lag has data in all bins")
        return
    age, lag = found.t1.mean(), (found.t2 - found.t1).mean()
    axis.set_title(f"f at lag {lag:.3g} s, age {age:.3g} s; line: model", fontsize=10)
    by_angle(axis, scan, found.f, np.zeros(len(found.f), bool), found.stderr, ms=4)
    for ring, colour, marker in ring_colours(scan.q):
        line = _model_line(view, ring, found.model, lambda model: _at_lag(model, found))
        axis.plot(*line, color=colour, linewidth=1)
        if compass is not None:
            q = ring if np.isfinite(ring) else 1.0
            f = _at_lag(view.at_angles(q, CIRCLE), found)
            here = (scan.q == ring) | np.isnan(ring)
            look = {"fmt": marker, "ms": 4, "color": colour, "elinewidth": 0.8}
            compass.errorbar(np.deg2rad(scan.phi[here]), found.f[here], found.stderr[here], **look)
            compass.plot(np.deg2rad(CIRCLE), f, color=colour, lw=1)
    if compass is not None:
        low, high = axis.get_ylim()
        compass.set_ylim(min(low, 0.0), high)
        compass.set_yticks([tick for tick in axis.get_yticks() if 0 < tick < 0.9 * high][1::2])


def _at_lag(model: FittedModel, at: AtLag) -> Float[np.ndarray, " n"]:
    return model.shape(np.arange(len(model.phi)), at.t1, at.t2).mean(axis=1)


def _compass(picture: FitFigure, panel: Axes) -> Any:
    """Return polar axes in the place of others, smaller by the labels around them."""
    panel.remove()
    left, bottom, width, height = panel.get_position().bounds
    compass: Any = picture.add_axes((left, bottom, width, 0.92 * height), projection="polar")
    compass.set_title("the same, polar", fontsize=10)
    compass.set_thetagrids(
        range(0, 360, 45), [f"{a}°" for a in ("0", "45", "90", "135", "180", "−135", "−90", "−45")]
    )
    return compass


def by_angle(
    axis: Axes,
    scan: Scan,
    values: Float[np.ndarray, " bin"],
    hollow: Bool[np.ndarray, " bin"],
    stderr: Float[np.ndarray, " bin"] | None = None,
    ms: float = 5,
) -> None:
    """Draw a value of each bin, with its error, against φ, or the label if φ is not known for all."""
    x = scan.phi if np.isfinite(scan.phi).all() else scan.label
    for ring, colour, marker in ring_colours(scan.q):
        here = (scan.q == ring) | np.isnan(ring)
        for some, face in ((here & ~hollow, colour), (here & hollow, "none")):
            look: Any = {"fmt": marker, "ms": ms, "color": colour, "markerfacecolor": face}
            error = None if stderr is None else stderr[some]
            axis.errorbar(x[some], values[some], error, elinewidth=0.8, **look)


def angle_axis(axis: Axes, scan: Scan) -> None:
    """Label the axis of φ, or of labels if φ is not known for all."""
    if not np.isfinite(scan.phi).all():
        axis.set_xlabel("bin")
        return
    axis.set_xlabel("φ [°]")
    axis.xaxis.set_major_locator(MaxNLocator(MAX_INTERVALS, steps=[1, 1.5, 3, 4.5, 9, 10]))
    if np.ptp(scan.phi) < 1:
        axis.set_xlim(scan.phi.mean() - 50, scan.phi.mean() + 50)


def legend_marks(q: Float[np.ndarray, " bin"], hollow: bool) -> list[Line2D]:
    """Return a mark for each ring if there are several, and one for hollow symbols if there are any."""
    rings = ring_colours(q)
    if len(rings) == 1:
        rings = []
    elif len(rings) > len(COLOURS):
        rings = [rings[0], rings[len(rings) // 2], rings[-1]]
    look: dict[str, Any] = {"linestyle": "none"}
    marks = [
        Line2D([], [], color=c, marker=m, label=f"q = {r:.4g} Å⁻¹", **look) for r, c, m in rings
    ]
    if hollow:
        look |= {"color": COLOURS[0], "marker": "o", "markerfacecolor": "none"}
        marks.append(Line2D([], [], label="no decay: contrast unknown", **look))
    return marks


def legend_height(marks: Sequence[Line2D], columns: int) -> float:
    """Return the height of a legend in inches."""
    return 0.18 * -(-len(marks) // columns) + 0.1 if marks else 0.0


def legend(picture: FitFigure, marks: Sequence[Line2D], columns: int) -> None:
    """Add a legend below all panels."""
    if marks:
        look = {"loc": "lower center", "frameon": False, "fontsize": 8}
        picture.legend(handles=list(marks), ncols=columns, **look)


def _write(axis: Axes, text: str) -> None:
    axis.text(0.5, 0.5, text, transform=axis.transAxes, ha="center", va="center", color="#555555")
