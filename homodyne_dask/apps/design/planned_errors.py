"""`design`: the errors that a planned scan will give, as a dataset, a table and a picture."""

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray

from homodyne_dask.document.blocks import Document, Printed, Section, Sentences, Table
from homodyne_dask.read_only import HandedOut
from homodyne_dask.results.data.dataclass_json import plain_values
from homodyne_dask.results.data.numbers_and_intervals import format_error, value_and_error
from homodyne_dask.results.views.style import in_place_of
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
            return draw_design(self.dataset)

    def to_dict(self) -> dict[str, Any]:
        """Return the scan, the varied quantity, and a row of errors for each value and weighting."""
        rows, data = [], self.dataset
        for weighting, errors in zip(data["weighting"].values, data["stderr"].values, strict=True):
            for value, each in zip(data["varied"].values, errors, strict=True):
                varied = {self.varied: value} if self.varied else {}
                stderr = dict(zip(data["parameter"].values, each, strict=True))
                rows.append({"weighting": weighting, **varied, "stderr": stderr})
        return plain_values({"scan": data.attrs["scan"], "varied": self.varied, "errors": rows})

    def _document(self) -> Document:
        data = self.dataset
        tables = [self._one_scan(data.isel(point=0))] if self.varied is None else self._errors(data)
        scan, notes = Sentences([data.attrs["scan"]]), Sentences(self._notes(data))
        return Document("", [Section("Scan", [scan, *tables, notes])])

    def _errors(self, data: xarray.Dataset) -> list[Table]:
        rates = [f"{rate}({at:g} s)" for rate in data["rate"].values for at in data["age"].values]
        tables = []
        for n, name in enumerate(data["weighting"].values):
            rows = [[str(self.varied), *map(str, data["parameter"].values), *rates]]
            columns = (data[key].values[n] for key in ("stderr", "rate_stderr"))
            for value, errors, of_rates in zip(data["varied"].values, *columns, strict=True):
                each = map(format_error, [*errors, *of_rates.ravel()])
                rows.append([f"{value:.4g}", *each])
            tables.append(Table(f"standard errors with --weighting {name}", rows, 0))
        return tables

    def _one_scan(self, data: xarray.Dataset) -> Table:
        rows = [["", *(f"--weighting {name}" for name in data["weighting"].values)]]
        for name in map(str, data["parameter"].values):
            one = data.sel(parameter=name)
            unit = "" if one["unit"] == "1" else one["unit"].item()
            rows.append([name, *_cells(one["value"].item(), one["stderr"].values, unit)])
        for rate, age in product(data["rate"].values, data["age"].values):
            one = data.sel(rate=rate, age=age)
            cells = _cells(one["rate_value"].item(), one["rate_stderr"].values)
            rows.append([f"{rate} at {age:g} s", *cells])
        return Table("", rows)

    def _notes(self, data: xarray.Dataset) -> list[str]:
        names, notes = data["parameter"].values, []
        if self.varied is None:
            correlation = data.isel(point=0)["correlation"].isel(weighting=0).values
            pairs = np.argwhere(np.abs(np.tril(correlation, -1)) >= CORRELATED).tolist()
            strong = [f"{names[b]} and {names[a]} {correlation[a, b]:+.3f}" for a, b in pairs]
            notes += [f"strongly correlated: {', '.join(strong)}"] if strong else []
        lost = np.isnan(data["stderr"].values).any(axis=(0, 1))
        if lost.any():
            where = " everywhere" if self.varied else ""
            notes.append(
                f"not determined{where}: {', '.join(map(str, names[lost]))}; fix some of them, or choose "
                f"other angles, lags or counts"
            )
        return notes


def _cells(value: float, errors: np.ndarray, unit: str = "") -> list[str]:
    return [
        "-" if np.isnan(error) else with_unit(value_and_error(value, float(error)), unit)
        for error in errors
    ]
