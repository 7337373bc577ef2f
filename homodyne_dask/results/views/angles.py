"""Contrast, offset and decay of every bin against φ or q, and the influence of every bin."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from homodyne_dask.errors import OptionError
from homodyne_dask.results.data.derived_quantities import coefficients_of
from homodyne_dask.results.data.fit_result import FitValues
from homodyne_dask.results.data.fit_view import FittedModel, FitView, decay_times, fall_to_1_e
from homodyne_dask.results.views import panels as draw
from homodyne_dask.results.views.style import GREY, UNKNOWN_COLOUR, RingStyles, ring_styles
from homodyne_dask.solver.covariance import CLUSTER_ROBUST
from homodyne_dask.store.scan import Scan

OfModel = Callable[[FittedModel], Float[np.ndarray, " n"]]
"""A value of each bin of a model."""
AGE_FRACTION = 1 / 3
"""Share of the selected time: age at which the decays of the bins are compared at one lag."""
ACROSS = 4
"""Panels of influence in a row."""
LINE_POINTS = 181
"""Of a line of the model against φ."""
ALIKE = 0.01
"""Scatter of f below which bins do not differ."""
SAME_RING = 0.02
"""Relative range of q within which repeats have one ring."""
_Q = "q [Å⁻¹]"
MAX_SAMPLES = 12
"""Most frames, and most lags, at which the model is averaged over a cell."""


def draw_angles(view: FitView) -> draw.FitFigure:
    """Draw contrast, offset and decay of every bin against φ, or q: decays of pairs without bars."""
    scan, table = view.scan, view.result.scaling
    hollow = table["undetermined"].values
    panel = partial(_by_angle, view=view, hollow=hollow)
    method = view.result.parameters.attrs["method"] or CLUSTER_ROBUST
    shown: dict[str, Any] = {}
    for name in ("contrast", "offset"):
        values = np.where(hollow & (name == "contrast"), np.nan, table[name].values)
        stderr = table[f"{name}_stderr"].values
        bars = f"bars: standard errors ({method})" if np.isfinite(stderr).any() else ""
        shown[name] = partial(panel, y=name, title=bars, values=values, stderr=stderr)
    decay = measured_decay_times(view)
    if np.isfinite([decay, decay_times(view.model, scan)]).any():
        middle = 0.5 * (scan.time[scan.frames[0]] + scan.time[scan.frames[1] - 1])
        title = f"lag where f = 1/e{_age(scan, middle)}; line: model"
        look = {"y": "decay time [s]", "title": title, "values": decay}
        shown["decay_time"] = partial(panel, **look, line=partial(decay_times, scan=scan), log=True)
    found = at_one_lag(view)
    if found is not None and np.isfinite(found.f).any():
        age, lag = found.t1.mean(), (found.t2 - found.t1).mean()
        title = f"f at lag {lag:.3g} s{_age(scan, age)}; line: model"
        look = {"y": "(c₂ − offset) / contrast", "title": title, "values": found.f}
        shown["f_at_lag"] = partial(panel, **look, line=found.of_model)
    return draw.page(shown, 2, 1.7)


def _age(scan: Scan, age: float) -> str:
    return "" if scan.is_table else f", age {age:.3g} s"


def measured_decay_times(view: FitView) -> Float[np.ndarray, " bin"]:
    """Return the lag [s] at which the data of each bin fall to 1/e, mid-record; NaN where they do not."""
    scan, read = view.scan, view.cuts
    first, last = scan.time[scan.frames[0]], scan.time[scan.frames[1] - 1]
    age = read.age[np.argmin(np.abs(read.t1 - 0.5 * (first + last)))]
    cells = np.flatnonzero(read.age == age)
    cells = cells[np.argsort(read.lag[cells])]
    log_lag = np.log(read.t2[cells] - read.t1[cells])
    return np.exp([fall_to_1_e(log_lag, f) for f in _measured(view, cells)])


def _measured(view: FitView, cells: Int[np.ndarray, " n"]) -> Float[np.ndarray, "bin n"]:
    table = view.result.scaling
    known = (table["ndata"].values > 0) & ~table["undetermined"].values
    contrast = np.where(known, table["contrast"].values, np.nan)[:, None]
    return (view.cuts.c2[:, cells] - table["offset"].values[:, None]) / contrast


class AtLag(NamedTuple):
    """The decay of every bin at one age and lag: means over the pairs of one cell of the cuts."""

    t1: Float[np.ndarray, " n"]
    """s, of pairs spread over the cell: f at its centre is not the mean of f."""
    t2: Float[np.ndarray, " n"]
    f: Float[np.ndarray, " bin"]
    """Measured, (c2 - offset)/contrast."""

    def of_model(self, model: FittedModel) -> Float[np.ndarray, " n"]:
        return model.shape(np.arange(len(model.phi)), self.t1, self.t2).mean(axis=1)


def at_one_lag(view: FitView) -> AtLag | None:
    """Return the decay at the lag where the bins differ most, or f is 1/2; None if none is known for all."""
    scan, read = view.scan, view.cuts
    there = view.result.scaling["ndata"].values > 0
    cells = np.flatnonzero(np.isfinite(read.c2[there]).all(axis=0)) if there.any() else []
    if not len(cells):
        return None
    first, last = scan.time[scan.frames[0]], scan.time[scan.frames[1] - 1]
    age = read.age[cells[np.argmin(np.abs(read.t1[cells] - first - AGE_FRACTION * (last - first)))]]
    cells = cells[read.age[cells] == age]
    f = view.model.shape(np.arange(len(scan.bins)), read.t1[cells], read.t2[cells])
    differ = f[there].std(axis=0)
    if differ.max() < ALIKE:
        differ = -np.abs(f[there].mean(axis=0) - 0.5)
    cell = int(cells[np.argmax(np.nan_to_num(differ, nan=-1.0))])
    # times of pairs spread over the cell
    edges = read.age_edges[read.age[cell] :], read.lag_edges[read.lag[cell] :]
    starts, lags = (_spread(int(of[0]), int(of[1])) for of in edges)
    later = starts[:, None] + lags
    inside = later < scan.n_frames
    earlier = np.broadcast_to(starts[:, None], later.shape)
    t1, t2 = scan.time[earlier[inside]], scan.time[later[inside]]
    return AtLag(t1, t2, _measured(view, np.array([cell]))[:, 0])


def _spread(first: int, stop: int) -> Int[np.ndarray, " n"]:
    n = min(stop - first, MAX_SAMPLES)
    return first + ((np.arange(n) + 0.5) * (stop - first) / n).astype(int)


def draw_influence(view: FitView) -> draw.FitFigure:
    table = view.result.diagnosis.influence
    moved = influential(view.result)
    if table is None or not moved.any():
        raise OptionError("the result does not contain the influence of bins: it has no errors")
    names, change = table["param"].values[moved], table["change"].values[:, moved]

    def influence(axes: Axes, name: str, change: Float[np.ndarray, " bin"]) -> None:
        axes.axhspan(-1, 1, color=UNKNOWN_COLOUR, alpha=0.5, linewidth=0)
        axes.axhline(0, color=GREY, linewidth=0.8)
        _by_angle(axes, view, change, "change / stderr", name, ms=3)

    columns = zip(map(str, names), change.T, strict=True)
    shown = {name: partial(influence, name=name, change=of) for name, of in columns}
    return draw.page(shown, min(len(names), ACROSS), 1.2, left=0.6)


def influential(result: FitValues) -> Bool[np.ndarray, " p"]:
    """Return for which parameters, but not coefficients of a rate, the influence of any bin is known."""
    table = result.diagnosis.influence
    if table is None:
        return np.zeros(0, bool)
    own = ~np.isin(table["param"].values, list(coefficients_of(result)))
    return own & np.isfinite(table["change"].values).any(axis=0)


def _by_angle(
    axis: Axes,
    view: FitView,
    values: Float[np.ndarray, " bin"],
    y: str,
    title: str,
    stderr: Float[np.ndarray, " bin"] | None = None,
    hollow: Bool[np.ndarray, " bin"] | None = None,
    line: OfModel | None = None,
    log: bool = False,
    ms: float = 4,
) -> None:
    """Draw a value of each bin, with its error, against `_place`; line: the same of a model, also between."""
    scan, drawn = view.scan, [values]
    x, name = _place(scan)
    draw.label_axes(axis, name, y, title)
    hollow = np.zeros(len(x), bool) if hollow is None else hollow
    of, styles = _groups(scan)
    for value, colour, marker, label in styles:
        here = (of == value) | np.isnan(value)
        for empty in (False, True):
            some = here & (hollow == empty)
            if not some.any():
                continue
            error = None if stderr is None or not np.isfinite(stderr).any() else stderr[some]
            look = {"fmt": marker, "ms": ms, "color": colour, "hollow": empty}
            look["label"] = "no decay: contrast unknown" if empty else label
            draw.points(axis, x[some], values[some], error, **look)
        if line is None:
            continue
        line_x, line_y = _line_of_model(view, line, x, here, hollow, name.startswith("φ"))
        one = len(np.unique(line_x)) == 1  # a line of one point is not seen
        look = {"marker": "_", "ms": 14} if one else {}
        of_all = GREY if of is not scan.q else colour  # one model of all scans
        axis.plot(line_x, line_y, color=of_all, lw=1, **look)
        drawn.append(line_y)
    if log:
        draw.log_scale_if_wide(axis, "y", np.concatenate(drawn))
    steps = [1, 1.5, 3, 4.5, 9, 10] if name.startswith("φ") else None
    whole = name != _Q
    axis.xaxis.set_major_locator(MaxNLocator(draw.MAX_INTERVALS, steps=steps, integer=whole))
    if whole and np.ptp(x) < 1:
        middle, reach = float(np.mean(x)), 50.0 if steps else 1.0
        axis.set_xlim(middle - reach, middle + reach)


def _line_of_model(
    view: FitView, line: OfModel, x: np.ndarray, here: np.ndarray, hollow: np.ndarray, of_phi: bool
) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(x[here])
    line_x = x[here][order]
    if not of_phi:
        return line_x, np.where(hollow, np.nan, line(view.model))[here][order]
    line_x, q = np.linspace(line_x[0], line_x[-1], LINE_POINTS), float(np.mean(view.scan.q[here]))
    return line_x, line(view.at_angles(q if np.isfinite(q) else 1.0, line_x))


def _place(scan: Scan) -> tuple[Float[np.ndarray, " bin"], str]:
    """Return what bins are drawn against: φ; at one φ the number of the scan, or q; or the bin."""
    known, rings = np.isfinite(scan.phi).all(), not _one_ring(scan) and np.isfinite(scan.q).all()
    if known and np.ptp(scan.phi) < 1 and scan.has_repeats:
        return scan.scan_number.astype(float), "scan"
    if rings and (not known or np.ptp(scan.phi) < 1):
        return scan.q, _Q
    if not known:
        return scan.label.astype(float), "bin"
    return scan.phi, "φ [°]"


def _groups(scan: Scan) -> tuple[Float[np.ndarray, " bin"], RingStyles]:
    against = _place(scan)[1]
    if scan.has_repeats and _one_ring(scan) and against != "scan":
        of = scan.scan_number.astype(float)
        return of, ring_styles(of, "scan {:.0f}")
    return scan.q, ring_styles(scan.q if against != _Q else np.array([np.nan]))


def _one_ring(scan: Scan) -> bool:
    return bool(np.isfinite(scan.q).all() and np.ptp(scan.q) <= SAME_RING * scan.q.mean())
