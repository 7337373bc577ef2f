"""Parameters of several fits, scan by scan or against q or age."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from homodyne_dask.results.figures.style import (
    COLOURS,
    FOOT,
    label_axes,
    log_scale_if_wide,
    panels,
)
from homodyne_dask.results.series import FitSeries
from homodyne_dask.results.series_entry import SeriesEntry
from homodyne_dask.results.series_report import DOUBTFUL

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from homodyne_dask.results.figures.picture import FitFigure

COLUMNS = 3
MAX_NAMES = 12
"""Most scans that are labelled one by one; of more, only some are."""
LETTER = 0.075
"""Inches of a letter of their names."""
_AXES = {"q": "q [Å⁻¹]", "age": "age [s]"}
_TITLES = {"J": "J at the mean age", "gamma_dot": "γ̇ at the mean age"}


def draw_scans(entries: Sequence[SeriesEntry]) -> "FitFigure":
    """Draw each parameter with its error, and the reduced χ², for each scan."""
    labels = [entry.name.removesuffix(".zarr") for entry in entries]
    picture, axes = _panels(entries, LETTER * max(map(len, labels)))
    at = np.arange(len(entries))
    _draw(axes, entries, at)
    shown = at[:: -(-len(at) // MAX_NAMES)]
    for axis in axes:
        axis.set_xticks(shown, [labels[int(n)] for n in shown], rotation=90, fontsize=8)
        axis.set_xlim(-0.5, len(at) - 0.5)
    return picture


def draw_series(whole: FitSeries) -> "FitFigure":
    """Draw each parameter and rate with its error, and the reduced χ², against q or age.

    A dashed line is the weighted mean of consistent fits; horizontal bars are the windows of age.
    """
    entries = [entry for entry in whole.entries if entry.result is not None]
    picture, axes = _panels(entries, FOOT)
    at = np.array([entry.at[whole.over] for entry in entries])
    _draw(axes, entries, at, _windows(entries, at))
    for axis, name in zip(axes, whole.names, strict=False):
        axis.set_title(_TITLES.get(name, ""), fontsize=10)
        same = whole.agreement.get(name)
        if same is not None and same.p >= DOUBTFUL:
            axis.axhline(same.mean, color=COLOURS[4], linestyle="--", zorder=0)
            picture.supxlabel(
                "dashed: weighted mean of fits that agree", fontsize=8, color="#555555"
            )
    for axis in axes[-COLUMNS:]:
        axis.set_xlabel(_AXES[whole.over])
    return picture


def _panels(entries: Sequence[SeriesEntry], below: float = 0.0) -> "tuple[FitFigure, list[Axes]]":
    """Return a figure with axes for each quantity and for χ²; below: inches more for labels below all."""
    number = len(entries[0].quantities) + 1
    picture, axes = panels(number, COLUMNS, 2.85, 1.9, below)
    for axis in axes[: max(number - COLUMNS, 0)]:
        axis.tick_params(labelbottom=False)
    return picture, axes


def _windows(entries: Sequence[SeriesEntry], at: np.ndarray) -> np.ndarray | None:
    """Return the extent of the window of each fit below and above its mean age."""
    if "from" not in entries[0].at:
        return None
    return np.array([at - [e.at["from"] for e in entries], [e.at["to"] for e in entries] - at])


def _draw(
    axes: "Sequence[Axes]",
    entries: Sequence[SeriesEntry],
    at: np.ndarray,
    reach: np.ndarray | None = None,
) -> None:
    for axis, name in zip(axes, entries[0].quantities, strict=False):
        found = [entry.quantities[name] for entry in entries]
        value, robust, error = (
            np.array([getattr(q, key) for q in found]) for key in ("value", "stderr", "error_used")
        )
        bound = np.array([q.at_bound for q in found])
        unit = found[0].unit
        label_axes(axis, "", f"{name} [{unit}]" if unit else name)
        for some, marker, face in (
            (np.isfinite(robust), "o", COLOURS[0]),
            (~np.isfinite(robust) & ~bound, "o", "none"),
            (bound, "x", "none"),
        ):
            if some.any():
                axis.errorbar(
                    at[some], value[some], np.nan_to_num(error[some]),
                    None if reach is None else reach[:, some], fmt=marker, ms=5,
                    color=COLOURS[0], markerfacecolor=face, elinewidth=1,
                )  # fmt: skip
        log_scale_if_wide(axis, "y", value)
    label_axes(axes[-1], "", "reduced χ²")
    redchi = [np.nan if e.result is None else e.result.redchi for e in entries]
    axes[-1].plot(at, redchi, "o", ms=5, color=COLOURS[1])
