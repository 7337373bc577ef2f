"""Confidence intervals of the parameters, from the robust errors and their degrees of freedom."""

from typing import TYPE_CHECKING

import numpy as np
import xarray

from homodyne_dask.errors import OptionError
from homodyne_dask.results.fit_result import FitResult
from homodyne_dask.results.text import aligned_columns

if TYPE_CHECKING:
    from homodyne_dask.results.series import FitSeries


def confidence_intervals(result: FitResult, percent: float = 95.0) -> xarray.Dataset:
    """Return low and high over `param`: value ± t·stderr, t for the degrees of freedom of stderr.

    percent: probability that an interval holds the true value, above 0 and below 100. NaN where stderr is
    unknown: the naive error and the lower bound make no interval. Raises OptionError for another percent.
    """
    from scipy.special import stdtrit  # loads for a fifth of a second

    if not 0 < percent < 100:
        raise OptionError(f"an interval of {percent!r} % is none: give a number as 95")
    table = result.parameters
    t = stdtrit(table["dof"].values, 0.5 + percent / 200)
    half = t * table["stderr"].values
    ends = {"low": table["value"].values - half, "high": table["value"].values + half}
    return xarray.Dataset(
        {name: ("param", values) for name, values in ends.items()},
        coords={"param": table["param"], "unit": table["unit"]},
        attrs={"percent": percent},
    )


def intervals_text(found: "FitResult | FitSeries", percent: float) -> str:
    """Return a table of the intervals of a fit, or of each fit of a series."""
    if isinstance(found, FitResult):
        return _text(found, percent)
    parts = [
        f"{entry.name}\n{_text(entry.result, percent)}"
        for entry in found.entries
        if entry.result is not None
    ]
    return "\n\n".join(parts)


def _text(result: FitResult, percent: float) -> str:
    ends = confidence_intervals(result, percent)
    rows = [["parameter", f"{percent:g} % from", "to", "unit", "dof"]]
    for name, low, high, unit, dof in zip(
        *(ends[key].values for key in ("param", "low", "high", "unit")),
        result.parameters["dof"].values,
        strict=True,
    ):
        known = bool(np.isfinite(low))
        shown = (
            [f"{low:.6g}", f"{high:.6g}", str(unit), f"{dof:.1f}"]
            if known
            else ["-", "-", str(unit), "-"]
        )
        rows.append([str(name), *shown])
    lines = aligned_columns(rows, left=1)
    if not np.isfinite(ends["low"].values).any():
        lines.append("no robust error is known, and the others make no interval (explain errors)")
    return "\n".join(lines)
