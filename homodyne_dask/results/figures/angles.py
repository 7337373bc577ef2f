"""Contrast, offset, χ² and decay of every bin against φ."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from homodyne_dask.results.figures.rates import (
    FittedModel,
    decay_times,
    fitted_at_angles,
    fitted_model,
)
from homodyne_dask.results.figures.style import (
    COLOURS,
    figure,
    label_axes,
    log_scale_if_wide,
    ring_colours,
)
from homodyne_dask.results.fit_result import FitResult
from homodyne_dask.store.cuts import Cuts
from homodyne_dask.store.scan import Scan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POLAR_RANGE = 150.0
"""Range of φ [degree] from which a polar plot is added."""
AGE_FRACTION = 1 / 3
"""Share of the selected time: age at which the decays of the bins are compared at one lag."""
CIRCLE = np.linspace(-180.0, 180.0, 361)
"""Degrees."""
MAX_SAMPLES = 12
"""Most frames, and most lags, at which the model is averaged over a cell."""


def draw_angles(result: FitResult, scan: Scan) -> "Figure":
    """Draw contrast, offset, reduced χ² and decay of every bin against φ."""
    picture = figure(12.3, 6.4)
    axes = [picture.add_subplot(2, 3, 1)]
    axes += [picture.add_subplot(2, 3, n, sharex=axes[0]) for n in range(2, 6)]
    table = result.scaling
    hollow = table["undetermined"].values
    model = fitted_model(result, scan)
    decay = np.where(hollow, np.nan, decay_times(model, scan))
    middle = 0.5 * (scan.time[scan.frames[0]] + scan.time[scan.frames[1] - 1])
    columns = (
        (np.where(hollow, np.nan, table["contrast"].values), "contrast", ""),
        (table["offset"].values, "offset", ""),
        (table["redchi"].values, "reduced χ²", ""),
        (decay, "decay time [s]", f"lag at which f = 1/e, age {middle:.3g} s"),
    )
    for axis, (values, y, title) in zip(axes, columns, strict=False):
        by_angle(axis, scan, values, hollow)
        label_axes(axis, "", y, title)
    for axis in axes:
        angle_axis(axis, scan)
    log_scale_if_wide(axes[3], "y", decay)
    if not np.isfinite(decay).any():
        _write(axes[3], "slower than the scan")
    _at_one_lag(picture, axes[4], result, scan, at_one_lag(result, scan, model))
    legend(picture, scan.q, bool(hollow.any()))
    return picture


class AtLag(NamedTuple):
    """The decay of every bin at one age and lag: means over the pairs of one cell of the cuts."""

    t1: Float[np.ndarray, " n"]
    """s, of pairs spread over the cell, which is too wide for f at its centre to equal the mean of f."""
    t2: Float[np.ndarray, " n"]
    f: Float[np.ndarray, " bin"]
    """Measured, (c2 - offset)/contrast."""
    stderr: Float[np.ndarray, " bin"]
    model: Float[np.ndarray, " bin"]


def at_one_lag(result: FitResult, scan: Scan, model: FittedModel) -> AtLag | None:
    """Return the decay at the lag where the bins differ most, a third of the time into the scan.

    None if no lag is known for all bins that have pairs.
    """
    read = scan.cuts(result.config["min_lag"])
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
    c2, count = read.c2[:, cell], read.count[:, cell]
    t1, t2 = _times(scan, read, cell)
    i, j = np.searchsorted(scan.time, (t1.mean(), t2.mean())).clip(0, scan.n_frames - 1)
    sigma = scan.sigma_row[:, i] * scan.sigma_row[:, j] / np.sqrt(np.maximum(count, 1))
    contrast, offset = (result.scaling[name].values for name in ("contrast", "offset"))
    contrast = np.where(there & ~result.scaling["undetermined"].values, contrast, np.nan)
    predicted = model.shape(np.arange(len(scan.bins)), t1, t2).mean(axis=1)
    return AtLag(t1, t2, (c2 - offset) / contrast, np.abs(sigma / contrast), predicted)


def _times(
    scan: Scan, read: Cuts, cell: int
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Return times [s] of pairs spread over a cell of the cuts."""
    age, lag = read.age[cell], read.lag[cell]
    i = _spread(*read.age_edges[age : age + 2].tolist())
    j = i[:, None] + _spread(*read.lag_edges[lag : lag + 2].tolist())
    inside = j < scan.n_frames
    return scan.time[np.broadcast_to(i[:, None], j.shape)[inside]], scan.time[j[inside]]


