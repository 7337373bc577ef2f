"""`result.rates`: J(t), γ̇(t) and their integrals with error bands; the distribution of rates."""

from typing import Any

import numpy as np
import xarray
from jaxtyping import Bool, Float

from homodyne_dask.errors import OptionError
from homodyne_dask.kernels.backend import evaluation_of
from homodyne_dask.kernels.backend_interface import RateCurve
from homodyne_dask.models.rate_forms import LOG_DENSITY, LogDensityForm, basis_error, rate_stderr
from homodyne_dask.models.stretched_exponentials import slopes_of, weights_of
from homodyne_dask.models.transport import RATE_FLOOR
from homodyne_dask.results.data import derived_quantities as derived
from homodyne_dask.results.data.derived_quantities import quoted_sign
from homodyne_dask.results.data.fit_result import FitValues
from homodyne_dask.results.data.fit_view import FitView
from homodyne_dask.results.data.fitted_parameters import FittedParameters
from homodyne_dask.results.data.numbers_and_intervals import Vector, half_width
from homodyne_dask.solver.covariance import SPECKLE
from homodyne_dask.solver.levenberg_marquardt import Outcome
from homodyne_dask.text import counted, joined_with_and

Gradient = Float[np.ndarray, "p n"]
"""The derivatives of a curve by its parameters."""
WIDEST = 1e6
"""Standard errors: the largest half width of a band that is considered."""
_HALVINGS = 80


def half_width_everywhere(
    level: float, gradient: Gradient, covariance: Float[np.ndarray, "p p"], dof: Vector
) -> Vector:
    """Return the half width, in standard errors, of a band that holds the curve at all times at once."""
    from scipy.special import stdtr  # loads for a fifth of a second

    kappa, freedom = path_length(gradient, covariance), np.maximum(dof, 1.0)
    low, high = np.zeros(len(dof)), np.full(len(dof), WIDEST)
    for _ in range(_HALVINGS):
        c = 0.5 * (low + high)
        with np.errstate(invalid="ignore"):
            finite = np.exp(-0.5 * freedom * np.log1p(c**2 / freedom))
        tail = np.where(np.isfinite(freedom), finite, np.exp(-0.5 * c**2))  # (1 + c²/ν)^(-ν/2)
        outside = kappa / np.pi * tail + 2 * stdtr(freedom, -c)
        too_narrow = outside > 1 - level
        low, high = np.where(too_narrow, c, low), np.where(too_narrow, high, c)
    return np.where(np.isnan(dof), np.nan, high)


def path_length(gradient: Gradient, covariance: Float[np.ndarray, "p p"]) -> float:
    """Return κ, the sum of the angles between the errors of the curve at neighbouring times."""
    size = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    scale = np.where(size > 0, size, 1.0)
    values, vectors = np.linalg.eigh(covariance / np.outer(scale, scale))
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    error = root.T @ (gradient * scale[:, None])
    length = np.linalg.norm(error, axis=0)
    u = error[:, length > 0] / length[length > 0]
    chords = np.linalg.norm(np.diff(u, axis=1), axis=0)
    return float(2 * np.arcsin(np.minimum(chords / 2, 1.0)).sum())


LEVELS = {"68": 0.68, "95": 0.95}
"""Probabilities of the bands at each time, by the suffix of their names."""
EVERYWHERE, LEVEL = "95_everywhere", 0.95
BANDS = (*LEVELS, EVERYWHERE)
QUALIFICATIONS = {
    "no_band": "there is no band where too few bins determine the error",
    "unresolved": "there is no band where the rate changes too fast for its splines",
    "limit_only": "only an upper limit is known of the shear rate near 0",
    "conditional": "the band is too narrow: it assumes {splines} fixed at the bound",
    "wider": "the bands include errors due to splines and smoothing",
}
"""Attributes of a curve that qualify its bands, in the order in which a report has them."""
EXPONENTS = np.linspace(-2.0, 2.0, 81)
"""Of power laws beside rates without a formula: those within the bounds of fits."""
CURVES = {
    "J": ("angstrom^2/s", "transport rate"),
    "J_integral": ("angstrom^2", "integral of the transport rate"),
    "gamma_dot": ("1/s", "shear rate"),
    "strain": ("1", "accumulated strain"),
    "rate": ("1/s", "rate of decay"),
}
"""Unit and name of each."""
UNITS_OF_UNKNOWN_Q = {"J": "1/s", "J_integral": "1"}
"""J is then q²J."""
ERRORS = {
    "robust": "cluster-robust covariance",
    "speckle": "covariance of speckle and counting noise",
    "naive": "naive covariance, which makes bands too narrow for correlated speckle",
    "none": "no bands: the fit has no covariance",
}


