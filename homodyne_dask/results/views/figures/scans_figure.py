"""Parameters of several fits, scan by scan or against q or age."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.ticker import MaxNLocator

from homodyne_dask.errors import HomodyneDaskError, in_line
from homodyne_dask.results.data.derived_quantities import shown_names
from homodyne_dask.results.data.fit_rows import FitRow, column, constant_quantities, methods_of
from homodyne_dask.results.data.fit_view import FitView, view_of
from homodyne_dask.results.data.number_format import value_and_error
from homodyne_dask.results.data.series import FitSeries
from homodyne_dask.results.views.figures import panels as draw
from homodyne_dask.results.views.figures.style import COLOURS, drawable, plain_label, ring_styles
from homodyne_dask.results.views.fits_report import DOUBTFUL
from homodyne_dask.store.age_average import average_over_age

Columns = Mapping[str, np.ndarray]
"""Columns of a table by their names."""
HEIGHT = 1.6
"""Inches of a panel."""
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
    """Draw each parameter with its error for each scan."""
    labels = [_label(entry.name.removesuffix(".zarr")) for entry in entries]
    at = np.arange(len(entries))
    shown = at[:: -(-len(at) // MAX_NAMES)]

    def finish(axes: Axes) -> None:
        axes.set_xticks(shown, [labels[int(n)] for n in shown], rotation=90, fontsize=draw.SMALL)
        axes.set_xlim(-0.5, len(at) - 0.5)

    return _page(_panels(entries, at, "", finish), below=LETTER * max(map(len, labels)))


def _page(shown: Sequence[draw.Panel], words: str = "", below: float = 0.0) -> draw.FitFigure:
    """Return a figure of panels that share an axis; only the lowest of each column has its labels."""
    columns = draw.columns_for(len(shown))
    picture = draw.page(shown, columns, HEIGHT, words, below=below)
    for axes in picture.axes[:-columns] if below else ():
        axes.set_xlabel("")
        axes.tick_params(labelbottom=False)
    return picture


def _label(name: str) -> str:
    """Return the name of a scan as a label, the beginning of a long one."""
    name = in_line(name)
    return plain_label(name if len(name) <= MAX_LETTERS else f"{name[:MAX_LETTERS]}…")


def draw_scans_against(rows: Sequence[FitRow], against: str) -> draw.FitFigure:
    """Draw each parameter with its error against the number or the time of the scans.

    against: 'number' or 'time'.
    """
    zone = datetime.now().astimezone().tzinfo
    at = np.array([_place(row.at[against]) for row in rows])

    def finish(axis: Axes) -> None:
        axis.set_xlabel(against, loc="left")  # the date of the ticks is on the right
        ticks = MaxNLocator(5, integer=True)
        if against == "time":
            ticks = AutoDateLocator(zone, minticks=3, maxticks=5)
            axis.xaxis.set_major_formatter(ConciseDateFormatter(ticks, zone))
        axis.xaxis.set_major_locator(ticks)

    return _page(_panels(rows, at, "", finish), below=0.1)


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

    def rate(axis: Axes, name: str) -> None:
        draw.label_axes(axis, "t [s]", _RATES[name])
        for n, (scan, of) in enumerate(earlier):
            shade = str(0.8 - 0.4 * n / len(tables))
            axis.plot(of["t"], of[name], color=shade, lw=1, label=_label(scan))
        axis.plot(last["t"], last[name], color=COLOURS[0], lw=1.6, label=_label(newest))
        ends = np.stack([last[f"{name}_{end}_68"] for end in ("low", "high")])
        draw.band(axis, last["t"], ends, 68)
        values = np.concatenate([of[name] for _, of in tables])
        draw.log_scale_if_wide(axis, "y", values)
        draw.logarithmic(axis, "x")
        draw.limits(axis, values, ends)

    return draw.page([draw.Panel(name, partial(rate, name=name)) for name in names], 2, 2.0)


def draw_series(whole: FitSeries) -> draw.FitFigure:
    """Draw each parameter and rate with its error against q, age or another variable.

    Rates over q are on logarithmic axes with the line of q², and beside them, where the stores are, the
    decays averaged over age. A dashed line is the weighted mean of consistent fits; horizontal bars are
    the windows of age.
    """
    entries = [entry for entry in whole.entries if entry.result is not None]
    rates = whole.decay_rates if whole.over == "q" and len(entries) > 1 else []
    at = np.array([entry.at[whole.over] for entry in entries])
    x = _AXES.get(whole.over) or plain_label(whole.over, whole.unit_of(whole.over))
    windows = None  # below and above the mean age
    if "from" in entries[0].at:
        windows = np.array(
            [at - [e.at["from"] for e in entries], [e.at["to"] for e in entries] - at]
        )

    def finish(axes: Axes) -> None:
        _integers_where(axes, at)

    names, said = [name for name in names_drawn(entries) if name not in rates], dict[str, None]()
    shown = _panels(entries, at, x, finish, windows, names)
    for n, name in enumerate(names):
        means = _means(whole, name, said)
        shown[n] = draw.Panel(name, partial(_with_means, panel=shown[n], means=means))
    shown += [
        draw.Panel(name, partial(_draw_decay_rates, name=name, whole=whole, entries=entries, q=at))
        for name in rates
    ]
    views = _views(entries) if rates else []
    if views:
        shown.append(draw.Panel("decays", partial(_draw_decays, views=views)))
    return _page(shown, "; ".join(said))


def _integers_where(axes: Axes, at: np.ndarray) -> None:
    """Draw ticks at whole numbers where all values are: there is no scan 1.5."""
    if (at == np.round(at)).all():
        axes.xaxis.set_major_locator(MaxNLocator(draw.MAX_INTERVALS, integer=True))


class _Mean(NamedTuple):
    """A weighted mean: of all fits, or of repeats at one place."""

    at: float | None
    value: float
    stderr: float


def _means(whole: FitSeries, name: str, said: dict[str, None]) -> list[_Mean]:
    """Return the weighted means of fits that agree in a parameter; `said` gets what stands for them."""
    found = []
    same = whole.agreement.get(name)
    if same is not None and same.p >= DOUBTFUL:
        found.append(_Mean(None, same.mean, same.stderr))
        said["dashed: weighted mean of consistent fits"] = None
    for of in whole.repeats.values():
        if (again := of.agreement.get(name)) is not None and again.p >= DOUBTFUL:
            found.append(_Mean(of.entries[0].at[whole.over], again.mean, again.stderr))
            said["diamonds: weighted means of repeats that agree"] = None
    return found


def _with_means(axes: Axes, panel: draw.Panel, means: Sequence[_Mean]) -> None:
    """Draw a panel, and weighted means in it."""
    panel.draw(axes)
    for mean in means:
        if mean.at is None:
            axes.axhline(mean.value, color=COLOURS[4], linestyle="--", zorder=0)
            continue
        look = {"fmt": "D", "ms": 7, "color": COLOURS[4], "hollow": True, "zorder": 3}
        value, stderr = np.array([mean.value]), np.nan_to_num([mean.stderr])
        draw.points(axes, np.array([mean.at]), value, stderr, **look)


def _draw_decay_rates(
    axis: Axes, name: str, whole: FitSeries, entries: Sequence[FitRow], q: np.ndarray
) -> None:
    """Draw the decay rate Γ of each q on logarithmic axes, and the line ∝ q² through them."""
    rate, error = _columns(entries, name)
    known = np.isfinite(rate) & (rate > 0)
    q, rate, error = q[known], rate[known], np.nan_to_num(error[known])
    y = "Γ [1/s]" if name == "Gamma" else plain_label(name, "1/s")
    law = whole.powers_of_q.get(name)
    title = "" if law is None else f"fit: ∝ q^({value_and_error(law.exponent, law.stderr)})"
    draw.label_axes(axis, _AXES["q"], y, title, log="xy")
    draw.points(axis, q, rate, error)
    if len(q):
        line = q**2 * np.exp(np.mean(np.log(rate / q**2)))
        axis.plot(q, line, color=COLOURS[4], zorder=0, label="∝ q²")


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
    title = "mean over age"
    draw.label_axes(axis, "lag [s]", "(g₂ − offset) / contrast", title, log="x")
    of_rings = np.array([float(np.mean(view.scan.q)) for view in views])
    for view, (q, colour, marker) in zip(views, ring_styles(of_rings), strict=True):
        scaling, read = view.result.scaling, view.cuts
        offset, contrast = (scaling[name].values[:, None] for name in ("offset", "contrast"))
        model = view.model.shape(np.arange(len(contrast)), read.t1, read.t2)
        both = ((read.c2 - offset) / contrast, np.where(np.isfinite(read.c2), model, np.nan))
        lag, f, of_model = average_over_age(read, both)
        label = f"q = {q:.4g} Å⁻¹" if len(views) <= MAX_NAMES else None
        axis.plot(lag, f, marker, label=label, color=colour, ms=3)
        axis.plot(lag, of_model, color=colour, lw=1)


def names_drawn(entries: Sequence[FitRow]) -> list[str]:
    """Return the parameters and rates worth a panel: none that is fixed, and no rate equal to a parameter.

    Where all are fixed, or undetermined and shared, they are all there is to draw.
    """
    names, constant = shown_names(entries[0].quantities, copies=False), constant_quantities(entries)
    drawn = dict[str, np.ndarray]()
    for name in [name for name in names if name not in constant] or names:
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
    finish: Callable[[Axes], None],
    reach: np.ndarray | None = None,
    names: Sequence[str] | None = None,
) -> list[draw.Panel]:
    """Return a panel for each quantity; finish: what is done to each at last.

    at: place of each fit, and `reach` to both sides of it. names: by default all worth a panel.
    """
    q = np.array([entry.at.get("q", np.nan) for entry in entries])
    rings = (
        ring_styles(q) if x != _AXES["q"] and np.isfinite(q).all() else [(np.nan, COLOURS[0], "")]
    )

    def quantity(axes: Axes, name: str) -> None:
        value, error = _columns(entries, name)
        known, bound = np.isfinite(error), column(entries, name, "at_bound")
        y = plain_label(name, entries[0].quantities[name].unit)
        draw.label_axes(axes, x, y, _TITLES.get(name, ""))
        kinds = ((known, "o", False), (~known & ~bound, "o", True), (bound, "x", True))
        for (ring, colour, _), (kind, marker, hollow) in product(rings, kinds):
            some = kind & ((q == ring) | np.isnan(ring))
            if some.any():
                across = None if reach is None else reach[:, some]
                look = {"fmt": marker, "across": across, "hollow": hollow, "color": colour}
                named = 1 < len(rings) <= MAX_NAMES
                look["label"] = f"q = {ring:.4g} Å⁻¹" if named else None
                draw.points(axes, at[some], value[some], np.nan_to_num(error[some]), **look)
        draw.log_scale_if_wide(axes, "y", value)
        finish(axes)

    drawn = names_drawn(entries) if names is None else names
    return [draw.Panel(name, partial(quantity, name=name)) for name in drawn]
