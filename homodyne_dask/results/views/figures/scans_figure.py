"""Parameters of several fits, scan by scan or against q or age."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.ticker import MaxNLocator

from homodyne_dask.errors import HomodyneDaskError, in_line
from homodyne_dask.results.data.derived_quantities import shown_names
from homodyne_dask.results.data.fit_rows import FitRow, column, constant_quantities, methods_of
from homodyne_dask.results.data.fit_view import FitView, view_of
from homodyne_dask.results.data.series import FitSeries
from homodyne_dask.results.views.figures import panels as draw
from homodyne_dask.results.views.figures.style import COLOURS, drawable, plain_label, ring_styles
from homodyne_dask.results.views.fits_report import DOUBTFUL
from homodyne_dask.store.age_average import average_over_age

Columns = Mapping[str, np.ndarray]
"""Columns of a table by their names."""
COLUMNS = 3
MAX_NAMES = 12
"""Most scans that are labelled one by one; of more, only some are."""
MAX_LETTERS = 40
"""Most letters of a name in a figure."""
LETTER = 0.075
"""Inches of a letter of their names."""
_AXES = {
    "q": "q [Å⁻¹]",
    "phi": "φ [°]",
    "angle": "φ [°]",
    "label": "label",
    "age": "age [s]",
    "scan": "scan",
}
_RATES = {"J": "J(t) [Å²/s]", "gamma_dot": "γ̇(t) [1/s]"}
_TITLES = {"J": "J at the mean age", "gamma_dot": "γ̇ at the mean age"}


def draw_scans(entries: Sequence[FitRow]) -> draw.FitFigure:
    """Draw each parameter with its error, and the reduced χ², for each scan."""
    labels = [_label(entry.name.removesuffix(".zarr")) for entry in entries]
    at = np.arange(len(entries))
    picture, axes = _panels(entries, at, "", LETTER * max(map(len, labels)))
    shown = at[:: -(-len(at) // MAX_NAMES)]
    for axis in axes:
        axis.set_xticks(shown, [labels[int(n)] for n in shown], rotation=90, fontsize=8)
        axis.set_xlim(-0.5, len(at) - 0.5)
    _label_last(axes)
    return picture


def _label(name: str) -> str:
    """Return the name of a scan as a label, the beginning of a long one."""
    name = in_line(name)
    return plain_label(name if len(name) <= MAX_LETTERS else f"{name[:MAX_LETTERS]}…")


def _label_last(axes: Sequence[Axes]) -> None:
    """Leave only the lowest panels of each column their labels."""
    for axis in axes[:-COLUMNS]:
        axis.set_xlabel("")
        axis.tick_params(labelbottom=False)


def draw_scans_against(rows: Sequence[FitRow], against: str) -> draw.FitFigure:
    """Draw each parameter with its error, and the reduced χ², against the number or the time of the scans.

    against: 'number' or 'time'.
    """
    zone = datetime.now().astimezone().tzinfo
    at = np.array([_place(row.at[against]) for row in rows])
    picture, axes = _panels(rows, at, "", draw.FOOT)
    for axis in axes:
        axis.set_xlabel(against, loc="left")  # the date of the ticks is on the right
        ticks = MaxNLocator(5, integer=True)
        if against == "time":
            ticks = AutoDateLocator(zone, minticks=3, maxticks=5)
            axis.xaxis.set_major_formatter(ConciseDateFormatter(ticks, zone))
        axis.xaxis.set_major_locator(ticks)
    _label_last(axes)
    return picture


def _place(at: Any) -> float:
    """Return the number of a scan, or its time as matplotlib counts it."""
    if isinstance(at, str):
        return float(date2num(datetime.fromisoformat(at))) if at else np.nan
    return at


def rates_drawn(columns: Iterable[str]) -> list[str]:
    """Return the rates that `draw_last_rates` draws of a table; none where one has no times or no band."""
    has = {*columns}
    names = [name for name in _RATES if name in has]
    needed = {"t", *(f"{name}_{end}_68" for name in names for end in ("low", "high"))}
    return names if needed <= has else []


def draw_last_rates(tables: Sequence[tuple[str, Columns]]) -> draw.FitFigure:
    """Draw J(t) and γ̇(t) of several scans, the last one in colour and with its 68 % band.

    tables: name of each scan and its rates.csv, the last one last.
    """
    tables = [(scan, {name: drawable(of[name]) for name in of}) for scan, of in tables]
    *earlier, (newest, last) = tables
    names = rates_drawn(last)
    picture, axes = draw.panels(len(names), len(names), 4.2, 2.6, draw.FOOT)
    for axis, name in zip(axes, names, strict=True):
        draw.label_axes(axis, "t [s]", _RATES[name])
        for n, (scan, of) in enumerate(earlier):
            shade = str(0.8 - 0.4 * n / len(tables))
            axis.plot(of["t"], of[name], color=shade, lw=1, label=_label(scan))
        axis.plot(last["t"], last[name], color=COLOURS[0], lw=2, label=_label(newest))
        ends = np.stack([last[f"{name}_{end}_68"] for end in ("low", "high")])
        draw.band(axis, last["t"], ends, 68)
        values = np.concatenate([of[name] for _, of in tables])
        draw.log_scale_if_wide(axis, "y", values)
        draw.logarithmic(axis, "x")
        draw.limits(axis, values, ends)
    draw.legend(axes[-1], fontsize=7)
    return picture


def draw_series(whole: FitSeries) -> draw.FitFigure:
    """Draw each parameter and rate with its error, and the reduced χ², against q or age.

    Over q also the decay rates on logarithmic axes with the line of q² and, where the stores are, the decays
    averaged over age. A dashed line is the weighted mean of consistent fits; horizontal bars are the windows
    of age.
    """
    entries = [entry for entry in whole.entries if entry.result is not None]
    rates = whole.decay_rates if whole.over == "q" and len(entries) > 1 else []
    views = _views(entries) if rates else []
    at = np.array([entry.at[whole.over] for entry in entries])
    x = _AXES.get(whole.over) or plain_label(whole.over, whole.unit_of(whole.over))
    windows = None  # below and above the mean age
    if "from" in entries[0].at:
        windows = np.array(
            [at - [e.at["from"] for e in entries], [e.at["to"] for e in entries] - at]
        )
    more = len(rates) + bool(views)
    picture, axes = _panels(entries, at, x, draw.FOOT, windows, more)
    names, said = names_drawn(entries), dict[str, None]()
    for axis, name in zip(axes, names, strict=False):
        axis.set_title(_TITLES.get(name, ""), fontsize=10)
        same = whole.agreement.get(name)
        if same is not None and same.p >= DOUBTFUL:
            axis.axhline(same.mean, color=COLOURS[4], linestyle="--", zorder=0)
            said["dashed: weighted mean of consistent fits"] = None
        for of in whole.repeats.values():
            if (again := of.agreement.get(name)) is not None and again.p >= DOUBTFUL:
                place = np.array([of.entries[0].at[whole.over]])
                mean = np.array([again.mean]), np.nan_to_num([again.stderr])
                look = {"fmt": "D", "ms": 9, "color": COLOURS[4], "hollow": True, "zorder": 3}
                draw.points(axis, place, *mean, **look)
                said["diamonds: weighted means of repeats that agree"] = None
    if said:
        draw.foot_line(picture, "; ".join(said))
    for axis, name in zip(axes[len(names) + 1 :], rates, strict=False):
        _draw_decay_rates(axis, name, entries, at)
    if views:
        _draw_decays(axes[-1], views)
    return picture


def _draw_decay_rates(axis: Axes, name: str, entries: Sequence[FitRow], q: np.ndarray) -> None:
    """Draw the decay rate Γ of each q on logarithmic axes, and the line ∝ q² through them."""
    rate, error = _columns(entries, name)
    known = np.isfinite(rate) & (rate > 0)
    q, rate, error = q[known], rate[known], np.nan_to_num(error[known])
    y = "Γ [1/s]" if name == "Gamma" else plain_label(name, "1/s")
    draw.label_axes(axis, _AXES["q"], y, log="xy")
    draw.points(axis, q, rate, error)
    if len(q):
        line = q**2 * np.exp(np.mean(np.log(rate / q**2)))
        axis.plot(q, line, color=COLOURS[4], zorder=0, label="∝ q²")
        draw.legend(axis)


def _views(entries: Sequence[FitRow]) -> list[FitView]:
    """Return the fits whose stores are where they were, sorted by q."""
    found = []
    for entry in sorted(entries, key=lambda entry: entry.at["q"]):
        assert entry.result is not None
        try:
            found.append(view_of(entry.result))
        except HomodyneDaskError:  # moved, changed, or at a URL that is closed to this process
            continue
    return found


def _draw_decays(axis: Axes, views: Sequence[FitView]) -> None:
    """Draw f against lag, the mean over age and bins, for all q: symbols are data, lines the model."""
    title = "mean over age; line: model"
    draw.label_axes(axis, "lag [s]", "(g₂ − offset) / contrast", title, log="x")
    of_rings = np.array([float(np.mean(view.scan.q)) for view in views])
    for view, (q, colour, marker) in zip(views, ring_styles(of_rings), strict=True):
        scaling, read = view.result.scaling, view.cuts
        offset, contrast = (scaling[name].values[:, None] for name in ("offset", "contrast"))
        model = view.model.shape(np.arange(len(contrast)), read.t1, read.t2)
        both = ((read.c2 - offset) / contrast, np.where(np.isfinite(read.c2), model, np.nan))
        lag, f, of_model = average_over_age(read, both)
        times = view.decay_times[np.isfinite(view.decay_times)]
        time = f", τ = {np.median(times):.3g} s" if len(times) else ""
        axis.plot(lag, f, marker, label=f"q = {q:.4g}{time}", color=colour, ms=3)
        axis.plot(lag, of_model, color=colour, lw=1)
    if len(views) <= MAX_NAMES:
        draw.legend(axis, fontsize=5.5)


def names_drawn(entries: Sequence[FitRow]) -> list[str]:
    """Return the parameters and rates worth a panel: none that is fixed, and no rate equal to a parameter."""
    constant, drawn = constant_quantities(entries), dict[str, np.ndarray]()
    for name in shown_names(entries[0].quantities, copies=False):
        if name in constant:
            continue
        values = column(entries, name)
        if not any(np.array_equal(values, of) for of in drawn.values()):
            drawn[name] = values
    return list(drawn)


def scans_title(entries: Sequence[FitRow], against: str) -> str:
    """Return the title of a figure of several fits: which errors its bars are."""
    return (
        f"Parameters against {against}: bars are standard errors "
        f"({methods_of(entries) or 'none is known'}); open symbols are values without an error, crosses "
        f"are values at a bound"
    )


def _columns(entries: Sequence[FitRow], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of a quantity, and their errors."""
    return drawable(column(entries, name)), drawable(column(entries, name, "stderr"))


