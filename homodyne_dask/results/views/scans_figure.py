"""Parameters of several fits, scan by scan or against q or age."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from homodyne_dask.errors import HomodyneDaskError, OptionError, in_line
from homodyne_dask.results.data.derived_quantities import shown_names
from homodyne_dask.results.data.fit_result import LIMITS
from homodyne_dask.results.data.fit_rows import FitRow, column, constant_quantities, methods_of
from homodyne_dask.results.data.fit_view import FitView, view_of
from homodyne_dask.results.data.numbers_and_intervals import value_and_error
from homodyne_dask.results.data.series import SeriesValues
from homodyne_dask.results.views import panels as draw
from homodyne_dask.results.views.fits_report import DOUBTFUL, consistent, shared_parameters
from homodyne_dask.results.views.style import COLOURS, drawable, plain_label, ring_styles, symbol
from homodyne_dask.store.scan import Cuts

HEIGHT = 1.6
"""Inches of a panel."""
MAX_NAMES = 12
"""Most scans that are labelled one by one; of more, only some are."""
MAX_LETTERS = 40
"""Most letters of a name in a figure."""
LETTER = 0.075
"""Inches of a letter of their names."""
_AXES = {"q": "q [Å⁻¹]", "phi": "φ [°]", "angle": "φ [°]", "age": "age [s]"}
_AXES |= {"scan": "scan", "label": "label"}
_TITLES = {"J": "J at the mean age", "gamma_dot": "γ̇ at the mean age"}


def page_of_scans(entries: Sequence[FitRow]) -> draw.Page:
    labels = [scan_label(entry.name.removesuffix(".zarr")) for entry in entries]
    places = np.arange(len(entries))
    labelled = places[:: -(-len(places) // MAX_NAMES)]

    def finish(axes: Axes, _: str) -> None:
        names = [labels[int(n)] for n in labelled]
        axes.set_xticks(labelled, names, rotation=90, fontsize=draw.SMALL)
        axes.set_xlim(-0.5, len(places) - 0.5)

    below = LETTER * max(map(len, labels))
    return _page(panels_of_quantities(entries, places, "", finish), below)


def _page(panels: draw.Panels, below: float = 0.0) -> draw.Page:
    columns = 2 if len(panels) == 4 else min(len(panels), 3)  # which leave the fewest empty places
    return draw.Page(panels, columns, HEIGHT, below=below)


def scan_label(name: str) -> str:
    name = in_line(name)
    return plain_label(name if len(name) <= MAX_LETTERS else f"{name[:MAX_LETTERS]}…")


def page_of_series(series: SeriesValues) -> draw.Page:
    """Return a panel of each parameter and rate with its error against q, age or another variable.

    Shared ones have none. Rates over q have logarithmic axes and the line of q², beside decays averaged over
    age. A dashed line is the weighted mean of consistent fits; horizontal bars are windows of age.
    """
    entries = [entry for entry in series.entries if entry.result is not None]
    over_q = series.over == "q" and len(entries) > 1
    rates = series.decay_rates if over_q else []
    places = np.array([entry.at[series.over] for entry in entries])
    x = _AXES.get(series.over) or plain_label(series.over, series.unit_of(series.over))

    def finish(axes: Axes, name: str) -> None:
        if name in rates:
            _draw_power_of_q(axes, series, name, places, drawable(column(entries, name)))
        else:
            _draw_means(axes, series, name)
            if series.over == "age":
                draw.log_scale_if_wide(axes, "x", places)
            elif (places == np.round(places)).all():  # there is no scan 1.5
                steps = {"integer": True, "steps": [1, 2, 5, 10]}
                axes.xaxis.set_major_locator(MaxNLocator(draw.MAX_INTERVALS, **steps))

    panels = panels_of_quantities(entries, places, x, finish, _windows(entries, places), rates)
    panels = {n: panels[n] for n in panels if n not in shared_parameters(series)} or panels
    if over_q and (views := _views(entries)):
        panels["decays"] = partial(_draw_decays, views=views)
    if not panels:
        raise OptionError("the model has no parameter or rate of its own to draw: draw each fit")
    return _page(panels)


def _windows(entries: Sequence[FitRow], ages: np.ndarray) -> np.ndarray | None:
    """Return how far each window of age reaches below and above its mean age; None for other series."""
    if "from" not in entries[0].at:
        return None
    begin, end = (np.array([entry.at[key] for entry in entries]) for key in ("from", "to"))
    return np.array([ages - begin, end - ages])


def _draw_means(axes: Axes, series: SeriesValues, name: str) -> None:
    look: dict[str, Any] = {"color": COLOURS[4]}
    test = consistent(series, name, DOUBTFUL)
    quantities = [entry.quantities[name] for entry in series.entries if name in entry.quantities]
    shown = sum(bool(np.isfinite(quantity.value)) for quantity in quantities)
    if test is not None and shown > 1:  # not a mean of values of which limits are shown alone
        axes.axhline(test.mean, ls="--", zorder=0, label="weighted mean of consistent fits", **look)
    look |= {"fmt": "D", "ms": 7, "label": "weighted mean of repeats that agree"}
    for repeats in series.repeats.values():
        if (test := consistent(repeats, name, DOUBTFUL)) is not None:
            point = repeats.entries[0].at[series.over], test.mean, np.nan_to_num(test.stderr)
            draw.points(axes, *np.array(point)[:, None], hollow=True, zorder=3, **look)


def _draw_power_of_q(
    axes: Axes, series: SeriesValues, name: str, q: np.ndarray, rate: np.ndarray
) -> None:
    """Make the axes of a rate of decorrelation logarithmic; draw its power of q, and q², through it."""
    law = series.powers_of_q.get(name)
    if law is not None:
        title = f"∝ qᵖ, p = {value_and_error(law.exponent, law.stderr)}"
        axes.set_title(title, fontsize=draw.FONT, y=1.0)
    positive = np.isfinite(rate) & (rate > 0)
    for direction in "xy" if positive.any() else "":
        draw.logarithmic(axes, direction)
    powers = {} if law is None else {law.exponent: ("-", COLOURS[4], "fitted power p of q")}
    powers[2.0] = ":", COLOURS[6], "∝ q²"
    for power, (style, colour, label) in powers.items() if positive.any() else ():
        line = q**power * np.exp(np.mean(np.log(rate[positive] / q[positive] ** power)))
        axes.plot(q, line, style, color=colour, zorder=0, label=label)


def _views(entries: Sequence[FitRow]) -> list[FitView]:
    views = []
    for entry in sorted(entries, key=lambda entry: entry.at["q"]):
        assert entry.result is not None
        try:
            views.append(view_of(entry.result))
        except HomodyneDaskError:  # moved, changed, or at a URL that is closed to this process
            continue
    return views


def _draw_decays(axis: Axes, views: Sequence[FitView]) -> None:
    title = "" if views[0].scan.is_table else "mean over age"
    draw.label_axes(axis, "lag [s]", "(g₂ − offset) / contrast", title, log="x")
    of_rings = np.array([float(np.mean(view.scan.q)) for view in views])
    for view, (_, colour, marker, label) in zip(views, ring_styles(of_rings), strict=True):
        scaling, read = view.result.scaling, view.cuts
        offset, contrast = (scaling[name].values[:, None] for name in ("offset", "contrast"))
        model = view.model.shape(np.arange(len(contrast)), read.t1, read.t2)
        # of the same cells, so that gaps in the data bend both curves alike
        f, of_model = (read.c2 - offset) / contrast, np.where(np.isfinite(read.c2), model, np.nan)
        curves = np.broadcast_to(read.t2 - read.t1, f.shape), f, of_model
        lag, f, of_model = (_average_over_age(read, values) for values in curves)
        axis.plot(lag, f, marker, label=label, color=colour, ms=3)
        axis.plot(lag, of_model, color=colour, lw=1)


def _average_over_age(
    read: Cuts, values: Float[np.ndarray, "bin cell"]
) -> Float[np.ndarray, " lag"]:
    """Return the mean over bins and ages at each lag, weighted by pairs; NaN where none is known."""
    _, of_lag = np.unique(read.lag, return_inverse=True)
    pairs = np.where(np.isfinite(values), read.count, 0)
    sums = np.nan_to_num(values) * pairs, pairs
    total, count = (np.bincount(of_lag, of_cells.sum(0)) for of_cells in sums)
    return total / np.where(count > 0, count, np.nan)


def names_drawn(entries: Sequence[FitRow], last: Sequence[str] = ()) -> list[str]:
    """Return the parameters and rates worth a panel: not fixed ones, nor copies, unless all are."""
    constant, columns = constant_quantities(entries), {n: _with_limits(entries, n) for n in last}
    quantities = entries[0].quantities
    names = shown_names(quantities, quantities, copies=False)
    names = [n for n in names if np.isfinite(_with_limits(entries, n)).any()] or names
    for name in [name for name in names if name not in constant] or names:
        values = _with_limits(entries, name)
        copies = (np.allclose(values, d, 1e-9, 0.0, equal_nan=True) for d in columns.values())
        if not any(copies):
            columns[name] = values
    return [*(name for name in columns if name not in last), *last]


def scans_title(entries: Sequence[FitRow], against: str) -> str:
    """Return the title of a figure of several fits: which errors its bars are."""
    errors = methods_of(entries) or "none is known"
    return f"Parameters against {against}: bars are standard errors ({errors})"


def _with_limits(entries: Sequence[FitRow], name: str) -> np.ndarray:
    return np.array([column(entries, name, key) for key in ("value", *LIMITS)])


def panels_of_quantities(
    entries: Sequence[FitRow],
    places: np.ndarray,
    x: str,
    finish: Callable[[Axes, str], None],
    reach: np.ndarray | None = None,
    last: Sequence[str] = (),
) -> dict[str, Any]:
    """Return a panel for each quantity against the places of the fits, the `last` ones at the end.

    reach: of each place to both sides, as horizontal bars. finish: called with axes and name of each panel.
    """
    q = np.array([entry.at.get("q", np.nan) for entry in entries])
    rings = ring_styles(q if x != _AXES["q"] else np.array([np.nan]))

    def quantity(axes: Axes, name: str) -> None:
        error = drawable(column(entries, name, "stderr"))
        value, lower, upper = drawable(_with_limits(entries, name))
        has_error, bound = np.isfinite(error), column(entries, name, "at_bound")
        y = plain_label(symbol(name), entries[0].quantities[name].unit)
        draw.label_axes(axes, x, y, _TITLES.get(name, ""))
        axes.locator_params("x", nbins=draw.MAX_INTERVALS - 1)  # of many digits
        no_error = ~has_error & ~bound
        symbols = (
            (value, has_error, "o", ""),
            (value, no_error, "o", "no error"),
            (value, bound, "x", "at a bound"),
            (upper, np.isfinite(upper), draw.DOWN, "upper limit, 95 %"),
            (lower, np.isfinite(lower), draw.UP, "lower limit, 95 %"),
        )
        for (ring, colour, _, label), (drawn, of_symbol, marker, words) in product(rings, symbols):
            fits = of_symbol & np.isfinite(drawn) & ((q == ring) | np.isnan(ring))
            if fits.any():
                across = None if reach is None else reach[:, fits]
                named = ", ".join(filter(None, (label, words))) or None
                look = {"fmt": "", "ls": "", "marker": marker, "color": colour, "label": named}
                look |= {"ms": draw.ARROW} if drawn is not value else {"hollow": bool(words)}
                bars = np.nan_to_num(error[fits])
                draw.points(axes, places[fits], drawn[fits], bars, across=across, **look)
        draw.log_scale_if_wide(axes, "y", np.concatenate([value, upper, lower]))
        finish(axes, name)

    return {name: partial(quantity, name=name) for name in names_drawn(entries, last)}
