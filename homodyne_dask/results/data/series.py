"""A series: fits at each q or age of one scan, or of each scan, and tests of their agreement."""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np
import xarray
from jaxtyping import Float

from homodyne_dask.errors import require_known, shown
from homodyne_dask.read_only import HandedOut, cached_read_only
from homodyne_dask.results.data import fit_result as fits
from homodyne_dask.results.data.dataclass_json import read_fields
from homodyne_dask.results.data.derived_quantities import ERRORS
from homodyne_dask.results.data.findings import Findings
from homodyne_dask.results.data.fit_rows import UNKNOWN_QUANTITY, FitRow, column, quantity_names
from homodyne_dask.results.data.fitted_parameters import nearest_turn
from homodyne_dask.results.data.numbers_and_intervals import Vector
from homodyne_dask.solver.array_shapes import Matrix
from homodyne_dask.solver.levenberg_marquardt import Outcome
from homodyne_dask.text import with_unit

LEAST_OWN_NOISE = 0.02
"""Least variance of a combination of values whose errors are 1: shares of speckle are known no better."""


class HomogeneityTest(NamedTuple):
    mean: float
    stderr: float
    """Of the mean, from the errors of the values; NaN where these are not known."""
    chisqr: float
    """Σ (value - mean)²/stderr²."""
    freedom: int
    """Number of values - 1."""
    p: float
    """Probability of at least this scatter if all true values are equal."""


def homogeneity_test(
    value: Vector, stderr: Vector, dof: Vector, naive: bool = False, correlation: Matrix | None = None
) -> HomogeneityTest | None:  # fmt: skip
    """Return the test of homogeneity; None for fewer than two values with a known error.

    dof: degrees of freedom of each error, NaN for a normal one; p and the error of the mean are corrected for
    them (Welch 1951, Meier 1953). naive: of errors from which the mean gets none. correlation: of the errors,
    None where they are independent.
    """
    usable = np.isfinite(value) & np.isfinite(stderr) & (stderr > 0)
    if usable.sum() < 2:
        return None
    value, stderr, dof = value[usable], stderr[usable], dof[usable]
    weight, freedom = 1 / stderr**2, len(value) - 1
    mean, share = (weight * value).sum() / weight.sum(), weight / weight.sum()
    correlation = np.eye(len(value)) if correlation is None else correlation[usable][:, usable]
    chisqr = _scatter((value - mean) / stderr, 1 / stderr[:, None], correlation)
    widening = 1 + 4 * float((share * (1 - share) / _known_freedom(dof)).sum())
    variance = (share * stderr) @ correlation @ (share * stderr)
    error = np.nan if naive else float((widening * variance) ** 0.5)
    return HomogeneityTest(
        float(mean), error, chisqr, freedom, _welch_p(chisqr, freedom, share, dof)
    )


def _scatter(value: Vector, columns: Float[np.ndarray, "n k"], correlation: Matrix) -> float:
    """Return χ² about the best line; values and columns are divided by the errors of the values."""
    size, vectors = np.linalg.eigh(correlation)
    white = vectors.T / np.sqrt(np.maximum(size, LEAST_OWN_NOISE))[:, None]
    value, columns = white @ value, white @ columns
    left = value - columns @ np.linalg.lstsq(columns, value, rcond=None)[0]
    return float(left @ left)


def _known_freedom(dof: Vector) -> Vector:
    # a normal error has as many as anyone likes; below 1, t has no mean and the corrections no meaning
    return np.where(np.isfinite(dof), np.maximum(dof, 1.0), np.inf)


def _welch_p(chisqr: float, freedom: int, leverage: Vector, dof: Vector) -> float:
    """Return the probability of at least this χ² of values whose errors have few degrees of freedom.

    leverage: of each value in the fit, its share of the weight for a mean (Welch 1951; Johansen 1980).
    """
    from scipy.special import chdtrc, fdtrc  # loads for a fifth of a second

    slack = float(((1 - leverage) ** 2 / _known_freedom(dof)).sum())
    if slack == 0:  # all errors are normal: F has infinitely many degrees below, where fdtrc fails
        return float(chdtrc(freedom, chisqr))
    F = chisqr / (freedom + 2 * slack * (freedom - 1) / (freedom + 2))
    return float(fdtrc(freedom, freedom * (freedom + 2) / (3 * slack), F))


