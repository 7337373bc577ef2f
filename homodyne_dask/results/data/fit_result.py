"""The values of a fit: parameters with errors and units, outcome, options and inputs."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray

from homodyne_dask.errors import OptionError
from homodyne_dask.models import Model, model_of_digest
from homodyne_dask.models.fingerprint import known_part
from homodyne_dask.models.spline_rates import with_stored_splines
from homodyne_dask.models.tied import with_ties
from homodyne_dask.read_only import HandedOut, read_only
from homodyne_dask.results.data.finding_catalogue import MISFIT, Severity
from homodyne_dask.results.data.findings import Findings
from homodyne_dask.results.data.intervals import half_width
from homodyne_dask.results.data.misfit import ModelCheck, PowerOfQ
from homodyne_dask.results.data.result_tables import correlation_of
from homodyne_dask.solver.covariance import error_used
from homodyne_dask.solver.state import Outcome


@dataclass(frozen=True)
class FitStatistics:
    """χ² at the end of a fit, and the number of its data."""

    chisqr: float
    redchi: float
    ndata: int
    """Number of data: pairs of frames, or cells of age and lag that c2 is the mean of, times bins; priors."""
    nbins: int
    mean_weight: float | None = None
    """With a robust loss: the mean of the weights ρ' of all pairs; chisqr is then Σ scale²·ρ."""


@dataclass(frozen=True)
class FitErrors(HandedOut):
    """What is known of the errors of the parameters, beside the columns of `FitResult.parameters`."""

    covariance: xarray.DataArray | None
    """(cov_i, cov_j) of `stderr`: cluster-robust, with fewer than 8 clusters of speckle; None if unknown."""
    covariance_naive: xarray.DataArray | None
    """(cov_i, cov_j), (JᵀWJ)⁻¹; None where the data do not determine all parameters."""
    noise: xarray.Dataset | None = None
    """Over `bin`: independent pixels and mean_counts per pixel and frame; over `param`: stderr and dof of
    Gaussian speckle and counting; objection: what speaks against them, or ''."""
    rate_dof: xarray.Dataset | None = None
    """Over `age`: degrees of freedom of the robust error of each rate in `rates`."""
    profiles: dict[str, xarray.Dataset] = field(default_factory=dict)
    """By parameter, over `point`: value, chisqr, parabola, evaluations, converged, theta(point, param)."""
    posterior: dict[str, Any] | None = None
    """Quantiles of the posterior, and how it was drawn, where it was saved in the folder of the fit."""


@dataclass(frozen=True)
class Diagnosis(HandedOut):
    """What speaks for a fit or against it, and what depends on what."""

    findings: Findings
    """What is to be known before the numbers are used: whether the model describes the data first."""
    check: ModelCheck | None = None
    """Whether the model describes the data; None where too little is known to test it."""
    power_of_q: PowerOfQ | None = None
    """The power of q of the rates, of fits of three rings or more with contrasts of each bin."""
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
    """Over `rate` of free form: strength λ, exponent, design_effect, degrees of freedom, splines; over
    `param`: bias, what the penalty adds to a parameter on average, to first order."""
    minima: tuple[dict[str, Any], ...] = ()
    """Competing minima of χ² of the binned averages, the best first: theta by name, chisqr, starts
    (how many of the fits ended there)."""
    comparison: tuple[dict[str, Any], ...] = ()
    """The models that were compared, for a model chosen by `auto`: the rows of `Comparison.fits`."""


@dataclass(frozen=True)
class FitRun(HandedOut):
    """The passes of a fit, and what they took."""

    passes: int
    """Passes over all data, one per trial step."""
    history: tuple[dict[str, Any], ...]
    """One entry per pass: theta, chisqr, damping, accepted, decrement, seconds."""
    compilations: dict[str, int]
    """Largest number of compilations of each kernel in one process."""
    timings: dict[str, float]
    """Seconds: start (initial values), passes, errors (all after the last pass), total."""


@dataclass(frozen=True)
class Provenance(HandedOut):
    """What was fitted, how, and with which programs."""

    config: dict[str, Any]
    """The options in force, defaults included: model, convention, gap_angstrom, scaling, ..."""
    inputs: dict[str, Any]
    """The store, its digest, the source file and its SHA-256, the selection, notes of ingest."""
    truth: dict[str, Any] | None = None
    """True model and parameters of simulated data."""
    version: str = ""
    """Of homodyne-dask."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of Python and of the numerical packages."""
    definition: Model | None = field(default=None, repr=False, compare=False)
    """The model that was fitted; None for a result that was read from a file."""

    def __post_init__(self) -> None:
        model = self.definition  # what a user's functions read is the user's
        vars(self).update(read_only(vars(self) | {"definition": None}) | {"definition": model})

    def fitted_model(self) -> Model:
        """Return the model that was fitted.

        Raises OptionError where this process does not have it, or where its functions read other values.
        """
        name, held = self.config["model"], self.definition
        if held is not None:
            if known_part(held.current().digest) == known_part(held.digest):
                return held
            raise OptionError(
                f"data that the functions of model {name!r} read have changed since the fit: restore them, "
                f"or fit again"
            )
        if splines := self.config["splines"]:
            return with_stored_splines(name, splines)
        model = model_of_digest(name, self.config["model_digest"])
        if model is None:
            raise OptionError(
                f"the fitted model {name!r} is unknown in this process, so only the numbers of the result "
                f"can be shown: define the model with hd.separable as before, or fit again"
            )
        return with_ties(model, self.config["tie"])


