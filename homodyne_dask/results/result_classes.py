"""What fits return: values of a fit, a series and a comparison, with the methods that show and write them.

The values are in `data`; views and files know these alone. Printing a result does not load matplotlib."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import xarray

from homodyne_dask.document.blocks import Document, Reportable
from homodyne_dask.results.data.comparison import ComparisonValues, compared_fits
from homodyne_dask.results.data.derived_quantities import Quantity, derived_quantities
from homodyne_dask.results.data.fit_result import LIMITS, FitValues
from homodyne_dask.results.data.fit_view import c2_at, fitted_c2, view_of
from homodyne_dask.results.data.fitted_parameters import FittedParameters
from homodyne_dask.results.data.rate_curves import rates_in
from homodyne_dask.results.data.series import SeriesValues
from homodyne_dask.results.files import json_files as formats
from homodyne_dask.results.files.json_files import Format, dataset_of
from homodyne_dask.results.views.fits_report import report_of_comparison, report_of_series
from homodyne_dask.results.views.paper_table import as_latex, as_markdown, paper_table
from homodyne_dask.results.views.report_content import report_of
from homodyne_dask.store.files import path_of, replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike
    from pandas import DataFrame

    from homodyne_dask.store.scan import Scan


class Saved(Reportable):
    """A report that is written as JSON, too, and read back by a function of its own."""

    _format: Format

    def to_dict(self) -> dict[str, Any]:
        """Return all as plain values, as `to_json` writes them; unknown numbers are None."""
        return self._format.to_dict(self)

    def to_json(self, path: str | Path) -> None:
        """Write all as JSON with a checksum; unknown numbers are null, never NaN.

        Like all methods that write one file, it replaces a file of its kind that is there, atomically: on an
        error the old one stays. Raises OptionError for a folder, a name in a store, and any other file.
        """
        formats.write_json(self.to_dict(), path)


class Tabulated(Saved):
    """A report whose values are a table for a paper, too."""

    def to_latex(self) -> str:
        """Return the values as a LaTeX tabular, 8810(380) for 8810 ± 380; a comment says what was fitted."""
        return as_latex(paper_table(cast("FitValues | SeriesValues", self)))

    def to_markdown(self) -> str:
        """Return the same table in Markdown."""
        return as_markdown(paper_table(cast("FitValues | SeriesValues", self)))


def _figure(name: str, about: str) -> Callable[..., Any]:
    def draw(
        self: "Plots",
        scan: "Scan | None" = None,
        ax: "Axes | None" = None,
        panel: str | None = None,
    ) -> Any:
        from homodyne_dask.results.views.fit_figures import PICTURES  # lazy: it loads matplotlib

        return PICTURES[name](view_of(self.result, scan)).figure(ax, panel)

    draw.__name__, draw.__doc__ = name, about
    return draw


class Plots:
    """The figures of a result, `result.plot`, as matplotlib Figures that notebooks show.

    `.tables` of a figure are the numbers behind each panel, a pandas.DataFrame by name; `.savefig("a.pdf")`
    writes it as wide as a page of a journal, or a column if it has one panel. scan: what was fitted; by
    default it is opened where it was then. panel: name of the only panel to draw, such as 'contrast'.
    ax: axes made by `plt.subplots`, in which one panel is drawn, or in whose place in their figure all are.

    Each raises OptionError for an unknown panel, SelectionError where the scan's bins are not those of the
    result, and a HomodyneDaskError where no scan is given and the store is not there as it was.
    """

    def __init__(self, result: "FitResult") -> None:
        self.result = result

    maps = _figure("maps", "Data, model and residuals of single bins against both times.")
    cuts = _figure("cuts", "c2 against lag at several ages: data with bars, model as lines.")
    angles = _figure("angles", "Contrast, offset, decay time and decay at one lag, by angle.")
    rates = _figure("rates", "J(t), shear rate and strain, or a distribution of rates, with bands.")
    passes = _figure("passes", "χ², estimated distance to the minimum and time of each pass.")
    residuals = _figure("residuals", "Distribution of the residuals, and dependence on lag.")
    influence = _figure("influence", "Change of parameters, in errors, when one bin is excluded.")


class FitResult(FitValues, Tabulated):
    """Result of one fit; `print(result)` shows the report. All that it hands out is read-only.

    >>> hd.load_result("A0123_fit").summary().loc["alpha", ["value", "stderr"]].tolist()
    [-1.32714, 0.00123]
    """

    _format = formats.RESULT

    def _document(self) -> Document:
        return report_of(self)

    @property
    def params(self) -> FittedParameters:
        """The parameters one by one: `result.params["D0"].value`, stderr, method, dof, unit, min, max, ..."""
        return FittedParameters(self)

    def summary(self) -> "DataFrame":
        """Return the parameters as a pandas DataFrame, one row each: value, stderr, method, dof, unit, ...

        The columns are the fields of `params`; unknown numbers are NaN. `to_dict` gives everything for
        JSON.
        """
        from pandas import DataFrame  # loads for half a second

        frame = DataFrame([vars(parameter) for parameter in self.params.values()]).set_index("name")
        numbers = ["value", "stderr", "stderr_naive", "dof", "min", "max", *LIMITS]
        return frame.astype(dict.fromkeys(numbers, float)).rename_axis("parameter")

    @property
    def derived(self) -> dict[str, Quantity]:
        """What follows from the parameters: J and gamma_dot at the mean age, Gamma and D of a ring, D_SE, ...

        Each has value, stderr, dof, low_95, high_95, unit and formula.
        """
        return derived_quantities(self)

    @property
    def plot(self) -> Plots:
        """Figures of the result, such as `result.plot.rates()`; pass a scan if the store has moved.

        maps, cuts, angles, rates, passes, residuals, influence.
        """
        return Plots(self)

    def model(self, scan: "Scan | None" = None) -> xarray.DataArray:
        """Return the fitted c2 (bin, t1, t2) of the fitted bins, lazily, like c2 in `scan.dataset`."""
        return fitted_c2(self, scan)

    def eval(
        self,
        t1: "ArrayLike",
        t2: "ArrayLike",
        label: int | None = None,
        scan: "Scan | None" = None,
        *,
        phi: Any = None,
        band: float | None = None,
    ) -> Any:
        """Evaluate the fitted c2 at pairs of times [s]: (bin, ...), or (...) for the bin with a given label.

        t1, t2: arrays that broadcast together, within the scan; f is interpolated between frames. phi: of
        the bins, as in `scan.select`. scan: the fitted scan, by default opened from its store. Values are
        NaN in bins whose contrast or offset is unknown. band: a percentage, such as 95, returns three
        arrays: c2, and the ends of its confidence interval from the errors of the parameters, with contrast
        and offset fixed at the fitted values. Raises OptionError for times outside the scan and if standard
        errors are unknown, SelectionError for an unknown label or angle, or another scan.

        >>> c2, low, high = result.eval(0.0, [1.0, 2.0], phi=30, band=95)  # doctest: +SKIP
        """
        return c2_at(self, (t1, t2), label, scan, phi, band)

    def to_nexus(self, path: str | Path, scan: "Scan | None" = None) -> None:
        """Write a NeXus file, as `fit --nexus` does: NXxpcs with maps of all bins, and the fit as NXfit.

        scan: the fitted scan, by default opened from its store. A file is replaced as by `to_json`. Raises
        SelectionError if it has other bins.
        """
        write = formats.writer_of("nexus", "to_nexus")
        replace_file(path_of("path", path), write(view_of(self, scan)))

    @property
    def rates(self) -> xarray.Dataset:
        """J, gamma_dot and their integrals against t [s] with bands, from the fitted store (docs: rates)."""
        return rates_in(view_of(self))

    def to_dataset(self) -> xarray.Dataset:
        """Return all numbers as a Dataset with units, for netCDF and Zarr.

        Over `param` the columns of `parameters`, coordinate unit; over `bin`: contrast, offset, ... ; over
        `derived`: derived_value, derived_stderr, ...; covariance, covariance_naive (cov_i, cov_j) if known;
        chisqr, redchi, ndata, passes. The attributes are outcome, options and source.
        """
        return dataset_of(self)


class FitSeries(SeriesValues, Tabulated):
    """Series of fits over rings, angles, age windows or scans; `print(series)` shows the report."""

    _format = formats.SERIES

    def _document(self) -> Document:
        return report_of_series(self)

    @property
    def results(self) -> tuple[FitResult | None, ...]:
        """The result of each part; None if its fit failed."""
        return cast("tuple[FitResult | None, ...]", super().results)

    def plot(self, ax: "Axes | None" = None, panel: str | None = None) -> Any:
        """Plot each parameter and rate with its error against q, age or scan; ax, panel: as in `Plots`."""
        # lazy: it loads matplotlib
        from homodyne_dask.results.views.scans_figure import page_of_series

        return page_of_series(self).figure(ax, panel)


class Comparison(ComparisonValues, Saved):
    """Comparison of fits to the same data, of `hd.compare` and `hd.compare_models`.

    `print(comparison)` shows table and verdict.
    """

    results: Mapping[str, FitResult]
    _format = formats.COMPARISON

    def _document(self) -> Document:
        return report_of_comparison(self)


def compare_fits(fits: Mapping[str, FitResult]) -> Comparison:
    """Return the comparison of fits by name; raises OptionError as `hd.compare`."""
    return Comparison(**compared_fits(fits))
