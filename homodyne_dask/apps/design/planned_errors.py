"""`design`: the errors that a planned scan will give, as a dataset, a table and a picture."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray

from homodyne_dask.document.blocks import Document, Section, Sentences, Table
from homodyne_dask.document.plain_text import Printed
from homodyne_dask.read_only import HandedOut
from homodyne_dask.results.data.dataclass_json import plain_values
from homodyne_dask.results.data.number_format import format_error, value_and_error
from homodyne_dask.results.views.figures.given_axes import in_place_of
from homodyne_dask.text import with_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CORRELATED = 0.95
"""Correlation of two parameters, from which on it is printed."""


@dataclass(frozen=True, repr=False)
class Design(HandedOut, Printed):
    """Expected errors of a planned scan, by weighting; `print(design)` shows them.

    dataset: `value` and `stderr` over (weighting, varied quantity, parameter), `correlation`, and
    `rate` and `rate_stderr` over (rate, age). Numbers that the scan does not determine are NaN.
    """

    dataset: xarray.Dataset

    @property
    def varied(self) -> str | None:
        """The varied quantity; None for a single scan."""
        return self.dataset.attrs.get("varied")

    def plot(self, ax: "Axes | None" = None) -> Any:
        """Plot the relative error of each parameter against the varied quantity."""
        from homodyne_dask.apps.design.design_figure import draw_design

        with in_place_of(ax):
            return draw_design(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the scan, the varied quantity, and a row of errors for each value and weighting."""
        rows, names = [], self.dataset["parameter"].values
        for weighting in self.dataset["weighting"].values:
            for point in range(self.dataset.sizes["point"]):
                one = self.dataset.isel(point=point).sel(weighting=weighting)
                varied = {self.varied: one["varied"].values} if self.varied else {}
                stderr = dict(zip(names, one["stderr"].values, strict=True))
                rows.append({"weighting": weighting, **varied, "stderr": stderr})
        scan = self.dataset.attrs["scan"]
        return plain_values({"scan": scan, "varied": self.varied, "errors": rows})

    def _document(self) -> Document:
        data = self.dataset
        tables = [self._one_scan(data.isel(point=0))] if self.varied is None else self._errors(data)
        correlations = self._correlations(data.isel(point=0)) if self.varied is None else []
        notes = Sentences([*correlations, *self._not_determined(data)])
        return Document("", [Section("Scan", [Sentences([data.attrs["scan"]]), *tables, notes])])

    def _errors(self, data: xarray.Dataset) -> list[Table]:
        """Return the errors against the varied quantity, a table for each weighting."""
        rates = [f"{rate}({at:g} s)" for rate in data["rate"].values for at in data["age"].values]
        tables = []
        for name in data["weighting"].values:
            rows = [[str(self.varied), *map(str, data["parameter"].values), *rates]]
            for point in range(data.sizes["point"]):
                one = data.isel(point=point).sel(weighting=name)
                errors = [*one["stderr"].values, *one["rate_stderr"].values.ravel()]
                rows.append([f"{float(one['varied']):.4g}", *map(format_error, errors)])
            tables.append(Table(f"standard errors with --weighting {name}", rows, 0))
        return tables

    def _one_scan(self, data: xarray.Dataset) -> Table:
        rows = [["", *(f"--weighting {name}" for name in data["weighting"].values)]]
        for name in map(str, data["parameter"].values):
            one = data.sel(parameter=name)
            unit = "" if one["unit"] == "1" else one["unit"].item()
            rows.append([name, *_cells(one["value"].item(), one["stderr"].values, unit)])
        for rate in data["rate"].values:
            for age in data["age"].values:
                one = data.sel(rate=rate, age=age)
                cells = _cells(one["rate_value"].item(), one["rate_stderr"].values)
                rows.append([f"{rate} at {age:g} s", *cells])
        return Table("", rows)

    def _correlations(self, data: xarray.Dataset) -> list[str]:
        names, correlation = data["parameter"].values, data["correlation"].isel(weighting=0).values
        strong = [
            f"{names[b]} and {names[a]} {correlation[a, b]:+.3f}"
            for a, b in zip(
                *np.nonzero(np.abs(np.tril(correlation, -1)) >= CORRELATED), strict=True
            )
        ]
        return [f"strongly correlated: {', '.join(strong)}"] if strong else []

    def _not_determined(self, data: xarray.Dataset) -> list[str]:
        lost = np.isnan(data["stderr"].values).any(axis=(0, 1))
        if not lost.any():
            return []
        where = " everywhere" if self.varied else ""
        names = ", ".join(map(str, data["parameter"].values[lost]))
        remedy = "fix some of them, or choose other angles, lags or counts"
        return [f"not determined{where}: {names}; {remedy}"]


def _cells(value: float, errors: np.ndarray, unit: str = "") -> list[str]:
    """Return a value with each of its errors; '-' where that is unknown."""
    return [
        "-" if np.isnan(error) else with_unit(value_and_error(value, float(error)), unit)
        for error in errors
    ]