PARTS: dict[str, type] = {
    "statistics": FitStatistics,
    "errors": FitErrors,
    "diagnosis": Diagnosis,
    "run": FitRun,
    "provenance": Provenance,
}
"""The parts of a result by name; the names of their fields are those of summary.json."""


@dataclass(frozen=True, repr=False)
class FitValues(HandedOut):
    """What a fit found, without the methods that show and write it: those of `FitValues`."""

    outcome: Outcome
    parameters: xarray.Dataset
    """Over `param`: value (NaN where the data do not determine it), stderr (NaN if unknown), method
    (cluster-robust, speckle, or none: ''), dof, stderr_naive, at_bound, fixed, unit; lower_limit, upper_limit
    where only these are known; optimum: where the model is evaluated, which is no value to quote."""
    scaling: xarray.Dataset
    """Over `bin`: contrast, offset, redchi, q, phi, ndata, undetermined, left_out_chisqr (χ² of the bin at
    the parameters of a fit without it: `compare_models`); coordinate label."""
    statistics: FitStatistics
    errors: FitErrors
    diagnosis: Diagnosis
    run: FitRun
    provenance: Provenance

    @property
    def chisqr(self) -> float:
        """χ² of all data, computed with the loss if there is one."""
        return self.statistics.chisqr

    @property
    def redchi(self) -> float:
        """χ² divided by the degrees of freedom."""
        return self.statistics.redchi

    @property
    def ndata(self) -> int:
        """Number of data: pairs of frames, or cells, of all bins, and priors."""
        return self.statistics.ndata

    @property
    def passes(self) -> int:
        """Passes over all data, one per trial step."""
        return self.run.passes

    @property
    def covariance(self) -> xarray.DataArray | None:
        """Covariance (cov_i, cov_j) of `stderr`; None if unknown."""
        return self.errors.covariance

    @property
    def findings(self) -> Findings:
        """What is to be known before the numbers are used, as codes, numbers and sentences (docs: findings).

        >>> hd.load_result("A0123_fit").findings.codes
        ()
        """
        return self.diagnosis.findings

    @property
    def config(self) -> dict[str, Any]:
        """The options in force, defaults included: model, convention, gap_angstrom, scaling, ..."""
        return self.provenance.config

    @property
    def converged(self) -> bool:
        """Whether the fit reached an optimum at which every parameter is determined."""
        return self.outcome is Outcome.CONVERGED

    @property
    def success(self) -> bool:
        """Whether the fit converged and no misfit of the model was found."""
        return self.converged and not self.misfit

    @property
    def correlation(self) -> xarray.DataArray | None:
        """Correlation matrix (cov_i, cov_j) of the standard errors; None if unknown."""
        return correlation_of(self.covariance)

    @property
    def error_used(self) -> np.ndarray:
        """The unit of influence and profiles: stderr or, where it is unknown, the naive error."""
        return error_used(*(self.parameters[key].values for key in ("stderr", "stderr_naive")))

    def ci(self, percent: float = 95.0) -> xarray.Dataset:
        """Return the confidence intervals of the parameters: low and high over `param`.

        value ± t·stderr, with t for `dof` degrees of freedom; NaN if stderr is unknown: the naive error makes
        no interval. percent: probability that an interval contains the true value. Raises OptionError for
        percent outside 0 to 100.
        """
        value, stderr, dof = (self.parameters[key].values for key in ("value", "stderr", "dof"))
        half = half_width(percent, dof) * stderr
        ends = {"low": ("param", value - half), "high": ("param", value + half)}
        coords = {key: self.parameters[key] for key in ("param", "unit")}
        return xarray.Dataset(ends, coords, {"percent": percent})

    @property
    def mean_age(self) -> float:
        """Mean time [s] of the frames in use."""
        inputs = self.provenance.inputs
        return float(inputs.get("mean_age", np.mean(inputs["seconds"])))

    @property
    def misfit(self) -> bool:
        """Whether the fit ended at an optimum at which the model does not describe the data."""
        return not MISFIT.isdisjoint(self.findings.codes)

    @property
    def verdict(self) -> str:
        """The outcome of the fit in words, with the findings of severity error."""
        wrong = "; ".join(map(str, self.findings.at_least(Severity.ERROR)))
        if not wrong:
            return self.outcome.value
        return (
            f"converged, but {wrong}"
            if self.converged
            else f"{wrong}; besides, {self.outcome.value}"
        )