def _spread(first: int, stop: int) -> Int[np.ndarray, " n"]:
    """Return up to `MAX_SAMPLES` whole numbers spread evenly over first ... stop - 1."""
    n = min(stop - first, MAX_SAMPLES)
    return first + ((np.arange(n) + 0.5) * (stop - first) / n).astype(int)


def _at_one_lag(
    picture: "Figure", axis: "Axes", result: FitResult, scan: Scan, found: AtLag | None
) -> None:
    """Draw the decay at one lag against φ, and as a polar plot for a wide range of φ."""
    label_axes(axis, axis.get_xlabel(), "(c₂ − offset) / contrast")
    if found is None or not np.isfinite(found.f).any():
        _write(axis, "no lag is known for all bins")
        return
    age, lag = found.t1.mean(), (found.t2 - found.t1).mean()
    axis.set_title(f"f at lag {lag:.3g} s, age {age:.3g} s; line: model", fontsize=10)
    known = bool(np.isfinite(scan.phi).all())
    x = scan.phi if known else scan.label
    compass = _compass(picture) if known and np.ptp(scan.phi) >= POLAR_RANGE else None
    for ring, colour, marker in ring_colours(scan.q):
        here = np.flatnonzero((scan.q == ring) | np.isnan(ring))
        here = here[np.argsort(x[here])]
        values, stderr = found.f[here], found.stderr[here]
        look = {"fmt": marker, "ms": 4, "color": colour, "elinewidth": 0.8}
        axis.errorbar(x[here], values, stderr, **look)
        axis.plot(x[here], found.model[here], color=colour, linewidth=1)
        if compass is not None:
            compass.errorbar(np.deg2rad(x[here]), values, stderr, **look)
            compass.plot(np.deg2rad(CIRCLE), _ring(result, scan, ring, found), color=colour, lw=1)
    if compass is not None:
        low, high = axis.get_ylim()
        compass.set_ylim(min(low, 0.0), high)
        compass.set_yticks([tick for tick in axis.get_yticks() if 0 < tick < 0.9 * high][1::2])


def _ring(result: FitResult, scan: Scan, q: float, at: AtLag) -> Float[np.ndarray, " n"]:
    """Return the model's f of one ring on the full circle."""
    model = fitted_at_angles(result, scan, q if np.isfinite(q) else 1.0, CIRCLE)
    return model.shape(np.arange(len(CIRCLE)), at.t1, at.t2).mean(axis=1)


def _compass(picture: "Figure") -> Any:
    """Return polar axes."""
    compass: Any = picture.add_subplot(2, 3, 6, projection="polar")
    compass.set_title("the same, polar", fontsize=10)
    compass.set_thetagrids(
        range(0, 360, 45), [f"{a}°" for a in ("0", "45", "90", "135", "180", "−135", "−90", "−45")]
    )
    return compass


def by_angle(axis: "Axes", scan: Scan, values: np.ndarray, hollow: np.ndarray) -> None:
    """Draw a value of each bin against φ, or against the label if φ is not known for all."""
    x = scan.phi if np.isfinite(scan.phi).all() else scan.label
    for ring, colour, marker in ring_colours(scan.q):
        here = (scan.q == ring) | np.isnan(ring)
        for some, face in ((here & ~hollow, colour), (here & hollow, "none")):
            axis.plot(
                x[some], values[some], marker, ms=5, color=colour, markerfacecolor=face,
                linestyle="none",
            )  # fmt: skip


def angle_axis(axis: "Axes", scan: Scan) -> None:
    """Label the axis of φ, or of labels if φ is not known for all."""
    from matplotlib.ticker import MaxNLocator

    if not np.isfinite(scan.phi).all():
        axis.set_xlabel("bin")
        return
    axis.set_xlabel("φ [degree]")
    axis.xaxis.set_major_locator(MaxNLocator(steps=[1, 1.5, 3, 4.5, 9, 10]))
    if np.ptp(scan.phi) < 1:
        axis.set_xlim(scan.phi.mean() - 50, scan.phi.mean() + 50)


def legend(picture: "Figure", q: np.ndarray, hollow: bool) -> None:
    """Add a legend of the rings if there are several, and of hollow symbols if there are any."""
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
                label="no decay: contrast unknown",
            )
        )  # fmt: skip
    if marks:
        picture.legend(
            handles=marks, loc="outside lower center", ncols=4, frameon=False, fontsize=8
        )


def _write(axis: "Axes", text: str) -> None:
    axis.text(0.5, 0.5, text, transform=axis.transAxes, ha="center", va="center", color="#555555")
