"""What follows from the parameters of a fit: rates at the mean age, D, tied parameters."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import xarray
from jaxtyping import Bool, Float

from homodyne_dask.errors import OptionError
from homodyne_dask.kernels.backend import slopes
from homodyne_dask.models import BROWNIAN
from homodyne_dask.models.derived_models import TiedModel
from homodyne_dask.models.exposure import exposure
from homodyne_dask.models.rate_forms import (
    LOG_DENSITY,
    RATE,
    RATES,
    LogDensityForm,
    SplineForm,
    basis_error,
    rate,
    rate_stderr,
)
from homodyne_dask.models.stretched_exponentials import Q_REFERENCE, slopes_of, weights_of
from homodyne_dask.models.transport import FREE_MODELS, MODELS, RATE_FLOOR, Convention
from homodyne_dask.results.data import numbers_and_intervals as numbers
from homodyne_dask.results.data.fit_result import LIMITS, FitValues, plain_rows
from homodyne_dask.results.data.numbers_and_intervals import Vector, half_width
from homodyne_dask.solver.cluster_robust import MIN_FREEDOM
from homodyne_dask.solver.covariance import CLUSTER_ROBUST, SPECKLE
from homodyne_dask.solver.levenberg_marquardt import Outcome
from homodyne_dask.store.rings_and_clusters import rings_of

MOST_OF_RATE = 0.5
"""Share of a rate above which limits of some coefficients are limits of the rate."""
FEW_FREEDOM = 10.0
"""Degrees of freedom below which ± alone would understate an interval, which is then given, too."""
Slope = Float[np.ndarray, " p"]
"""The derivatives of a number by some parameters."""
ERRORS = ("stderr", "dof", "stderr_naive", "low_95", "high_95", *LIMITS)
_TRANSPORT = {model.name for model in (*MODELS, *FREE_MODELS)}
_POWERS = {"stretched": "", "stretched_q": "q_exponent", "stretched_ageing": "mu"}
_POWERS |= {"cumulant": "", "cumulant_q": "q_exponent"}
"""The parameter of a model with a rate that is the power of q or age with which this rate changes."""


def shown_names(
    names: Iterable[str], quantities: "Mapping[str, Quantity]", copies: bool = True
) -> list[str]:
    """Return the names that a report lists, one for a quantity; copies: D_SE, half of D0, too.

    quantities: of a fit, which tell parameters, all of which are listed, from what follows from them. D is
    not listed: Gamma/q² is a coefficient of diffusion only where rates scale as q².
    """
    names = list(names)
    derived = {name for name, quantity in quantities.items() if quantity.formula}
    hidden = {"power_of_q", "D", *(name for name in derived if name.startswith("Gamma_q"))}
    if "D_SE" in derived:
        hidden |= {"J", *["D_SE"] * (not copies)}
    if "J" in derived:
        hidden |= {"Gamma", "tau"}
    elif "mean_rate" in derived or ("rate" in quantities and "mu" not in quantities):
        hidden.add("Gamma")
    hidden &= derived
    if {"Gamma", "mu", "rate"} <= {*names} and "Gamma" in derived:
        hidden.add("rate")  # it is Gamma at an age of 1 s
    return [name for name in names if name not in hidden]


class Quantity(NamedTuple):
    """A parameter, or what follows from parameters, with its errors."""

    unit: str
    value: float = np.nan
    stderr: float = np.nan
    """Standard error; NaN if unknown, as are the others."""
    stderr_naive: float = np.nan
    dof: float = np.nan
    at_bound: bool = False
    """Whether the parameter ended at a bound; it may then have no error."""
    conditional: bool = False
    """Whether it, or a parameter of its rate, ended at a bound: another fit's value is not comparable."""
    method: str = ""
    """Of `stderr`: cluster-robust or speckle; '' where it is not known."""
    formula: str = ""
    """What it follows from; '' of a parameter."""
    lower_limit: float = np.nan
    """What is known, as the upper limit, where value ± error does not describe it; NaN elsewhere."""
    upper_limit: float = np.nan
    misfit: bool = False
    """Whether the model does not describe the data, for which no error and no interval allows."""
    optimum: float = np.nan
    """Where χ² is lowest, with its standard `error`; not to be quoted where there is no value."""
    error: float = np.nan

    @property
    def varied(self) -> bool:
        """Whether it was fitted: it has an error of any kind or no value, or ended at a bound."""
        has_error = bool(np.isfinite([self.stderr, self.stderr_naive]).any())
        return self.at_bound or has_error or bool(np.isnan(self.value))

    @property
    def is_comparable(self) -> bool:
        """Whether the data determine it or its limit, and no other parameter's bound does."""
        return not self.conditional and (bool(self.limit) or not np.isnan(self.value))

    @property
    def limit(self) -> str:
        """The limits as 'below 1760' or 'above 0.98', '' where there are none."""
        return numbers.limit_words(self.lower_limit, self.upper_limit)

    def quoted(self, positive: bool) -> "Quantity":
        """Return it with limits in place of a value where there are any; positive: whether it cannot be 0."""
        quantity = self._replace(optimum=self.value, error=self.stderr)
        if positive and not quantity.limit and quantity.low_95 <= 0 <= quantity.high_95:
            quantity = quantity._replace(upper_limit=quantity.largest)
        unknown = dict.fromkeys(("value", "stderr", "stderr_naive"), np.nan)
        return quantity._replace(**unknown) if quantity.limit else quantity

    @property
    def low_95(self) -> float:
        """The lower end of the 95 % interval, of Student's t; NaN without an error."""
        return self.value - float(half_width(95.0, self.dof)) * self.stderr

    @property
    def high_95(self) -> float:
        """The upper end of the 95 % interval."""
        return 2 * self.value - self.low_95

    @property
    def largest(self) -> float:
        """The upper limit of its absolute value, at 95 %."""
        return abs(self.value) + float(half_width(90.0, self.dof)) * self.stderr

    def to_dict(self) -> dict[str, Any]:
        """Return value, errors and interval, as written to summary.json."""
        names = ("value", *ERRORS, "unit", "method", "formula")
        return {name: getattr(self, name) for name in names}

    @property
    def interval(self) -> str:
        """The 95 % interval where the error has few degrees of freedom, as '1 to 3 (dof 5.1)', else ''."""
        if self.misfit or not (self.dof < FEW_FREEDOM and self.stderr > 0):
            return ""
        low, high = numbers.quantiles([self.low_95, self.high_95], self.stderr)
        return f"{low} to {high} (dof {self.dof:.1f})"

    def __str__(self) -> str:
        return self.text()

    def text(self, largest: float = 0.0) -> str:
        """Return '20100 ± 300', '20100', 'below 1760', or '-2 at bound'; largest: number of its row."""
        return self.without_bound(largest) + " at bound" * self.at_bound

    def without_bound(self, largest: float = 0.0) -> str:
        """Return the text, but not that it ended at a bound."""
        return self.limit or numbers.value_and_error(self.value, self.stderr, largest)


