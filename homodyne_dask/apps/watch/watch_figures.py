"""Figures of the page of a watched folder: parameters against number or time, and the latest rates."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.ticker import MaxNLocator

from homodyne_dask.results.data.fit_rows import FitRow
from homodyne_dask.results.views import panels as draw
from homodyne_dask.results.views.fit_figures import AXES as RATE_AXES
from homodyne_dask.results.views.scans_figure import (
    page_of_panels,
    panels_of_quantities,
    scan_label,
)
from homodyne_dask.results.views.style import COLOURS, drawable

Columns = Mapping[str, np.ndarray]
"""Columns of a table by their names."""


def draw_scans_against(rows: Sequence[FitRow], against: str) -> draw.FitFigure:
    """Draw each parameter with its error against the number or the time of the scans.

    against: 'number' or 'time'.
    """
    zone = datetime.now().astimezone().tzinfo
    at = [row.at[against] for row in rows]
    if against == "time":
        at = [date2num(datetime.fromisoformat(time)) if time else np.nan for time in at]

    def finish(axis: Axes, _: str) -> None:
        axis.set_xlabel(against, loc="left")  # the date of the ticks is on the right
        ticks = MaxNLocator(5, integer=True)
        if against == "time":
            ticks = AutoDateLocator(zone, minticks=3, maxticks=5)
            axis.xaxis.set_major_formatter(ConciseDateFormatter(ticks, zone))
            axis.xaxis.get_offset_text().set_fontsize(draw.SMALL)
        axis.xaxis.set_major_locator(ticks)

    return page_of_panels(panels_of_quantities(rows, np.array(at, float), "", finish), below=0.1)


def rates_drawn(columns: Iterable[str]) -> list[str]:
    """Return the rates that `draw_last_rates` draws of a table; none where one has no times or no band."""
    has = {*columns}
    names = [name for name in ("J", "gamma_dot") if name in has]
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
        draw.label_axes(axis, "t [s]", *RATE_AXES[name])
        for n, (scan, of) in enumerate(earlier):
            shade = str(0.8 - 0.4 * n / len(tables))
            axis.plot(of["t"], of[name], color=shade, lw=1, label=scan_label(scan))
        axis.plot(last["t"], last[name], color=COLOURS[0], lw=1.6, label=scan_label(newest))
        ends = np.stack([last[f"{name}_{end}_68"] for end in ("low", "high")])
        draw.band(axis, last["t"], ends, 68)
        values = np.concatenate([of[name] for _, of in tables])
        draw.log_scale_if_wide(axis, "y", values)
        draw.logarithmic(axis, "x")
        draw.limits(axis, values, ends)

    return draw.page({name: partial(rate, name=name) for name in names}, 2, 2.0)