class PowerLawOfQ(NamedTuple):
    """y ∝ x^exponent, and the test whether y is a power of x."""

    exponent: float
    stderr: float
    """From the errors of y, times √(χ²/freedom) where values scatter by more; from their scatter alone where
    the errors are naive ones, NaN then for two values."""
    chisqr: float
    """Of ln y about the line."""
    freedom: int
    """Number of values - 2."""
    p: float
    """Probability of at least this scatter about a power law; NaN for two values."""
    dof: float = np.inf


def power_law_of_q(
    x: Vector, y: Vector, stderr: Vector, naive: bool = False, dof: Vector | float = np.nan,
    correlation: Matrix | None = None,
) -> PowerLawOfQ | None:  # fmt: skip
    """Return the exponent by weighted least squares in logarithms; None for fewer than two values.

    naive: of errors that are weights only. dof: of each error, NaN for a normal one, from which those of
    `stderr` (Satterthwaite 1946) and p follow. correlation: of the errors, None where they are independent.
    """
    usable = np.isfinite(stderr) & (stderr > 0) & (y > 0) & (x > 0)
    if usable.sum() < 2:
        return None
    u, v, weight = np.log(x[usable]), np.log(y[usable]), (y[usable] / stderr[usable]) ** 2
    # about their means, so that the exponent is found without the factor of the power law
    u, v = (values - (weight * values).sum() / weight.sum() for values in (u, v))
    spread = (weight * u**2).sum()
    if spread == 0:  # repeats at one q
        return None
    exponent, freedom, root = float((weight * u * v).sum() / spread), len(u) - 2, weight**0.5
    correlation = np.eye(len(u)) if correlation is None else correlation[usable][:, usable]
    columns = root[:, None] * np.stack([np.ones_like(u), u], axis=1)
    chisqr = _scatter(root * (v - exponent * u), columns, correlation)
    scatter = chisqr / freedom if freedom else np.nan
    of_scatter = naive or scatter > 1.0
    variance = (root * u) @ correlation @ (root * u) / spread**2
    stderr_of_law = float(((scatter if of_scatter else 1.0) * variance) ** 0.5)
    dof = np.broadcast_to(dof, usable.shape)[usable]
    share = weight * u**2 / spread  # of the variance of the exponent
    leverage = weight / weight.sum() + share
    p = _welch_p(chisqr, freedom, leverage, dof) if freedom else np.nan
    spare = float((share**2 / _known_freedom(dof)).sum())
    dof_of_law = float(freedom) if of_scatter else 1 / spare if spare > 0 else np.inf
    return PowerLawOfQ(exponent, stderr_of_law, chisqr, freedom, p, dof_of_law)


@dataclass(frozen=True)
class GlobalFit(HandedOut):
    """The parameters of several scans from one fit, with their covariance."""

    per_scan: tuple[str, ...]
    """Parameters that differ by scan, or by what the series is over; the others are shared."""
    outcome: Outcome
    parameters: xarray.Dataset
    """Over param ('alpha', 'D0 of scan 3'): the columns of `FitValues.parameters`."""
    covariance: xarray.DataArray | None
    """(cov_i, cov_j), of stderr; None where it is not known."""
    covariance_naive: xarray.DataArray | None
    chisqr: float
    redchi: float
    ndata: int
    findings: Findings
    """On parameters: at a bound, not determined, far from a prior; and on scans that disagree."""
    each: xarray.Dataset = field(default_factory=xarray.Dataset)
    """What each scan alone says of the parameters of the model, to first order: (scan, param) value, stderr,
    dof; NaN where that is not known."""

    def agreement_in(self, name: str, but: int = 0) -> HomogeneityTest | None:
        """Return the test whether scans agree in a shared parameter, but for scan `but`; None if unknown."""
        if "param" not in self.each.coords:
            return None
        estimates = self.each.sel(param=name, scan=self.each["scan"] != but)
        value, stderr, dof = (estimates[key].values for key in ("value", "stderr", "dof"))
        return homogeneity_test(value, stderr, dof)

    @property
    def correlation(self) -> xarray.DataArray | None:
        """Correlation matrix (cov_i, cov_j) of the standard errors; None if unknown."""
        return fits.correlation_of(self.covariance)

    def own_errors(self, name: str, covariance: xarray.DataArray) -> Float[np.ndarray, " scan"]:
        """Return the errors of a parameter that differs by scan, the shared ones taken as known.

        The errors that shared ones pass on are the same in all scans: those left are independent.
        """
        names, V = self.parameters["param"].values.tolist(), covariance.values
        differing = np.array([parameter.startswith(f"{name} of ") for parameter in names])
        # fixed ones and those at a bound have no variance to take away
        shared = np.array([" of " not in name for name in names]) & np.isfinite(np.diag(V))
        remaining, across = V[np.ix_(differing, differing)], V[np.ix_(differing, shared)]
        if shared.any():
            remaining = remaining - across @ np.linalg.solve(V[np.ix_(shared, shared)], across.T)
        # rounding may leave a variance just below 0 where shared parameters explain all of it
        return np.sqrt(np.maximum(np.diag(remaining), 0.0))

    @classmethod
    def from_plain(cls, read: dict[str, Any]) -> "GlobalFit":
        names = read["parameters"]["coords"]["param"]["values"]
        return read_fields(cls, read | fits.covariances_in(read, names))