@np.errstate(over="ignore", invalid="ignore")  # of any numbers that a file may hold
def derived_quantities(result: FitValues, age: float | None = None) -> dict[str, Quantity]:
    """Return what follows from the parameters, with errors by the delta method, or limits.

    J and gamma_dot at an age [s], by default the mean one; Gamma, the rate of decay of the field correlation,
    of each ring, of a distribution its mean (c2 - offset decays as exp(-2 Gamma lag), Berne and Pecora 1976);
    tau = 1/Gamma of all rings alike; D = Gamma/q² of one ring or of rates ∝ q²; D_SE = D0/2 of Brownian
    motion, k_B T / (6π η R) of a sphere of radius R in a fluid of viscosity η (Einstein 1905); tied
    parameters; power_of_q, the power of q with which rates scale (score test).
    """
    age = result.mean_age if age is None else age
    derived = dict(_transport_rates(result, age))
    if LOG_DENSITY in result.config["splines"]:
        mean, _ = moments_of_distribution(result)
        derived |= {"mean_rate": mean} if mean_is_determined(mean) else {}
    derived |= _decay_rates(result, derived, age)
    derived |= _self_diffusion(result)
    if (test := result.diagnosis.power_of_q) is not None:
        about = "with which rates scale, by a test of 2; quote --over q"
        numbers_of_test = test.power, test.stderr, np.nan, test.dof
        derived["power_of_q"] = Quantity("", *numbers_of_test, method=SPECKLE, formula=about)
    derived |= _tied(result)
    # these may be 0 or negative: an interval around 0 leaves them their value
    signed = {"power_of_q", *(result.config["tie"] or {})}
    quoted = {
        name: quantity._replace(misfit=result.misfit).quoted(name not in signed)
        for name, quantity in derived.items()
    }
    return quoted | ({"tau": _inverse(quoted["Gamma"])} if "Gamma" in quoted else {})