def rates_in(view: FitView) -> xarray.Dataset:
    """Return the rates of a fit over `t` [s], the selected frames; OptionError for a model without any."""
    result, scan = view.result, view.scan
    rates = evaluation_of(view.model.point.problem.model).rates
    if rates is None:
        raise OptionError(f"{result.config['model']} has no rates of the age")
    covariance_name, covariance = "robust", result.covariance
    if covariance is None:
        covariance = result.errors.covariance_naive
        covariance_name = "none" if covariance is None else "naive"
    elif result.parameters.attrs["method"] == SPECKLE:
        covariance_name = SPECKLE
    columns, t, unknown_q = dict[str, Any](), scan.time[:0], np.isnan(scan.q).any()
    for name, curve in rates(view.model.point, scan.time, scan.frames).items():
        t, (unit, words) = curve.time, CURVES[name]
        unit = UNITS_OF_UNKNOWN_Q.get(name, unit) if unknown_q else unit
        band, about = _band(result, name, curve, covariance)
        columns[name] = ("t", curve.value, {"units": unit, "long_name": words} | about)
        for key, values in band.items():
            columns[f"{name}_{key}"] = ("t", values, {"units": "1" if key == "dof" else unit})
        if name in result.config["splines"]:
            columns[f"{name}_resolved"] = ("t", ~_unresolved(result, name, curve))
            law = nearest_power_law(curve.time, curve.value, band["stderr"])
            about = {"units": unit, "long_name": f"power law nearest to the {words}"}
            columns[f"{name}_power_law"] = ("t", law, about)
    if quoted_sign(result, "gamma_dot") < 0:
        columns |= _mirrored(columns)
    about = {name: result.config[name] for name in ("model", "convention")}
    about |= {"covariance": covariance_name, "bands": ERRORS[covariance_name]}
    return xarray.Dataset(columns, {"t": ("t", t, {"units": "s"})}, about)


def _mirrored(columns: dict[str, Any]) -> dict[str, Any]:
    opposite, mirrored = {"low": "high", "high": "low"}, dict[str, Any]()
    for name, (dims, values, *about) in columns.items():
        rate, _, band = name.partition("_low_") if "_low_" in name else name.partition("_high_")
        if rate in ("gamma_dot", "strain", "gamma_dot_power_law"):
            side = opposite[name[len(rate) + 1 :].partition("_")[0]] if band else ""
            mirrored["_".join(filter(None, (rate, side, band)))] = (dims, -values, *about)
    return mirrored


def nearest_power_law(t: Vector, value: Vector, stderr: Vector) -> Vector:
    """Return the a t^b + c nearest to a curve in units of its error; all times count if none is known."""
    has_error = stderr > 0
    weight = 1 / np.where(has_error, stderr, np.inf) if has_error.any() else np.ones(len(t))
    laws = []
    for exponent in EXPONENTS:
        columns = np.stack([(t / t[-1]) ** exponent, np.ones(len(t))], axis=1)
        coefficients = np.linalg.lstsq(columns * weight[:, None], value * weight)[0]
        laws.append(columns @ coefficients)
    return min(laws, key=lambda law: float((((law - value) * weight) ** 2).sum()))