WORDS = {"q": "values of q", "phi": "angles", "angle": "angles", "label": "labels"}
WORDS |= {"age": "age windows", "scan": "scans"}
"""What a series is over, in words."""
UNITS = {"q": "1/Å"} | dict.fromkeys(("phi", "angle"), "degree")
UNITS |= dict.fromkeys(("label", "scan"), "1") | dict.fromkeys(("age", "from", "to"), "s")
_AGREEMENT = {"mean": "mean", "mean_stderr": "stderr", "scatter": "chisqr", "p": "p"}
_POWER = {"power_of_q": "exponent"}
_POWER |= {f"power_of_q_{key}": key for key in ("stderr", "chisqr", "dof", "p")}
_OF_FIT = dict.fromkeys(("redchi", "ndata", "passes"), float)
_OF_FIT |= dict.fromkeys(("outcome", "method", "message"), str)


@dataclass(frozen=True, repr=False)
class SeriesValues(HandedOut):
    """Fits over rings, angles, age windows or scans, without the methods that show and write them."""

    over: str
    """'q', 'phi', 'angle', 'label', 'age', 'scan', or a variable of the scans, such as 'temperature'."""
    entries: tuple[FitRow, ...]
    global_fit: GlobalFit | None = None
    """The joint fit of which each scan is an entry; None for independent fits."""
    correlations: tuple[float, ...] = ()
    """Of the errors of fits 1, 2, ... rings apart, in one window, that share speckle; none where they are
    independent."""

    @property
    def converged(self) -> bool:
        """Whether every fit converged."""
        return all(entry.converged for entry in self.entries)

    @property
    def results(self) -> tuple[fits.FitValues | None, ...]:
        """The result of each part; None if its fit failed."""
        return tuple(entry.result for entry in self.entries)

    @cached_read_only
    def names(self) -> list[str]:
        """Names of parameters, then of what follows from them; empty if every fit failed."""
        return quantity_names(self.entries)

    @cached_read_only
    def table(self) -> xarray.Dataset:
        """Over (fit, param): value, stderr, dof, stderr_naive, low_95, high_95, at_bound; over fit: redchi,
        ndata, passes, outcome, method (of stderr, or ''), message, `of_rings`; over param their agreement:
        mean, mean_stderr, scatter (χ²), p; power_of_q of rates of decay, with _stderr, _chisqr, _dof and _p.

        Coordinates: q [1/Å], phi [degree] or scan and age [s], or age, from and to [s] over fit; unit over
        param. NaN is unknown.
        """
        entries, rings, keys = self.entries, self.of_rings, ("value", *ERRORS, "at_bound")
        rows = [[e.quantities.get(name, UNKNOWN_QUANTITY) for name in self.names] for e in entries]
        # as a float, the None of a failed fit is NaN
        of_fits = {
            key: np.array([getattr(entry, key) for entry in entries], dtype)
            for key, dtype in _OF_FIT.items()
        }
        columns: dict[str, dict[str, Any]] = {
            "fit param": {key: [[getattr(q, key) for q in row] for row in rows] for key in keys},
            "fit": of_fits | {key: [numbers[key] for numbers in rings] for key in rings[0]},
            "param": self._tests_by_column(),
        }
        coords: dict[str, Any] = {
            key: ("fit", [entry.at[key] for entry in entries], {"units": self.unit_of(key)})
            for key in entries[0].at
            if not key.endswith("_unit")
        }
        units = np.array([*map(self.unit, self.names)], str)
        table = fits.table_of(columns, **coords, param=self.names, unit=("param", units))
        return table.assign_attrs(over=self.over, errors=self.errors)

    def _tests_by_column(self) -> dict[str, Any]:
        return {
            key: np.array([getattr(tests.get(name), field, np.nan) for name in self.names], float)
            for tests, fields in ((self.agreement, _AGREEMENT), (self.powers_of_q, _POWER))
            for key, field in fields.items()
        }

    def unit_of(self, place: str) -> str:
        """Return the unit of a coordinate, '' where a variable of the scans has none."""
        return UNITS.get(place) or self.entries[0].at.get(f"{place}_unit", "")

    @property
    def is_of_variable(self) -> bool:
        """Whether it is over a variable of the scans, of which fits may be the same."""
        return self.over not in UNITS and len({entry.at[self.over] for entry in self.entries}) > 1

    @cached_read_only
    def repeats(self) -> dict[str, Self]:
        """Of a variable of the scans: the fits at one place of it, and of q or φ, by words for it."""
        if not self.is_of_variable:
            return {}
        groups = self._grouped(self.over, "q", "phi", "from")
        return {place: repeats for place, repeats in groups.items() if len(repeats.entries) > 1}

    @cached_read_only
    def over_q(self) -> dict[str, Self]:
        """The series over q: itself by '', or that at each value of another variable, by words for it."""
        if self.global_fit is not None and not {"D0", "rate"} & {*self.global_fit.per_scan}:
            return {}  # their power of q is that of the model
        if self.over == "q":
            return {"": self}
        if self.over == "phi" or any("q" not in entry.at for entry in self.entries):
            return {}
        groups = self._grouped(self.over, "phi", "from")
        return {place: replace(rings, over="q", global_fit=None) for place, rings in groups.items()}

    @cached_read_only
    def of_rings(self) -> list[dict[str, float]]:
        """For each fit powers of q and mean D of the series over q that it is part of."""
        by_entry: dict[int, dict[str, float]] = {}
        for rings in self.over_q.values():
            numbers: dict[str, float] = {}
            for name, law in rings.powers_of_q.items():
                numbers |= {f"{name}_power_of_q": law.exponent}
                numbers |= {f"{name}_power_of_q_stderr": law.stderr}
            if (D := rings.agreement.get("D")) is not None:
                numbers |= {"D_over_q": D.mean, "D_over_q_stderr": D.stderr, "D_over_q_p": D.p}
            by_entry |= {id(entry): numbers for entry in rings.entries}  # rows hold arrays: no hash
        keys = dict.fromkeys(key for numbers in by_entry.values() for key in numbers)
        numbers_of_fits = [by_entry.get(id(entry), {}) for entry in self.entries]
        return [{key: numbers.get(key, np.nan) for key in keys} for numbers in numbers_of_fits]

    def _grouped(self, *places: str) -> dict[str, Self]:
        groups: dict[str, list[FitRow]] = {}
        for entry in self.entries:
            values = {key: f"{entry.at[key]:.6g}" for key in places if key in entry.at}
            words = (f"{k} = {with_unit(value, self.unit_of(k))}" for k, value in values.items())
            groups.setdefault(", ".join(words), []).append(entry)
        return {place: replace(self, entries=tuple(rows)) for place, rows in groups.items()}

    def unit(self, name: str) -> str:
        """Return the unit of a parameter or rate; raises OptionError if the series does not have it."""
        require_known(name, self.names, f"the series has no {shown(name)}")
        return next(e.quantities[name].unit for e in self.entries if e.result is not None)

    @cached_read_only
    def errors(self) -> str:
        """The best error that every converged fit has: stderr or stderr_naive."""
        covariances = [row.result.covariance for row in self._good if row.result is not None]
        complete = covariances and all(covariance is not None for covariance in covariances)
        return "stderr" if complete else "stderr_naive"

    @property
    def _good(self) -> list[FitRow]:
        return [entry for entry in self.entries if entry.converged]

    @cached_read_only
    def correlated(self) -> bool:
        """Whether errors count correlated points of tables as independent: no test follows from them."""
        correlated = any("points-correlated" in row.findings.codes for row in self._good)
        return self.errors != "stderr" and correlated

    @property
    def overlap(self) -> bool:
        """Whether windows of a scan share frames, so that their fits are not independent."""
        windows = (entry for entry in self.entries if "from" in entry.at)
        spans = sorted((e.name.rpartition(", ")[0], e.at["from"], e.at["to"]) for e in windows)
        return any(b[0] == a[0] and b[1] <= a[2] for a, b in pairwise(spans))

    @cached_read_only
    def agreement(self) -> dict[str, HomogeneityTest]:
        """For each parameter and rate, the test of whether the converged fits agree (see `homogeneity_test`).

        Not of parameters that are fixed, at a bound (or of a rate with one that is), or without an error;
        empty if windows overlap, or points are `correlated`. For scans fitted together, only parameters that
        differ between scans are tested, with the shared ones taken as known: the mean then has no error.
        """
        if self.overlap or self.correlated:
            return {}
        joint = self.global_fit
        if joint is None:
            # Gamma is J or the rate again, times a known factor
            tests = {
                name: self._test(name)
                for name in self.names
                if "Gamma" not in name and name != "tau"
            }
        elif joint.per_scan:
            tests = {name: self._test(name) for name in joint.per_scan}
        else:
            shared = joint.parameters["param"].values
            tests = {name: joint.agreement_in(name) for name in shared}
        return {name: test for name, test in tests.items() if test is not None}

    def _test(self, name: str) -> HomogeneityTest | None:
        joint, naive = self.global_fit, self.errors != "stderr"
        rows = [row for row in self._good if row.quantities[name].is_comparable]
        keys = ("value", self.errors, "dof", "optimum", "error")
        value, stderr, dof, optimum, error = (column(rows, name, key) for key in keys)
        limited = np.isnan(value)  # a mean of those above their limits alone would be too large
        value = np.where(limited, optimum, value)
        stderr = stderr if naive else np.where(limited, error, stderr)
        dof = np.full(len(rows), np.nan) if naive else dof
        if rows:  # angles that differ by whole turns agree
            fitted = next(result for result in self.results if result is not None)
            value = nearest_turn(value, value[0], fitted.config["periods"].get(name, 0.0))
        if joint is not None:
            covariance = joint.covariance_naive if naive else joint.covariance
            # its errors are those of all scans, in their order: some alone have none of their own
            if covariance is None or len(rows) < len(self.entries):
                return None
            stderr, naive = joint.own_errors(name, covariance), True
        return homogeneity_test(value, stderr, dof, naive, self._correlation_of(rows))

    def _correlation_of(self, rows: list[FitRow]) -> Matrix | None:
        """Return the correlation of the errors of these fits; None where they are independent."""
        if not self.correlations:
            return None
        every = np.unique([row.at["q"] for row in self.entries])
        ring = np.searchsorted(every, [row.at["q"] for row in rows])
        at_distance = np.pad([1.0, *self.correlations], (0, len(every)))
        window = [row.at.get("from", 0.0) for row in rows]
        return at_distance[np.abs(np.subtract.outer(ring, ring))] * np.equal.outer(window, window)

    def power_of_q(self, name: str) -> PowerLawOfQ | None:
        """Return the exponent of a quantity as a power of q; None if unknown, not over q, or `correlated`."""
        if self.over != "q" or name not in self.names or self.correlated:
            return None
        q = np.array([entry.at["q"] for entry in self._good])
        value, errors, dof = (column(self._good, name, k) for k in ("value", self.errors, "dof"))
        correlation = self._correlation_of(self._good)
        return power_law_of_q(q, value, errors, self.errors != "stderr", dof, correlation)

    @property
    def powers_of_q(self) -> dict[str, PowerLawOfQ]:
        """The exponent of each rate of decorrelation as a power of q; empty if not over q."""
        laws = {name: self.power_of_q(name) for name in self.decay_rates}
        return {name: law for name, law in laws.items() if law is not None}

    @property
    def decay_rates(self) -> list[str]:
        """Names of the rates of decorrelation: Gamma, or else positive parameters with the unit 1/s."""
        if "Gamma" in self.names:
            return ["Gamma"]
        rates = [name for name in self.names if self.unit(name) == "1/s"]
        return [n for n in rates if all(e.quantities[n].value > 0 for e in self._good)]
