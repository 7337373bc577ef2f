"""The values of a fit and their tables: parameters with units, checks, outcome, options, inputs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import xarray
from numpy.typing import ArrayLike

from homodyne_dask.errors import OptionError
from homodyne_dask.models import MODELS, Model, model_of_digest
from homodyne_dask.models.derived_models import with_ties
from homodyne_dask.models.fingerprint import known_part
from homodyne_dask.read_only import HandedOut, read_only
from homodyne_dask.results._xarray_internals import load_dask_arrays_late
from homodyne_dask.results.data.findings import MISFIT, Finding, Findings, Severity
from homodyne_dask.results.data.numbers_and_intervals import half_width
from homodyne_dask.solver.cluster_robust import IMPROBABLE
from homodyne_dask.solver.covariance import error_used
from homodyne_dask.solver.levenberg_marquardt import Outcome


class Alternative(NamedTuple):
    """What explains the deviations of a model from the data, by a score test."""

    name: str
    """rate, jump, stretching, lag, power_of_q, shear, contrast_drift, baseline, bin, frames, ..."""
    place: tuple[int | str, ...]
    """(label,) or (label, scan) of a bin; first and last frame; frame of a jump; (rate,); or ()."""
    size: float
    """One step from the fit, about: of the exponent, of the power of q, of a rate, of the contrast."""
    share: float
    """The largest change of c2 by it that no parameter could make, over the contrast."""
    p_value: float
    """Probability of so large a score of any alternative if the model is right."""


LARGEST_P, SMALLEST = IMPROBABLE, 0.05
"""p below which, and deviation from 2 above which, rates scale with another power of q."""


class PowerOfQ(NamedTuple):
    """The power of q with which rates scale, by the score test whether it is 2."""

    power: float
    """2 and one step from the fit: far from 2 it is about right only."""
    stderr: float
    """From the speckle and counting noise, whose size has `dof`."""
    dof: float
    p: float
    """Probability of so much from 2 if rates scale as q²."""

    @property
    def differs(self) -> bool:
        """Whether rates do not scale as q²."""
        return self.p < LARGEST_P and abs(self.power - 2) > SMALLEST


class ModelCheck(NamedTuple):
    """The means of residuals over cells of age and lag against what counted photons allow.

    Each cell is tested in every bin, in the mean of the bins of each q, and in that of all.
    """

    tests: int
    threshold: float
    """Standard errors that no mean exceeds in 199 of 200 fits of a right model."""
    deviating: int
    largest: float
    """In standard errors, of the `deviating` means."""
    where: str
    """Of the largest deviation: 'all bins', 'the bins at q = 0.004 1/Å' or 'the bin labelled 5'."""
    age: tuple[float, float]
    lag: tuple[float, float]
    """Its ages and lags, s."""
    residual: float
    """c2 - model there."""
    share: float
    """The same over the contrast."""
    depends_on: str
    """What the deviations depend on most: q, bin, age or lag."""
    p_of_largest: float = 1.0
    """Probability of so large a deviation of any mean if the model is right, by Bonferroni's bound."""
    p_value: float | None = None
    """Probability of so large a χ² of the means over cells, made uncorrelated, if the model is right."""
    alternative: Alternative | None = None
    """What explains the deviations best; None where nothing that has a name does."""

    @property
    def misfit(self) -> bool:
        """Whether the model does not describe the data."""
        return self.deviating > 0 or self.alternative is not None

    @property
    def p(self) -> float:
        """Probability of the misfit, the less of those of a mean and of an alternative."""
        of_means = self.p_of_largest if self.deviating else 1.0
        return of_means if self.alternative is None else min(of_means, self.alternative.p_value)


_UNDETERMINED = ("undetermined", "larger-error", "hidden-by-rounding", "longer-than-record")
_UNDETERMINED += ("constant-rate", "inseparable")
"""Codes of findings about parameters that have no value."""
LIMITS = ("lower_limit", "upper_limit")
_NUMBERS = ("redchi_per_bin", "ndata_per_bin", "left_out_chisqr", "chisqr", "redchi")
DATASET_UNITS = {"q": "1/angstrom", "phi": "degree"}
DATASET_UNITS |= dict.fromkeys(("contrast", "offset", *_NUMBERS), "1")
"""In UDUNITS notation; units of the parameters are the coordinate `unit`."""
PARAMETER_COLUMNS = ["value", "stderr", "stderr_naive", "dof"]
PARAMETER_COLUMNS += ["method", "at_bound", "fixed", "unit"]
"""Of `FitResult.parameters`, beside its limits and optimum."""
_DTYPES: dict[str, Any] = dict.fromkeys(("param", "unit", "method"), str)
_DTYPES |= dict.fromkeys(("at_bound", "fixed", "undetermined"), bool)
_DTYPES |= dict.fromkeys(("label", "scan", "ndata"), np.int64)
load_dask_arrays_late()


