"""`toys`: how fits of simulated photons scatter about the truth, as a table and a picture of pulls."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray
from jaxtyping import Float

from homodyne_dask.document.blocks import Document, Section, Sentences, Table
from homodyne_dask.document.plain_text import Printed
from homodyne_dask.read_only import HandedOut
from homodyne_dask.results.data.dataclass_json import plain_values
from homodyne_dask.results.data.fitted_parameters import nearest_turn
from homodyne_dask.results.data.intervals import half_width, normal_deviate
from homodyne_dask.results.data.number_format import format_error, or_dash
from homodyne_dask.results.data.result_tables import plain_rows, table_of
from homodyne_dask.results.views.figures.given_axes import in_place_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEVELS = (68.0, 95.0)
CONVERGED = "CONVERGED"
CENTRAL = (0.1587, 0.8413)
"""Quantiles of a normal distribution one standard deviation from its mean."""
SIZES = ("scatter", "robust_scatter", "error")
HEAD = ("", "truth", "bias", "scatter", "robust", "error", "scatter / error", "68 %", "95 %")


@dataclass(frozen=True, repr=False)
class Toys(HandedOut, Printed):
    """Fits of scans simulated at the parameters of a fit; `print(toys)` shows their bias and scatter.

    dataset: value, stderr and dof over (toy, param), truth over param and outcome over toy. param: the fitted
    parameters, then J and gamma_dot at the mean age. Shear rates and speeds, whose sign c2 does not show,
    have the sign of the truth.
    """

    dataset: xarray.Dataset
    periods: Mapping[str, float] = field(default_factory=dict)
    """Periods of parameters that are angles."""

    @property
    def converged(self) -> xarray.Dataset:
        """The toys whose fit converged."""
        return self.dataset.isel(toy=self.dataset["outcome"].values == CONVERGED)

    @property
    def deviations(self) -> Float[np.ndarray, "toy param"]:
        """Estimates minus the truth."""
        away = self.converged["value"].values - self.dataset["truth"].values
        periods = [self.periods.get(name, 0.0) for name in self.dataset["param"].values.tolist()]
        return nearest_turn(away, 0.0, np.array(periods))

    @property
    def pulls(self) -> Float[np.ndarray, "toy param"]:
        """Deviations in standard errors, as normal deviates; NaN where an error is absent."""
        data = self.converged
        with np.errstate(invalid="ignore", divide="ignore"):
            return normal_deviate(self.deviations / data["stderr"].values, data["dof"].values)

    @property
    def table(self) -> xarray.Dataset:
        """Dataset over param: bias and its error, scatter, median error, ratio, coverage, error count.

        robust_scatter: of the central 68 %, which a few other minima do not widen.
        """
        away, error, dof = self.deviations, *(self.converged[of].values for of in ("stderr", "dof"))
        scatter = _of_columns(away, lambda x: x.std(ddof=1) if len(x) > 1 else np.nan)
        low, high = (_of_columns(away, lambda x, p=p: np.quantile(x, p)) for p in CENTRAL)
        typical = _of_columns(error, np.median)
        columns = {
            "truth": self.dataset["truth"].values,
            "bias": _of_columns(away, np.mean),
            "bias_stderr": scatter / np.sqrt(max(len(away), 1)),
            "scatter": scatter,
            "robust_scatter": (high - low) / 2,
            "error": typical,
            "errors": np.isfinite(error).sum(axis=0),
            "ratio": scatter / typical,
        }
        for level in LEVELS:
            inside = (np.abs(away) <= half_width(level, dof) * error).astype(float)
            inside[~np.isfinite(error)] = np.nan
            columns[f"inside_{level:.0f}"] = _of_columns(inside, np.mean)
        return table_of({"param": columns}, param=self.dataset["param"])

    def to_dict(self) -> dict[str, Any]:
        """Return the table by parameter, the number of toys, and how many of them converged."""
        keys = ("model", "weighting", "pixels", "counts", "seed")
        facts = {key: self.dataset.attrs[key] for key in keys}
        sizes = {"toys": self.dataset.sizes["toy"], "converged": self.converged.sizes["toy"]}
        return plain_values(facts | sizes | {"parameters": plain_rows(self.table, "param")})

    def plot(self, ax: "Axes | None" = None) -> Any:
        """Plot the pulls of every parameter together with the normal distribution."""
        from homodyne_dask.apps.design.design_figure import draw_pulls

        with in_place_of(ax):
            return draw_pulls(self)

    def _document(self) -> Document:
        data, table = self.dataset, self.table
        about, number = data.attrs, data.sizes["toy"]
        size = f"{about['pixels']:.4g} pixels per bin, {about['counts']:.3g} counts per pixel and frame"
        what = (
            f"{number} scans of photons, simulated from the fit of {about['model']} ({size}), were fitted "
            f"with --weighting {about['weighting']}: {self.converged.sizes['toy']} fits converged"
        )
        rows: list[list[str]] = [list(HEAD)]
        forms = {"ratio": ".2f", "inside_68": ".0%", "inside_95": ".0%"}
        for name, row in plain_rows(table, "param").items():
            bias = f"{row['bias']:.2g} ± {format_error(float(row['bias_stderr']))}"
            sizes = [format_error(float(row[key])) for key in SIZES]
            shares = [or_dash(float(row[key]), form) for key, form in forms.items()]
            rows.append([name, f"{row['truth']:.6g}", bias, *sizes, *shares])
        lacking = int(self.converged.sizes["toy"] - table["errors"].values.min(initial=number))
        notes = [f"converged fits without an error, which the last columns exclude: {lacking}"]
        blocks = [Sentences([what]), Table("", rows), Sentences(notes if lacking > 0 else [])]
        return Document("", [Section("Toys", blocks)])


def _of_columns(
    values: Float[np.ndarray, "toy param"], of: Callable[[np.ndarray], Any]
) -> Float[np.ndarray, " param"]:
    """Return a number of each column, of what is known there; NaN of nothing."""
    known = (column[np.isfinite(column)] for column in values.T)
    return np.array([of(column) if len(column) else np.nan for column in known])
