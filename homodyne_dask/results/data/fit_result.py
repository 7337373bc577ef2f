"""The result of a fit: parameters with errors and units, outcome, options and inputs."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray
from jaxtyping import Float

from homodyne_dask.results.data.misfit import (
    ModelCheck,
    misfit_sentence,
)
from homodyne_dask.results.data.result_tables import (
    DATASET_UNITS,
    plain_columns,
    plain_rows,
    plain_table,
    plain_values,
)
from homodyne_dask.results.data.stokes_einstein import DerivedQuantity, derived_quantities
from homodyne_dask.results.files.json_files import write_with_checksum
from homodyne_dask.results.views.rendering import renderer
from homodyne_dask.solver.covariance import error_used
from homodyne_dask.solver.state import Outcome
from homodyne_dask.store.files import path_of
from homodyne_dask.text import abridged

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from pandas import DataFrame

    from homodyne_dask.models import Model
    from homodyne_dask.results.data.fitted_parameters import FittedParameters
    from homodyne_dask.results.views.figures.plots import Plots
    from homodyne_dask.store.scan import Scan

VERSION = 1
FORMAT, SUMMARY = "homodyne_dask result", "summary.json"
TABLES = ("influence", "scalings", "identifiability", "left_out", "smoothing", "rate_dof")
NUMBERS = ("ndata", "nbins", "passes", "compilations", "timings")
LISTS, LATER = ("history", "undetermined", "warnings"), ("minima", "comparison")
OTHERS = ("config", "inputs", "truth")
"""Entries of `to_dict()`, by how they are written."""


@dataclass(frozen=True)
class FitResult:
    """The result of one fit. `print(result)` is the report.

    >>> hd.load_result("A0123_fit").summary().loc["alpha", ["value", "stderr"]].tolist()
    [-1.32714, 0.00123]
    """

    outcome: Outcome
    parameters: xarray.Dataset
    """Over `param`: value, stderr (CR3; NaN if unknown), stderr_naive, dof, at_bound, fixed, unit."""
    covariance: xarray.DataArray | None
    """(cov_i, cov_j) of `stderr`: cluster-robust; None with fewer than 8 clusters."""
    covariance_naive: xarray.DataArray | None
    """(cov_i, cov_j), (JᵀWJ)⁻¹; None where the data do not determine all parameters."""
    scaling: xarray.Dataset
    """Over `bin`: contrast, offset, redchi, q, phi, ndata, undetermined, left_out_chisqr (χ² of the bin at
    the parameters of a fit without it: `compare_models`); coordinate label."""
    chisqr: float
    redchi: float
    ndata: int
    """Number of data: pairs of frames, or cells of age and lag that c2 is the mean of, times bins; priors."""
    nbins: int
    passes: int
    """Passes over all data, one per trial step."""
    history: tuple[dict[str, Any], ...]
    """One entry per pass: theta, chisqr, damping, accepted, decrement, seconds."""
    compilations: dict[str, int]
    """Largest number of compilations of each kernel in one process."""
    timings: dict[str, float]
    """Seconds: start (initial values), passes, errors (passes after the last step), total."""
    undetermined: tuple[str, ...]
    """Sentences on what the data do not determine, or only weakly."""
    warnings: tuple[str, ...]
    config: dict[str, Any]
    """The options in force, defaults included: model, convention, gap_angstrom, scaling, ..."""
    inputs: dict[str, Any]
    """The store, its digest, the source file and its SHA-256, the selection, notes of ingest."""
    minima: tuple[dict[str, Any], ...] = ()
    """Competing minima of χ² of the binned averages, the best first: theta by name, chisqr, starts
    (how many of the fits ended there)."""
    truth: dict[str, Any] | None = None
    """True model and parameters of simulated data."""
    covariance_lower: xarray.DataArray | None = None
    """(cov_i, cov_j), dyadic-robust over blocks of frames: a lower bound, with fewer than 8 clusters."""
    influence: xarray.Dataset | None = None
    """change(bin, param): change of a parameter when the bin is excluded, in standard errors."""
    scalings: xarray.Dataset | None = None
    """Over `mode`, one step from this fit's optimum: chisqr, fitted, change(mode, param), and aic and bic as
    differences from the lowest mode, not comparable with those of another fit."""
    identifiability: xarray.Dataset | None = None
    """Over `direction`: eigenvalue of the Hessian of unit diagonal, and vector(direction, param)."""
    left_out: xarray.Dataset | None = None
    """Over `cluster` of bins: ndata, chisqr, left_out_chisqr; penalty and linear of all (`hd.compare`)."""
    smoothing: xarray.Dataset | None = None
    """Over `rate` of free form: strength λ, exponent, design_effect, degrees of freedom, splines."""
    rate_dof: xarray.Dataset | None = None
    """Over `age`: degrees of freedom of the robust error of each rate in `rates`."""
    profiles: dict[str, xarray.Dataset] = field(default_factory=dict)
    """By parameter, over `point`: value, chisqr, parabola, evaluations, converged, theta(point, param)."""
    mean_weight: float | None = None
    """With a robust loss: the mean of the weights ρ' of all pairs; chisqr is then Σ scale²·ρ."""
    comparison: tuple[dict[str, Any], ...] = ()
    """The models that were compared, for a model chosen by `auto`: the rows of `ModelComparison.table`."""
    check: ModelCheck | None = None
    """Whether the model describes the data; None where too little is known to test it."""
    posterior: dict[str, Any] | None = None
    """Quantiles of the posterior, and how it was drawn, where it was saved in the folder of the fit."""
    rates_check: dict[str, Any] | None = None
    """Whether the rates follow their power laws (`RatesCheck.to_dict`), of `fit --check-rates`."""
    version: str = field(default="")
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of Python and of the numerical packages."""
    definition: "Model | None" = field(default=None, repr=False, compare=False)
    """The model that was fitted; None for a result that was read from a file."""

    @property
    def converged(self) -> bool:
        """Whether the fit reached an optimum at which every parameter is determined."""
        return self.outcome is Outcome.CONVERGED

    @property
    def error_used(self) -> np.ndarray:
        """The errors in which influence, pulls and profiles count: stderr, else the larger other one."""
        table, bound = self.parameters, self.covariance_lower
        naive = table["stderr_naive"].values
        lower = np.full(len(naive), np.nan) if bound is None else np.sqrt(np.diag(bound.values))
        return error_used(table["stderr"].values, lower, naive)

    @property
    def params(self) -> "FittedParameters":
        """The parameters one by one: `result.params["D0"].value`, stderr, dof, unit, min, max, vary."""
        return renderer("FittedParameters")(self)

    def summary(self) -> "DataFrame":
        """Return the parameters as a pandas DataFrame, a row each: value, stderr, dof, unit, min, max, ...

        The columns are the fields of `params`; NaN is unknown, and in JSON everything is `to_dict`.
        """
        return renderer("parameter_frame")(self)

    def ci(self, percent: float = 95.0) -> xarray.Dataset:
        """Return low and high over `param`, the confidence intervals of the parameters.

        value ± t·stderr, t for `dof` degrees of freedom; NaN where stderr is not known. percent: probability
        that an interval holds the true value. Raises OptionError outside of 0 to 100.
        """
        return renderer("confidence_intervals")(self, percent)

    @property
    def derived(self) -> dict[str, DerivedQuantity]:
        """D_SE of Brownian motion and, with temperature and viscosity, R_h; empty for other models."""
        return derived_quantities(self.config, self.parameters, self.error_used)

    @property
    def periods(self) -> dict[str, float]:
        """The periods of the periodic parameters, by name."""
        return self.config.get("periods", {"phi0": 180.0})  # the only one of earlier programs

    @property
    def misfit(self) -> bool:
        """Whether the fit ended at an optimum at which the model does not describe the data."""
        return self.check is not None and self.check.misfit

    @property
    def verdict(self) -> str:
        """How the fit ended and, if it is so, that the model does not describe the data, and where."""
        if self.check is None or not self.misfit:
            return self.outcome.value
        return f"converged, but {misfit_sentence(self.check, self.inputs['store'], self.config)}"

    def __str__(self) -> str:
        """Return the report as text."""
        return renderer("report_text")(self)

    def __repr__(self) -> str:
        """Return the first lines of the report."""
        return abridged(str(self))

    def _repr_html_(self) -> str:
        """Return the report without figures, for Jupyter."""
        return renderer("report_fragment")(self)

    @property
    def plot(self) -> "Plots":
        """The figures, as matplotlib Figures: `result.plot.rates()`; a scan is given where the store moved.

        maps, cuts, angles, rates, passes, residuals, influence.
        """
        return renderer("Plots")(self)

    def model(self, scan: "Scan | None" = None) -> xarray.DataArray:
        """Return the fitted c2 (bin, t1, t2) of the bins fitted, lazily, as `scan.dataset` has the data."""
        return renderer("fitted_c2")(self, scan)

    def eval(
        self, t1: "ArrayLike", t2: "ArrayLike", label: int | None = None, scan: "Scan | None" = None
    ) -> Float[np.ndarray, "..."]:
        """Return the fitted c2 at pairs of times [s]: (bin, ...), or (...) of the bin of a label.

        t1, t2: shapes that broadcast together, inside the scan; between frames f is interpolated. scan: what
        was fitted, by default from where its store was. NaN in bins whose contrast or offset is unknown.
        Raises OptionError for other times, SelectionError for an unknown label or another scan.
        """
        return renderer("c2_at")(self, t1, t2, label, scan)

    def to_nexus(self, path: str | Path, scan: "Scan | None" = None) -> None:
        """Write a NeXus file as `fit --nexus` does: NXxpcs with maps of all bins, the fit as NXfit.

        scan: what was fitted, by default from where its store was; SelectionError where it has other bins.
        """
        renderer("write_nexus")(self, path, scan)

    @property
    def rates(self) -> xarray.Dataset:
        """J, gamma_dot and their integrals over t [s] with bands, from the store as it was (docs: rates)."""
        return renderer("rates_of_fit")(self)

    def to_dataset(self) -> xarray.Dataset:
        """Return all numbers as one Dataset with units, for netCDF and Zarr.

        Over `param`: value, stderr, stderr_naive, dof, at_bound, fixed, coordinate unit; over `bin`:
        contrast, offset, ... ; covariance and covariance_naive (cov_i, cov_j) where they are known;
        chisqr, redchi, ndata, passes. The attributes hold outcome, options and source.
        """
        known = {
            name: table
            for name in ("covariance", "covariance_naive")
            if (table := getattr(self, name)) is not None
        }
        numbers = {name: getattr(self, name) for name in ("chisqr", "redchi", "ndata", "passes")}
        bins = self.scaling.rename(redchi="redchi_per_bin", ndata="ndata_per_bin")
        whole = xarray.merge([self.parameters, bins]).assign(known | numbers)
        whole = whole.set_coords(["unit", "q", "phi"])
        for name in DATASET_UNITS.keys() & whole.variables.keys():
            whole[name].attrs["units"] = DATASET_UNITS[name]
        return whole.assign_attrs(
            title=f"{self.config['model']} fitted to {self.inputs['store']}",
            model=self.config["model"],
            convention=self.config["convention"],
            outcome=self.outcome.name,
            outcome_sentence=self.verdict,
            undetermined="\n".join(self.undetermined),
            warnings="\n".join(self.warnings),
            source=self.inputs["source_file"],
            source_sha256=self.inputs["source_sha256"],
            history=f"homodyne-dask {self.version}",
            config=json.dumps(plain_values(self.config)),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values, as written to summary.json; unknown numbers are None."""
        return plain_values(
            {
                "format": FORMAT,
                "format_version": VERSION,
                "version": self.version,
                "versions": self.versions,
                "model": self.config["model"],
                "convention": self.config["convention"],
                "scaling": self.config["scaling"],
                "outcome": self.outcome.name,
                "outcome_sentence": self.verdict,
                "model_check": None if self.check is None else self.check._asdict(),
                "parameters": plain_rows(self.parameters, "param"),
                "derived": {name: of._asdict() for name, of in self.derived.items()},
                "covariance": _matrix(self.covariance),
                "covariance_naive": _matrix(self.covariance_naive),
                "scaling_per_bin": plain_columns(self.scaling),
                "chisqr": self.chisqr,
                "redchi": self.redchi,
                "mean_weight": self.mean_weight,
                "redchi_per_bin": self.scaling["redchi"].values,
                **{key: getattr(self, key) for key in (*NUMBERS, *LISTS, *LATER, *OTHERS)},
                "covariance_lower": _matrix(self.covariance_lower),
                **{key: plain_table(getattr(self, key)) for key in TABLES},
                "profiles": {key: plain_table(table) for key, table in self.profiles.items()},
                "posterior": self.posterior,
                "rates_check": self.rates_check,
            }
        )

    def to_json(self, path: str | Path) -> None:
        """Write the result as JSON with a checksum, atomically; unknown numbers are null, never NaN."""
        write_with_checksum(path_of("path", path), self.to_dict())


def _matrix(table: xarray.DataArray | None) -> np.ndarray | None:
    return None if table is None else table.values