def has_rates(result: FitValues) -> bool:
    measured = result.outcome is not Outcome.NO_DECAY
    return measured and evaluation_of(result.provenance.fitted_model()).rates is not None


def _ends(result: FitValues, name: str, curve: RateCurve) -> tuple[float, float]:
    """Return the bounds of a rate: of splines, which sum to 1, those of their coefficients."""
    if name in result.config["splines"]:
        params = FittedParameters(result)
        splines = [params[parameter] for parameter in curve.parameters]
        ends = [(p.min, p.max) for p in splines if p.min is not None and p.max is not None]
        if len(ends) == len(splines):
            return min(low for low, _ in ends), max(high for _, high in ends)
    return (0.0 if name.startswith(("J", "rate")) else -np.inf), np.inf


def _band(
    result: FitValues, name: str, curve: RateCurve, known_covariance: xarray.DataArray | None
) -> tuple[dict[str, Vector], dict[str, str]]:
    """Return error, degrees of freedom and ends of the bands of a rate by suffix, and what qualifies them."""
    names = list(curve.parameters)
    ends = [f"{end}_{band}" for band in BANDS for end in ("low", "high")]
    unknown = dict.fromkeys(("stderr", "dof", *ends), np.full(len(curve.value), np.nan))
    if known_covariance is None:
        return unknown, {}
    covariance, bounded = derived.covariance_of(result, names, known_covariance)
    if (missing := np.isnan(np.diag(covariance))).any():
        undetermined = joined_with_and([names[n] for n in np.flatnonzero(missing)])
        return unknown, {
            "no_band": f"there is no band, because the error of {undetermined} is unknown"
        }
    stderr = rate_stderr(curve.gradient, covariance)
    stderr = np.where(stderr > 0, stderr, np.nan)  # 0 where all parameters are fixed
    if name == "J" and name not in result.config["splines"]:
        stderr = np.where(curve.value > RATE_FLOOR, stderr, np.nan)  # it has no derivative there
    dof = derived.freedom_of_rate(result, name, curve.time)
    too_few, unresolved = np.isnan(dof), _unresolved(result, name, curve)
    stderr = np.where(too_few | unresolved, np.nan, stderr)
    limited = derived.values_of_limited(result, curve.parameters) @ curve.gradient
    limit_only = np.abs(limited) > stderr
    below, above = _reach(result, name, curve, stderr)
    widened = ~np.isclose([below, above], [stderr, stderr], 0.0, 0.0, equal_nan=True)
    applies = {"conditional": bounded, "no_band": too_few, "unresolved": unresolved}
    applies |= {"limit_only": limit_only, "wider": widened}
    splines = counted(int(bounded.sum()), "spline")
    about = {
        key: QUALIFICATIONS[key].format(splines=splines)
        for key, places in applies.items()
        if places.any()
    }
    # a side without an end, of splines at a bound, or a mere limit is no error to quote
    has_error = np.isfinite(below) & np.isfinite(above) & ~limit_only
    band = {"stderr": np.where(has_error, stderr, np.nan), "dof": dof}
    halves = {key: half_width(100 * level, dof) for key, level in LEVELS.items()}
    halves[EVERYWHERE] = half_width_everywhere(LEVEL, curve.gradient, covariance, dof)
    lowest, highest = _ends(result, name, curve)
    for key, half in halves.items():
        band[f"low_{key}"] = np.maximum(curve.value - half * below, lowest)
        band[f"high_{key}"] = np.minimum(curve.value + half * above, highest)
    return band, about


def _unresolved(result: FitValues, name: str, curve: RateCurve) -> Bool[np.ndarray, " n"]:
    """Return where a rate changes too fast for its splines: its integral is unknown from there on."""
    unresolved = np.zeros(len(curve.time), bool)
    for finding in result.findings.of("rate-unresolved"):
        if f"{finding.about[0]}_1" in curve.parameters:
            for first, last in finding.numbers["ages"]:
                end = last if name in finding.about else np.inf
                unresolved |= (first <= curve.time) & (curve.time <= end)
    return unresolved