Named = Iterator[tuple[str, Quantity]]
"""Quantities and their names."""


def _transport_rates(result: FitValues, age: float) -> Named:
    names = set(result.parameters["param"].values.tolist())
    splines = {name: SplineForm(**stored) for name, stored in result.config["splines"].items()}
    for name, law in (RATES | {RATE: ()}).items():
        form = splines.get(name)
        parameters = law if form is None else [f"{name}_{n + 1}" for n in range(form.size)]
        if parameters and names.issuperset(parameters):
            yield name, _rate_at(result, name, parameters, age, form)


def _moving(result: FitValues) -> str:
    """Return the name of the model without a frozen part, and of f that exposures average."""
    name = result.config["model"]
    return name.removeprefix("exposure(").removesuffix(")").removeprefix("frozen + ")


def _self_diffusion(result: FitValues) -> Named:
    if result.config["model"] not in (BROWNIAN.name, exposure(BROWNIAN).name):
        return
    D0 = fitted_quantities(result)["D0"]
    if D0.unit == "1/s":  # of unknown q, D0 is q² D0, which is no coefficient of diffusion
        return
    D = _follows(result, ["D0"], np.array([0.5]), 0.5 * D0.optimum, D0.unit, linear=True)
    stderr = 0.5 * (D0.error if D0.limit else D0.stderr)
    about = {"at_bound": D0.at_bound, "formula": "D0 / 2 = D; D0 = J"}
    yield "D_SE", D._replace(stderr=stderr, **about)


def fitted_quantities(result: FitValues) -> dict[str, Quantity]:
    covariance, rows = result.covariance, plain_rows(result.parameters, "param")
    variances = np.full(len(rows), np.nan) if covariance is None else np.diag(covariance.values)
    return {
        name: Quantity(
            **{key: row[key].item() for key in Quantity._fields if key in row},
            error=error,
            misfit=result.misfit,
        )
        for (name, row), error in zip(rows.items(), np.sqrt(variances).tolist(), strict=True)
    }


def coefficients_of(result: FitValues) -> set[str]:
    """Return the names of the coefficients of rates without a formula, which are no values of the rates."""
    free = result.config["splines"]
    return {f"{name}_{n + 1}" for name in free for n in range(free[name]["size"])}


def _inverse(rate: Quantity) -> Quantity:
    """Return the time that a rate stands for, with errors by the delta method, or its limits."""
    with np.errstate(divide="ignore"):
        slope = np.float64(rate.optimum) ** -2
        errors = {
            key: float(slope * getattr(rate, key)) for key in ("stderr", "stderr_naive", "error")
        }
        values = {key: float(1 / np.float64(getattr(rate, key))) for key in ("value", "optimum")}
        ends = (float(1 / np.float64(end)) for end in (rate.upper_limit, rate.lower_limit))
    return rate._replace(
        **errors, **values, **dict(zip(LIMITS, ends, strict=True)), unit="s", formula="1 / Gamma"
    )


def _times(quantity: Quantity, factor: float, unit: str, formula: str) -> Quantity:
    names = ("value", "stderr", "stderr_naive", *LIMITS)
    multiplied = {name: factor * getattr(quantity, name) for name in names}
    return quantity._replace(**multiplied, unit=unit, formula=formula)