def table_of(columns: Mapping[str, Mapping[str, Any]], **coords: Any) -> xarray.Dataset:
    """Return a Dataset of columns by their dimensions: {"bin param": {"change": values}, "": scalars}."""
    return xarray.Dataset(
        {name: (dims.split(), a) for dims, arrays in columns.items() for name, a in arrays.items()},
        coords,
    )


def parameter_table(
    columns: Mapping[str, ArrayLike], findings: Iterable[Finding] = ()
) -> xarray.Dataset:
    """Return the Dataset over `param` from columns; None becomes NaN. attrs: the method of stderr, or ''.

    What the data do not determine by the findings has no value and no error, but limits, and its `optimum`.
    """
    method = max(map(str, np.asarray(columns.get("method", []))), default="")
    none = np.full(len(np.asarray(columns["param"])), np.nan)
    defaults = {"optimum": columns["value"]} | dict.fromkeys(LIMITS, none)
    table = _column_table("param", "param", defaults | dict(columns)).assign_attrs(method=method)
    names, findings = table["param"].values.tolist(), list(findings)
    limits = {k: ends for f in findings for k, ends in f.numbers.get("limits", {}).items()}
    for name, ends in limits.items():
        for key, end in zip(LIMITS, ends, strict=False):
            table[key].values[names.index(name)] = np.nan if end is None else end
    without_value = np.isin(names, [*undetermined_names(findings), *limits])
    if any(finding.code == "no-decay" for finding in findings):
        without_value |= ~table["fixed"].values
    for key in ("value", "stderr", "stderr_naive"):
        table[key].values[without_value] = np.nan
    return table


def undetermined_names(findings: Iterable[Finding]) -> set[str]:
    groups = (  # a limit is about the rate
        finding.numbers["coefficients"] if finding.code == "rate-limit-only" else finding.about
        for finding in findings
        if finding.code in (*_UNDETERMINED, "rate-limit-only")
    )
    return {name for names in groups for name in names}


def scaling_table(columns: Mapping[str, ArrayLike]) -> xarray.Dataset:
    """Return the Dataset over `bin` from columns; `label` becomes a coordinate, None becomes NaN."""
    return _column_table("bin", "label", columns)


def _column_table(dim: str, index: str, columns: Mapping[str, ArrayLike]) -> xarray.Dataset:
    arrays = {key: (dim, np.array(a, _DTYPES.get(key, float))) for key, a in columns.items()}
    return xarray.Dataset(arrays).set_coords(index)


def covariance_table(matrix: ArrayLike | None, names: list[str]) -> xarray.DataArray | None:
    """Return the matrix with parameter names on both sides, None becoming NaN; None for None."""
    if matrix is None:
        return None
    sides = {"cov_i": names, "cov_j": names}
    return xarray.DataArray(np.array(matrix, float), sides, list(sides), "covariance")


