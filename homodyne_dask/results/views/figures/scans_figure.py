"""Parameters of several fits, scan by scan or against q or age."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

from homodyne_dask.errors import HomodyneDaskError, in_line
from homodyne_dask.results.data.fit_rows import FitRow, constant_quantities, methods_of
from homodyne_dask.results.data.fit_view import view_of
from homodyne_dask.results.data.series import FitSeries
from homodyne_dask.results.views.figures.style import (
    COLOURS,
    FOOT,
    drawable,
    foot_line,
    label_axes,
    limits,
    log_scale_if_wide,
    logarithmic,
    panels,
    plain_label,
    ring_colours,
)
from homodyne_dask.results.views.fits_report import DOUBTFUL
from homodyne_dask.store.age_average import average_over_age

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from homodyne_dask.results.views.figures.picture import FitFigure

Columns = Mapping[str, np.ndarray]
"""Columns of a table by their names."""
COLUMNS = 3
MAX_NAMES = 12
"""Most scans that are labelled one by one; of more, only some are."""
MAX_LETTERS = 40
"""Most letters of a name in a figure."""
LETTER = 0.075
"""Inches of a letter of their names."""
_AXES = {"q": "q [Å⁻¹]", "phi": "φ [°]", "age": "age [s]", "scan": "scan"}
_RATES = {"J": "J(t) [Å²/s]", "gamma_dot": "γ̇(t) [1/s]"}
_TITLES = {"J": "J at the mean age", "gamma_dot": "γ̇ at the mean age"}


def draw_scans(entries: Sequence[FitRow]) -> "FitFigure":
    """Draw each parameter with its error, and the reduced χ², for each scan."""
    labels = [_label(entry.name.removesuffix(".zarr")) for entry in entries]
    picture, axes = _panels(entries, LETTER * max(map(len, labels)))
    at = np.arange(len(entries))
    _draw(axes, entries, at)
    shown = at[:: -(-len(at) // MAX_NAMES)]
    for axis in axes:
        axis.set_xticks(shown, [labels[int(n)] for n in shown], rotation=90, fontsize=8)
        axis.set_xlim(-0.5, len(at) - 0.5)
    return picture


def _label(name: str) -> str:
    """Return the name of a scan as a label, the beginning of a long one."""
    name = in_line(name)
    return plain_label(name if len(name) <= MAX_LETTERS else f"{name[:MAX_LETTERS]}…")


def draw_scans_against(rows: Sequence[FitRow], against: str) -> "FitFigure":
    """Draw each parameter with its error, and the reduced χ², against the number or the time of the scans.

    against: 'number' or 'time'.
    """
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.ticker import MaxNLocator

    picture, axes = _panels(rows, FOOT)
    _draw(axes, rows, _places(rows, against))
    for axis in axes[-COLUMNS:]:
        axis.set_xlabel(against, loc="left")  # the date of the ticks is on the right
    zone = datetime.now().astimezone().tzinfo
    for axis in axes:
        ticks = MaxNLocator(5, integer=True)
        if against == "time":
            ticks = AutoDateLocator(zone, minticks=3, maxticks=5)
            axis.xaxis.set_major_formatter(ConciseDateFormatter(ticks, zone))
        axis.xaxis.set_major_locator(ticks)
    return picture


def _places(rows: Sequence[FitRow], against: str) -> np.ndarray:
    """Return the numbers of scans, or their times as matplotlib counts them."""
    if against == "number":
        return np.array([row.at["number"] for row in rows])
    from matplotlib.dates import date2num

    times = [row.at["time"] for row in rows]
    return np.array([date2num(datetime.fromisoformat(time)) if time else np.nan for time in times])


def rates_drawn(columns: Iterable[str]) -> list[str]:
    """Return the rates that `draw_last_rates` draws of a table; none where one has no times or no band."""
    has = {*columns}
    names = [name for name in _RATES if name in has]
    needed = {"t", *(f"{name}_{end}_68" for name in names for end in ("low", "high"))}
    return names if needed <= has else []


def draw_last_rates(tables: Sequence[tuple[str, Columns]]) -> "FitFigure":
    """Draw J(t) and γ̇(t) of several scans, the last one in colour and with its 68 % band.

    tables: name of each scan and its rates.csv, the last one last.
    """
    tables = [(scan, {name: drawable(of[name]) for name in of}) for scan, of in tables]
    last = tables[-1][1]
    names = rates_drawn(last)
    picture, axes = panels(len(names), len(names), 4.2, 2.6, FOOT)
    for axis, name in zip(axes, names, strict=True):
        label_axes(axis, "t [s]", _RATES[name])
        for n, (scan, of) in enumerate(tables):
            newest = n == len(tables) - 1
            shade = COLOURS[0] if newest else str(0.8 - 0.4 * n / len(tables))
            axis.plot(of["t"], of[name], color=shade, lw=2 if newest else 1, label=_label(scan))
        band = last[f"{name}_low_68"], last[f"{name}_high_68"]
        axis.fill_between(last["t"], *band, color=COLOURS[0], alpha=0.25, lw=0)
        values = np.concatenate([of[name] for _, of in tables])
        log_scale_if_wide(axis, "y", values)
        logarithmic(axis, "x")
        limits(axis, values, np.concatenate(band))
    axes[-1].legend(fontsize=7, frameon=False)
    return picture


def draw_series(whole: FitSeries) -> "FitFigure":
    """Draw each parameter and rate with its error, and the reduced χ², against q or age.

    Over q also the decay rates on logarithmic axes with the line of q² and, where the stores are, the decays
    averaged over age. A dashed line is the weighted mean of consistent fits; horizontal bars are the windows
    of age.
    """
    entries = [entry for entry in whole.entries if entry.result is not None]
    rates = whole.decay_rates if whole.over == "q" and len(entries) > 1 else []
    decays = _decays(entries) if rates else []
    names = names_drawn(entries)
    picture, axes = panels(len(names) + 1 + len(rates) + bool(decays), COLUMNS, 2.85, 1.9, FOOT)
    at = np.array([entry.at[whole.over] for entry in entries])
    windows = None  # below and above the mean age
    if "from" in entries[0].at:
        windows = np.array(
            [at - [e.at["from"] for e in entries], [e.at["to"] for e in entries] - at]
        )
    _draw(axes, entries, at, windows)
    for axis, name in zip(axes, names, strict=False):
        axis.set_title(_TITLES.get(name, ""), fontsize=10)
        same = whole.agreement.get(name)
        if same is not None and same.p >= DOUBTFUL:
            axis.axhline(same.mean, color=COLOURS[4], linestyle="--", zorder=0)
            foot_line(picture, "dashed: weighted mean of consistent fits")
    for axis in axes:
        axis.set_xlabel(_AXES[whole.over])
    for axis, name in zip(axes[len(names) + 1 :], rates, strict=False):
        _draw_decay_rates(axis, name, entries, at)
    if decays:
        _draw_decays(axes[-1], decays)
    return picture


def _draw_decay_rates(axis: "Axes", name: str, entries: Sequence[FitRow], q: np.ndarray) -> None:
    """Draw the decay rate Γ of each q on logarithmic axes, and the line ∝ q² through them."""
    found = [entry.quantities[name] for entry in entries]
    factor = 0.5 * q**2 if name == "J" else np.ones(len(q))
    rate, error = (factor * [getattr(one, key) for one in found] for key in ("value", "stderr"))
    known = np.isfinite(drawable(rate)) & (rate > 0)
    q, rate, error = q[known], rate[known], np.nan_to_num(error[known])
    label_axes(axis, _AXES["q"], "Γ = q²J/2 [1/s]" if name == "J" else plain_label(f"{name} [1/s]"))
    axis.errorbar(q, rate, error, fmt="o", ms=5, color=COLOURS[0], elinewidth=1)
    if len(q):
        line = q**2 * np.exp(np.mean(np.log(rate / q**2)))
        axis.plot(q, line, color=COLOURS[4], zorder=0, label="∝ q²")
        axis.legend(fontsize=8, frameon=False)
    for which in "xy":
        logarithmic(axis, which)


class _Decay(NamedTuple):
    """The decay of one fit, averaged over age and bins, from 1 to 0."""

    q: float
    lag: Float[np.ndarray, " n"]
    f: Float[np.ndarray, " n"]
    model: Float[np.ndarray, " n"]
    decay_time: float
    """s; NaN if the model decays to 1/e in no bin."""


def _decays(entries: Sequence[FitRow]) -> list[_Decay]:
    """Return the decay of each fit whose store is where it was."""
    found = []
    for entry in entries:
        assert entry.result is not None
        try:
            view = view_of(entry.result)
        except HomodyneDaskError:  # moved, changed, or at a URL that is closed to this process
            continue
        scaling, read = view.result.scaling, view.cuts
        offset, contrast = (scaling[name].values[:, None] for name in ("offset", "contrast"))
        model = view.model.shape(np.arange(len(contrast)), read.t1, read.t2)
        both = ((read.c2 - offset) / contrast, np.where(np.isfinite(read.c2), model, np.nan))
        lag, f, of_model = average_over_age(read, both)
        times = view.decay_times[np.isfinite(view.decay_times)]
        middle = float(np.median(times)) if len(times) else np.nan
        found.append(_Decay(entry.at["q"], lag, f, of_model, middle))
    return found


def _draw_decays(axis: "Axes", decays: Sequence[_Decay]) -> None:
    """Draw f against lag for all q: symbols are data, lines the model."""
    label_axes(axis, "lag [s]", "(g₂ − offset) / contrast", "mean over age; line: model")
    colours = ring_colours(np.array([decay.q for decay in decays]))
    for decay, (q, colour, marker) in zip(sorted(decays, key=lambda d: d.q), colours, strict=True):
        time = f", τ = {decay.decay_time:.3g} s" if np.isfinite(decay.decay_time) else ""
        look = {"color": colour, "ms": 3}
        axis.plot(decay.lag, decay.f, marker, label=f"q = {q:.4g}{time}", **look)
        axis.plot(decay.lag, decay.model, color=colour, lw=1)
    logarithmic(axis, "x")
    if len(decays) <= MAX_NAMES:
        axis.legend(fontsize=5.5, frameon=False)


def names_drawn(entries: Sequence[FitRow]) -> list[str]:
    """Return the parameters and rates worth a panel: none that is fixed, and no rate equal to a parameter."""
    constant, drawn = constant_quantities(entries), dict[str, list[float]]()
    for name in [n for n in entries[0].quantities if n not in constant]:
        values = [entry.quantities[name].value for entry in entries]
        if not any(np.array_equal(values, of) for of in drawn.values()):
            drawn[name] = values
    return list(drawn)


def _panels(entries: Sequence[FitRow], below: float = 0.0) -> "tuple[FitFigure, list[Axes]]":
    """Return a figure with axes for each quantity and for χ²; below: inches more for labels below all."""
    number = len(names_drawn(entries)) + 1
    picture, axes = panels(number, COLUMNS, 2.85, 1.9, below)
    for axis in axes[: max(number - COLUMNS, 0)]:
        axis.tick_params(labelbottom=False)
    return picture, axes


def scans_title(entries: Sequence[FitRow], against: str) -> str:
    """Return the title of a figure of several fits: which errors its bars are."""
    known = methods_of(entries)
    bars = f"standard errors ({known})" if known else "standard errors (none is known)"
    return (
        f"Parameters against {against}: bars are {bars}; open symbols are values without an error, crosses "
        f"are values at a bound"
    )


def _draw(
    axes: "Sequence[Axes]",
    entries: Sequence[FitRow],
    at: np.ndarray,
    reach: np.ndarray | None = None,
) -> None:
    names = names_drawn(entries)
    for axis, name in zip(axes, names, strict=False):
        found = [entry.quantities[name] for entry in entries]
        value, error = (
            drawable(np.array([getattr(q, key) for q in found])) for key in ("value", "stderr")
        )
        bound = np.array([q.at_bound for q in found])
        unit = found[0].unit
        label_axes(axis, "", plain_label(f"{name} [{unit}]" if unit else name))
        for some, marker, face in (
            (np.isfinite(error), "o", COLOURS[0]),
            (~np.isfinite(error) & ~bound, "o", "none"),
            (bound, "x", "none"),
        ):
            if some.any():
                look = {"fmt": marker, "ms": 5, "color": COLOURS[0], "markerfacecolor": face}
                across = None if reach is None else reach[:, some]
                up = np.nan_to_num(error[some])
                axis.errorbar(at[some], value[some], up, across, elinewidth=1, **look)
        log_scale_if_wide(axis, "y", value)
    of_chisqr = axes[len(names)]
    label_axes(of_chisqr, "", "reduced χ²")
    redchi = drawable(np.array([entry.redchi for entry in entries], float))
    of_chisqr.plot(at, redchi, "o", ms=5, color=COLOURS[1])