def _decay_rates(result: FitValues, rates: dict[str, Quantity], age: float) -> Named:
    q, model = result.scaling["q"].values, _moving(result)
    rings = rings_of(q).tolist() if np.isfinite(q).all() else []
    names = ["Gamma"] if len(rings) == 1 else [f"Gamma_q{ring:.6g}" for ring in rings]
    named_rings = list(zip(names, rings, strict=True))
    if model in _TRANSPORT and "J" in rates:
        J = rates["J"]
        if J.unit == "1/s":
            yield "Gamma", _times(J, 0.5, "1/s", "q² J / 2")
            return
        for name, ring in named_rings:
            yield name, _times(J, 0.5 * ring**2, "1/s", f"q² J / 2, q = {ring:.6g} 1/Å")
        yield "D", _times(J, 0.5, J.unit, "J / 2")
    elif RATE in rates or "mean_rate" in rates:
        yield from _of_one_ring(rates.get(RATE) or rates["mean_rate"], rings)
    elif model in _POWERS and {RATE, _POWERS[model] or RATE} <= {*fitted_quantities(result)}:
        yield from _rates_by_power(result, _POWERS[model], named_rings, age)


def _rates_by_power(
    result: FitValues, power: str, named_rings: Sequence[tuple[str, float]], age: float
) -> Named:
    rings = [ring for _, ring in named_rings]
    # a rate that does not depend on q is one for all rings
    depends_on_ring = power == "q_exponent" or len(rings) == 1
    for name, ring in named_rings if depends_on_ring else [("Gamma", np.nan)]:
        about = "rate" if np.isnan(ring) else f"rate, q = {ring:.6g} 1/Å"
        about = f"at the mean age of {age:.4g} s" if power == "mu" else about
        base = ring / Q_REFERENCE if power == "q_exponent" else age
        Gamma = _power_law(result, power, base)._replace(formula=about)
        yield from _of_one_ring(Gamma, rings) if len(rings) == 1 else [(name, Gamma)]
    exponent = fitted_quantities(result).get("q_exponent", Quantity(""))
    if len(rings) > 1 and exponent.value == 2 and not exponent.varied:
        about = f"rate / ({Q_REFERENCE:g} 1/Å)², q_exponent = 2"
        yield "D", _times(_power_law(result, power, 1.0), Q_REFERENCE**-2, "Å²/s", about)


def _of_one_ring(Gamma: Quantity, rings: Sequence[float]) -> Named:
    yield "Gamma", Gamma
    if len(rings) == 1:
        yield "D", _times(Gamma, rings[0] ** -2, "Å²/s", f"Gamma / q², q = {rings[0]:.6g} 1/Å")


def _power_law(result: FitValues, power: str, base: float) -> Quantity:
    fitted = fitted_quantities(result)
    names = ["rate", power] if power else ["rate"]
    rate, *exponent = (fitted[name].optimum for name in names)
    factor = base ** exponent[0] if exponent else 1.0
    slope = np.array([factor, rate * factor * np.log(base)])[: len(names)]
    linear = not exponent or not fitted[power].varied
    return _follows(result, names, slope, rate * factor, "1/s", linear=linear)


def moments_of_distribution(result: FitValues) -> tuple[Quantity, Quantity]:
    """Return the mean of a distribution of rates [1/s], and its variance over the square of the mean.

    Less the estimated bias of smoothing, by which their errors are larger. The variance depends on rates that
    are hardly seen, as logarithmic means and widths do: it is not quoted, and tells what is resolved.
    """
    form = LogDensityForm(**result.config["splines"][LOG_DENSITY])
    names = [f"{LOG_DENSITY}_{n + 1}" for n in range(form.size)]
    weight, rate = weights_of(form, result.parameters["optimum"].values), np.exp(form.nodes)
    slopes, mean, square = slopes_of(form, weight), float(weight @ rate), float(weight @ rate**2)
    by_mean, by_square = slopes @ (weight * rate), slopes @ (weight * rate**2)
    by_variance = by_square / mean**2 - 2 * square / mean**3 * by_mean
    moments, smoothing = [], result.diagnosis.smoothing
    for slope, value, unit in ((by_mean, mean, "1/s"), (by_variance, square / mean**2 - 1, "")):
        bias = 0.0 if smoothing is None else float(smoothing["bias"].values @ slope)
        moment = _follows(result, names, slope, value - bias, unit)
        moments.append(moment._replace(stderr=float(np.hypot(moment.stderr, bias))))
    mean_rate, variance = moments
    return mean_rate._replace(formula="Σ w Γ, less the bias of smoothing"), variance