def _reach(result: FitValues, name: str, curve: RateCurve, stderr: Vector) -> tuple[Vector, Vector]:
    """Return one standard error below and above a rate, with the errors of its splines and smoothing.

    Where most of a rate is splines at a bound, the rate may be there. The integral of a rate has no error of
    splines: around a bend it changes its sign.
    """
    smoothing = result.diagnosis.smoothing
    if smoothing is None:
        return stderr, stderr
    table = result.parameters.sel(param=list(curve.parameters))
    limited = derived.values_of_limited(result, curve.parameters)
    bias = (smoothing["bias"].sel(param=table["param"]).values + limited) @ curve.gradient
    below, above = np.maximum(bias, 0.0), np.minimum(bias, 0.0)
    if name in result.config["splines"]:
        c, bounded = table["optimum"].values, table["at_bound"].values
        stderr = np.hypot(stderr, basis_error(c) @ curve.gradient)
        lowest, highest = _ends(result, name, curve)
        at_low, at_high = bounded & (c <= lowest), bounded & (c >= highest)
        for reach, splines in ((below, at_low | (limited > 0)), (above, at_high | (limited < 0))):
            reach[splines @ curve.gradient > derived.MOST_OF_RATE] = np.inf
    return np.hypot(stderr, below), np.hypot(stderr, above)


CLEAR = 2.0
"""Standard errors of the relative variance from which on a width is told from 0."""


def has_distribution(result: FitValues) -> bool:
    return LOG_DENSITY in result.config["splines"] and result.outcome is not Outcome.NO_DECAY


def distribution_in(result: FitValues) -> xarray.Dataset:
    """Return the density of ln Γ over `rate` [1/s] with bands, wider by the bias of smoothing."""
    form = LogDensityForm(**result.config["splines"][LOG_DENSITY])
    names = [f"{LOG_DENSITY}_{n + 1}" for n in range(form.size)]
    weight = weights_of(form, result.parameters["optimum"].values)
    slopes = slopes_of(form, weight)
    density, covariance = weight / np.diff(form.nodes).mean(), result.covariance
    error = np.full(len(weight), np.nan)
    if covariance is not None:
        covariance, _ = derived.covariance_of(result, names, covariance)
        error = np.sqrt(np.einsum("in,ij,jn->n", slopes, covariance, slopes))
    quantities = derived.fitted_quantities(result)
    dof = min(quantities[name].dof for name in names)
    columns, smoothing = {"density": density}, result.diagnosis.smoothing
    bias = np.zeros(len(weight)) if smoothing is None else smoothing["bias"].values @ slopes
    for level in (68, 95):
        half = float(half_width(float(level), dof))
        for end, sign in (("low", -1), ("high", 1)):
            reach = np.minimum(half * np.hypot(error, np.maximum(-sign * bias, 0.0)), 500.0)
            columns[f"{end}_{level}"] = density * np.exp(sign * reach)
    return xarray.Dataset(
        {name: ("rate", values, {"units": "1"}) for name, values in columns.items()},
        {"rate": ("rate", np.exp(form.nodes), {"units": "1/s"})},
    )


def resolution_sentences(result: FitValues) -> list[str]:
    """Return how narrow a distribution the errors tell from a single rate; none of other models."""
    if LOG_DENSITY not in result.config["splines"]:
        return []
    mean, variance = derived.moments_of_distribution(result)
    if not derived.mean_is_determined(mean):
        return [
            "distribution of rates: the data do not determine its mean, in which fast rates count that they "
            "hardly show, as in a stretched decay"
        ]
    if not np.isfinite(variance.stderr):
        return []
    decades = np.sqrt(np.log1p(CLEAR * variance.stderr)) / np.log(10)
    return [
        f"distribution of rates: one of a width below {decades:.2g} decades (one standard deviation) cannot "
        f"be told from a single rate; its mean is better determined than its width and shape, and peaks are "
        f"wider than the true ones"
    ]