def covariances_in(read: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    return {k: covariance_table(read[k], names) for k in ("covariance", "covariance_naive")}


def correlation_of(covariance: xarray.DataArray | None) -> xarray.DataArray | None:
    if covariance is None:
        return None
    error = np.sqrt(np.diag(covariance.values))
    return covariance / np.outer(error, error)


def plain_rows(table: xarray.Dataset, dim: str) -> dict[str, dict[str, Any]]:
    """Return the values at each point of a dimension, by its name and theirs."""
    columns = {str(key): table.variables[key].values for key in table.data_vars}
    return {
        str(name): {key: column[n] for key, column in columns.items()}
        for n, name in enumerate(table[dim].values)
    }


@dataclass(frozen=True)
class FitStatistics:
    """χ² at the end of a fit, and the number of its data."""

    chisqr: float
    redchi: float
    ndata: int
    """Number of data: pairs of frames, or cells of age and lag, times bins; priors."""
    nbins: int
    mean_weight: float | None = None
    """With a robust loss: the mean weight ρ' of all pairs; chisqr is then Σ scale²·ρ."""


@dataclass(frozen=True)
class FitErrors(HandedOut):
    """What is known of the errors of the parameters, beside the columns of `FitResult.parameters`."""

    covariance: xarray.DataArray | None
    """(cov_i, cov_j) of `stderr`: cluster-robust, with fewer than 8 clusters of speckle; None if unknown."""
    covariance_naive: xarray.DataArray | None
    """(cov_i, cov_j), (JᵀWJ)⁻¹; None where the data do not determine all parameters."""
    noise: xarray.Dataset | None = None
    """Over `bin`: independent pixels and mean_counts per pixel and frame, NaN where only pixels·mean_counts²
    is known, and the likeliest of both, which give the noise of c2 in any case; over `param`: stderr and dof
    of speckle and counting; objection: what speaks against them, or ''."""
    rate_dof: xarray.Dataset | None = None
    """Over `age`: degrees of freedom of the robust error of each rate in `rates`."""
    profiles: dict[str, xarray.Dataset] = field(default_factory=dict)
    """By parameter, over `point`: value, chisqr, parabola, evaluations, converged, theta(point, param)."""
    posterior: dict[str, Any] | None = None
    """Quantiles of the posterior, and how it was drawn, where it was saved with the fit."""


@dataclass(frozen=True)
class Diagnosis(HandedOut):
    """What speaks for a fit or against it, and what depends on what."""

    findings: Findings
    check: ModelCheck | None = None
    """None where too little is known to test whether the model describes the data."""
    power_of_q: PowerOfQ | None = None
    """Of fits of three rings or more with contrasts of each bin."""
    influence: xarray.Dataset | None = None
    """change(bin, param): change of a parameter when the bin is excluded, in standard errors."""
    scalings: xarray.Dataset | None = None
    """Over `mode`, one step from this fit's optimum: chisqr, fitted, change(mode, param), and aic and bic as
    differences from the lowest mode, not comparable with those of another fit."""
    identifiability: xarray.Dataset | None = None
    """Over `direction`: eigenvalue of the Hessian of unit diagonal, and vector(direction, param)."""
    left_out: xarray.Dataset | None = None
    """Over `cluster` of bins: ndata, chisqr, left_out_chisqr; penalty, linear and searched frequencies of all
    (`hd.compare`)."""
    smoothing: xarray.Dataset | None = None
    """Over `rate` of free form: strength λ, exponent, design_effect, degrees of freedom, splines; over
    `param`: bias, what the penalty adds to a parameter on average, to first order."""
    minima: tuple[dict[str, Any], ...] = ()
    """Minima of χ² of binned averages, the best first: theta by name, chisqr, starts that ended there."""
    comparison: tuple[dict[str, Any], ...] = ()
    """The models that were compared, for a model chosen by `auto`: the rows of `Comparison.fits`."""


@dataclass(frozen=True)
class FitRun(HandedOut):
    """The passes of a fit, and what they took."""

    passes: int
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
    version: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    definition: Model | None = field(default=None, repr=False, compare=False)
    """The model that was fitted; None for a result that was read from a file."""

    def __post_init__(self) -> None:
        model = self.definition  # what a user's functions read is the user's
        vars(self).update(read_only(vars(self) | {"definition": None}) | {"definition": model})

    def fitted_model(self) -> Model:
        """Return the model; OptionError where this process lacks it, or its functions read other values."""
        name, definition = self.config["model"], self.definition
        if definition is not None:
            if known_part(definition.current().digest) == known_part(definition.digest):
                return definition
            raise OptionError(
                f"data that the functions of model {name!r} read have changed since the fit: restore them, "
                f"or fit again"
            )
        if splines := self.config["splines"]:
            return MODELS[name].with_stored_splines(splines)
        model = model_of_digest(name, self.config["model_digest"])
        if model is None:
            raise OptionError(
                f"the fitted model {name!r} is unknown in this process, so only the numbers of the result "
                f"can be shown: define your own model as before; one of the program has changed: fit again"
            )
        return with_ties(model, self.config["tie"])


PARTS: dict[str, type] = {"statistics": FitStatistics, "errors": FitErrors, "diagnosis": Diagnosis}
PARTS |= {"run": FitRun, "provenance": Provenance}
"""The parts of a result by name; the names of their fields are those of summary.json."""


@dataclass(frozen=True, repr=False)
class FitValues(HandedOut):
    """What a fit found, without the methods that show and write it."""

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
        """Return the confidence intervals of the parameters: low and high over `param`, value ± t·stderr.

        t is for `dof` degrees of freedom. NaN if stderr is unknown: the naive error makes no interval.
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
    def model_status(self) -> str:
        """'describes' or 'misfit' by the check of the model; 'not-checked' where too little is known, or
        where single bins have outliers (finding `chisqr-high-in-bins`)."""
        if self.misfit:
            return "misfit"
        # of outliers in single bins, the check may see nothing
        unclear = self.diagnosis.check is None or "chisqr-high-in-bins" in self.findings.codes
        return "not-checked" if unclear else "describes"

    @property
    def usable(self) -> bool:
        """Whether the fit converged, and no finding of severity error speaks against its values."""
        return self.converged and not self.findings.at_least(Severity.ERROR)

    @property
    def verdict(self) -> str:
        """The outcome of the fit in words, with the findings of severity error, or that there is none."""
        errors = "; ".join(map(str, self.findings.at_least(Severity.ERROR)))
        ended = self.outcome.value
        if not errors:
            describes = self.converged and self.model_status == "describes"
            return ended + "; the model describes the data (no misfit found)" * describes
        return f"converged, but {errors}" if self.converged else f"{errors}; besides, {ended}"