def mean_is_determined(mean: Quantity) -> bool:
    """Return whether a mean rate is above 0 by two errors: in a stretched decay, fast rates have none."""
    error = mean.stderr_naive if np.isnan(mean.stderr) else mean.stderr
    return (
        not mean.value <= 2 * error
    )  # also where the error is NaN: nothing then speaks against it


def _tied(result: FitValues) -> Named:
    if not result.config["tie"]:
        return
    with suppress(
        OptionError
    ):  # the model is not known here: its other numbers are shown without it
        model, theta = result.provenance.fitted_model(), result.parameters["optimum"].values
        if not isinstance(model, TiedModel) or not np.isfinite(theta).all():
            return
        ties, names = model.ties, result.parameters["param"].values
        expanded, gradient = ties.expand(theta), slopes(ties, theta)
        for name, expression in ties.expressions:
            n = model.base.names.index(name)
            free = np.flatnonzero(gradient[n])
            value, unit = float(expanded[n]), ties.parameters[n].unit
            tied = _follows(result, names[free].tolist(), gradient[n, free], value, unit)
            yield name, tied._replace(formula=expression)


def _rate_at(
    result: FitValues, name: str, parameters: Sequence[str], age: float, form: SplineForm | None
) -> Quantity:
    """form: of a rate that is not a t^b + c; its error includes that of its splines and of smoothing."""
    quantities = fitted_quantities(result)
    fitted = [quantities[parameter] for parameter in parameters]
    theta, sign = np.array([parameter.optimum for parameter in fitted]), quoted_sign(result, name)
    # a power of age may diverge at 0; a fit takes half a frame time there, too (`positive_times`)
    t = np.array([max(age, result.provenance.inputs["frame_time"] / 2)])
    if form is None:
        homodyne = result.config["convention"] == Convention.HOMODYNE
        (value,), gradient = rate(t, theta, RATE_FLOOR if name == "J" or homodyne else None)
        slope, linear = gradient[:, 0], not fitted[1].limit
    else:
        slope, linear = form.basis(t)[:, 0], True
        value = theta @ slope
    dof = float(freedom_of_rate(result, name, np.array([age]))[0])
    arguments = sign * slope, sign * float(value), fitted[0].unit, dof, linear
    about = f"at the mean age of {age:.4g} s"
    derived = _follows(result, parameters, *arguments)._replace(formula=about)
    if form is None:
        return derived
    bias, smoothing = 0.0, result.diagnosis.smoothing
    if smoothing is not None:
        bias = smoothing["bias"].sel(param=list(parameters)).values @ slope
    further = np.linalg.norm(np.array([basis_error(theta) @ slope, bias]))
    derived = derived._replace(stderr=float(np.hypot(derived.stderr, further)))
    if (values_of_limited(result, parameters) != 0) @ slope > MOST_OF_RATE and derived.stderr > 0:
        derived = derived._replace(upper_limit=derived.largest)
    at_bound = np.array([spline.at_bound and np.isnan(spline.error) for spline in fitted])
    bound = at_bound[slope > 0]  # only splines that are not 0 at this age
    return derived._replace(at_bound=bool(bound.all()), conditional=bool(bound.any()))


def values_of_limited(result: FitValues, parameters: Sequence[str]) -> Float[np.ndarray, " p"]:
    """Return the values of coefficients of which only an upper limit is known, and 0 of the others."""
    limits = result.findings.of("rate-limit-only")
    names = {name for finding in limits for name in finding.numbers["coefficients"]}
    quantities = fitted_quantities(result)
    return np.array([quantities[n].optimum if n in names else 0.0 for n in parameters])


def quoted_sign(result: FitValues, rate: str) -> float:
    """Return the factor of a rate that makes that of shear, whose sign c2 does not show, positive."""
    signs = result.findings.of("shear-sign") if rate in ("gamma_dot", "strain") else ()
    return -1.0 if any(finding.numbers["rate"] < 0 for finding in signs) else 1.0