def _panels(
    entries: Sequence[FitRow],
    at: np.ndarray,
    x: str,
    below: float,
    reach: np.ndarray | None = None,
    more: int = 0,
) -> tuple[draw.FitFigure, list[Axes]]:
    """Return a figure with a panel for each quantity, one for χ², and `more` empty ones.

    at: place of each fit, and `reach` to both sides of it. below: inches more for labels below all.
    """
    names = names_drawn(entries)
    q = np.array([entry.at.get("q", np.nan) for entry in entries])
    rings = (
        ring_styles(q) if x != _AXES["q"] and np.isfinite(q).all() else [(np.nan, COLOURS[0], "")]
    )
    picture, axes = draw.panels(len(names) + 1 + more, COLUMNS, 2.85, 1.9, below)
    for axis, name in zip(axes, names, strict=False):
        value, error = _columns(entries, name)
        known, bound = np.isfinite(error), column(entries, name, "at_bound")
        draw.label_axes(axis, x, plain_label(name, entries[0].quantities[name].unit))
        kinds = ((known, "o", False), (~known & ~bound, "o", True), (bound, "x", True))
        for (ring, colour, _), (kind, marker, hollow) in product(rings, kinds):
            some = kind & ((q == ring) | np.isnan(ring))
            if some.any():
                across = None if reach is None else reach[:, some]
                look = {"fmt": marker, "across": across, "hollow": hollow, "elinewidth": 1}
                label = f"q = {ring:.4g}" if len(rings) > 1 and axis is axes[0] else None
                look |= {"color": colour, "label": label}
                draw.points(axis, at[some], value[some], np.nan_to_num(error[some]), **look)
        draw.log_scale_if_wide(axis, "y", value)
    if 1 < len(rings) <= MAX_NAMES:
        draw.legend(axes[0], fontsize=5.5)
    draw.label_axes(axes[len(names)], x, "reduced χ²")
    redchi = drawable(np.array([entry.redchi for entry in entries], float))
    axes[len(names)].plot(at, redchi, "o", ms=5, color=COLOURS[1])
    return picture, axes