def _follows(
    result: FitValues,
    parameters: Sequence[str],
    slope: Slope,
    value: float,
    unit: str,
    dof: float | None = None,
    linear: bool = False,
) -> Quantity:
    """Return a quantity that follows from parameters, with errors by the delta method.

    slope: its derivatives by them. dof: of its standard error, NaN where it has none; by default the least of
    those of the parameters. linear: whether limits of one of them give limits of the quantity. It may have a
    value where the parameters have none, if their errors compensate for each other.
    """
    if not parameters:  # a tie to a number
        return Quantity(unit, value)
    quantities = fitted_quantities(result)
    fitted = [quantities[name] for name in parameters]
    if dof is None:
        dof = float(np.fmin.reduce([parameter.dof for parameter in fitted], initial=np.inf))
    stderr = _propagated_error(result, parameters, slope, result.covariance)
    naive = _propagated_error(result, parameters, slope, result.errors.covariance_naive)
    if np.isnan(dof) or np.isnan(stderr):
        value = np.nan if _is_lost(result, parameters) else value
        return Quantity(unit, value, stderr_naive=naive)
    derived = Quantity(unit, value, stderr, naive, dof, method=result.parameters.attrs["method"])
    return _limited(derived, fitted, slope, linear)


def _limited(
    derived: Quantity, fitted: Sequence[Quantity], slopes: Slope, linear: bool
) -> Quantity:
    """Return a quantity as the limits of its parameters allow: itself, with limits, or unknown."""
    pairs = zip(fitted, slopes, strict=True)
    varied = [(parameter, slope) for parameter, slope in pairs if slope and parameter.varied]
    if not any(parameter.limit for parameter, _ in varied):
        return derived
    if not linear:  # a limit of a parameter gives none of a curve through it
        return Quantity(derived.unit)
    if len(varied) > 1:  # nor of a sum with others
        return derived
    ((parameter, slope),) = varied
    keys = LIMITS if slope > 0 else LIMITS[::-1]
    ends = (slope * (getattr(parameter, key) - parameter.optimum) for key in keys)
    return derived._replace(**{k: derived.value + end for k, end in zip(LIMITS, ends, strict=True)})


def _is_lost(result: FitValues, parameters: Sequence[str]) -> bool:
    quantities = fitted_quantities(result)
    without_value = {name for name in parameters if np.isnan(quantities[name].value)}
    # a finding about several parameters is about a combination of them; others may be determined
    undetermined = {finding.about[0] for finding in result.findings if len(finding.about) == 1}
    return result.outcome is Outcome.NO_DECAY or bool(without_value & undetermined)


def _propagated_error(
    result: FitValues, parameters: Sequence[str], slope: Slope, covariance: xarray.DataArray | None
) -> float:
    if covariance is None:
        return np.nan
    covariance_of_parameters, _ = covariance_of(result, parameters, covariance)
    error = float(rate_stderr(slope[:, None], covariance_of_parameters)[0])
    return error if error > 0 else np.nan  # 0 where all are fixed


def covariance_of(
    result: FitValues, parameters: Sequence[str], covariance: xarray.DataArray
) -> tuple[Float[np.ndarray, "p p"], Bool[np.ndarray, " p"]]:
    """Return the covariance of some parameters, and which of them are coefficients of a rate at a bound.

    It is 0 for fixed parameters and for these coefficients, each of which concerns a part of the record; NaN
    for others without an error.
    """
    coefficients = [f"{rate}_1" for rate in result.config["splines"]]
    names = result.parameters["param"].values.tolist()  # a selection by xarray would load Dask
    places = [names.index(parameter) for parameter in parameters]
    fixed, bounded = (result.parameters[key].values[places] for key in ("fixed", "at_bound"))
    selected = covariance.values[np.ix_(places, places)]
    bounded = bounded & np.isnan(np.diag(selected)) & (parameters[0] in coefficients)
    without_error = fixed | bounded
    return np.where(without_error[:, None] | without_error, 0.0, selected), bounded


def freedom_of_rate(result: FitValues, name: str, t: Vector) -> Vector:
    """Return the degrees of freedom of a rate's error at times [s]; NaN where they are too few for one."""
    table = result.errors.rate_dof
    if result.covariance is None or table is None:
        return np.full(len(t), np.inf)
    dof = table[name].values
    known_at = np.isfinite(dof)
    if not known_at.any():
        return np.full(len(t), np.nan)
    freedom = np.interp(t, table["age"].values[known_at], dof[known_at])
    scatter = result.parameters.attrs["method"] == CLUSTER_ROBUST
    return np.where(scatter & (freedom < MIN_FREEDOM), np.nan, freedom)
