"""The posterior in numbers: quantiles of each parameter, and whether value ± stderr suffices."""

import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import xarray
from jaxtyping import Float
from xarray import DataTree

from homodyne_dask.apps.posterior.arviz_tree import NUMBERS, free_names, theta_in
from homodyne_dask.apps.posterior.chains import MAX_R_HAT
from homodyne_dask.apps.posterior.priors import FLAT_IN_RATE
from homodyne_dask.results.data.derived_quantities import fitted_quantities
from homodyne_dask.results.data.fit_result import plain_rows
from homodyne_dask.results.data.numbers_and_intervals import half_width
from homodyne_dask.results.result_classes import FitResult

UNTRUSTED_ERROR = 0.5
"""Error of log p above which draws are unreliable: they have the wrong weight by more than half."""
ENOUGH = 0.05
"""Shift of the ends of the 95 % interval, in standard errors, up to which those of the fit are enough."""
QUANTILES = (0.025, 0.16, 0.5, 0.84, 0.975)
ENDS = [0, -1]
SYMMETRIC = 0.1
"""Sum of the distances of both ends from the value of the fit, in half the width of the interval, up to
which an interval counts as symmetric about it."""
INFORMATIVE = 3.0
"""Width of the prior over that of the posterior, below which the prior narrows the posterior."""
KNOWN = 0.1
"""Largest error of a shift from the number of draws with which those of the fit may be called enough."""
LIMIT, AT_END, NEAR = 0.95, 0.01, 0.05
"""Probability that a one-sided limit holds the true value; share of the draws outside the narrowest interval,
toward a bound, and distance of the outermost draw from it, over the length of that interval, up to which the
interval includes the bound."""


def summary_table(result: FitResult, tree: DataTree) -> xarray.Dataset:
    """Return mean, sd and quantiles over the free parameters `param`, with value and stderr of the fit.

    shift: the larger distance of an end of the 95 % interval from that of the fit, in units of its stderr,
    NaN where there is none; shift_error: its error from the number of draws; enough: whether shift is below
    0.05, within two of its errors, which are then at most 0.1 each. limit: 'upper' or 'lower' where the
    density is largest at a bound, and limit_value. fit_excluded: whether the value of the fit is outside the
    95 % interval. quote: what to quote, '' where the fit has no interval (docs: posterior).
    """
    free = free_names(result)
    names, places = list(free), list(free.values())
    theta, of_prior = (
        theta_in(result, tree[group].dataset)[:, places] for group in ("posterior", "prior")
    )
    priors, quantities = json.loads(tree.attrs["priors"]), fitted_quantities(result)
    fitted = [quantities[name] for name in names]
    value, error, dof = np.array([(q.optimum, q.error, q.dof) for q in fitted]).reshape(-1, 3).T
    naive = tree.attrs["adjust"] == "none"  # its width is another by intention
    stderr = np.where(naive, np.nan, error)

    quantile = np.quantile(theta, QUANTILES, axis=0).T
    low, high = ends = quantile[:, ENDS].T
    shift = np.abs(ends - value - np.outer([-1, 1], half_width(95.0, dof) * error)).max(0) / stderr
    # of an end: half the distance of the quantiles one binomial standard deviation to each side
    p = np.array(QUANTILES)[ENDS]
    draws = max(min(tree.attrs.get("effective_draws", np.nan), len(theta)), 1.0)
    beside = (np.clip(p + sign * np.sqrt(p * (1 - p) / draws), 0, 1) for sign in (-1, 1))
    before, after = (np.quantile(theta, shares, axis=0) for shares in beside)
    shift_error = (after - before).max(0) / 2 / stderr
    limits = [
        ("", np.nan)  # density at a bound that shapes of the rate made, not the data
        if priors.get(name, "").startswith(FLAT_IN_RATE) or result.config["periods"].get(name)
        else one_sided(draws_of, parameter.min, parameter.max, parameter.optimum)
        for name, draws_of in zip(names, theta.T, strict=True)
        for parameter in [result.params[name]]
    ]
    sides, limit_values = map(np.array, zip(*limits, strict=True))
    agrees = shift <= ENOUGH + 2 * shift_error
    enough, excluded = agrees & (shift_error <= KNOWN), (low > value) | (high < value)
    skewed = np.abs(high + low - 2 * value) > (
        SYMMETRIC * (high - low) / 2 + 2 * np.sqrt(2) * shift_error * stderr
    )
    width_of_prior = np.ptp(np.quantile(of_prior, p, axis=0), axis=0)
    cases = {
        "limit": sides != "",
        "": np.isnan(shift),
        "the rate": excluded,
        "value ± stderr": enough,
        "more draws": agrees,
        "median, 95 %, prior": width_of_prior < INFORMATIVE * (high - low),
        "median, 95 %": skewed,
    }
    quote = np.select(list(cases.values()), list(cases), "value ± stderr")
    reported = np.array([q.value for q in fitted])
    no_value = np.isnan(reported) & (quote == "value ± stderr")
    columns = {
        "mean": theta.mean(axis=0),
        "sd": theta.std(axis=0, ddof=1),
        "value": reported,
        "stderr": np.array([q.stderr for q in fitted]),
        "shift": shift,
        "shift_error": shift_error,
        "enough": enough,
        "limit": sides,
        "limit_value": limit_values,
        "fit_excluded": excluded,
        "unit": np.array([q.unit for q in fitted], str),
        "prior": np.array([priors.get(name, "") for name in names], str),
        "quote": np.where(no_value, "median, 95 %", quote),
    }
    return xarray.Dataset(
        {name: ("param", column) for name, column in columns.items()}
        | {"quantile": (("param", "quantiles"), quantile)},
        {"param": names, "quantiles": list(QUANTILES)},
    )


def one_sided(
    draws: Float[np.ndarray, " draw"], low: float | None, high: float | None, best: float
) -> tuple[str, float]:
    """Return 'upper' or 'lower' and the limit where the interval of highest density includes a bound.

    low, high: None where they are not known. best: the value of the fit; where the limit would exclude it
    the prior decides, and there is none: '' and NaN.
    """
    x = np.sort(draws)
    inside = int(np.ceil(LIMIT * len(x)))
    if inside >= len(x):
        return "", np.nan
    widths = x[inside:] - x[: len(x) - inside]
    first = int(np.argmin(widths))
    below, above = first, len(x) - 1 - inside - first
    for side, bound, beyond, end in (("upper", low, below, x[0]), ("lower", high, above, x[-1])):
        if bound is None or beyond > AT_END * len(x) or abs(end - bound) > NEAR * widths[first]:
            continue
        limit = float(np.quantile(x, LIMIT if side == "upper" else 1 - LIMIT))
        return (side, limit) if (best <= limit) == (side == "upper") else ("", np.nan)
    return "", np.nan


def plain_summary(table: xarray.Dataset, tree: DataTree) -> dict[str, Any]:
    """Return the numbers of a posterior as plain values: the entry `posterior` of summary.json."""
    rows = plain_rows(table.drop_vars(["value", "stderr", "quantile"]), "param")
    for row, values in zip(rows.values(), table["quantile"].values, strict=True):
        row["quantiles"] = by_percent(values)
    return {
        "draws": tree["posterior"].sizes["chain"] * tree["posterior"].sizes["draw"],
        **{name: tree.attrs.get(name) for name in NUMBERS},
        "seconds": json.loads(tree.attrs["seconds"]),
        "parameters": rows,
    }


def by_percent(quantiles: Iterable[Any]) -> dict[str, Any]:
    return dict(zip((f"{100 * q:g}" for q in QUANTILES), quantiles, strict=True))


def why_unreliable(plain: dict[str, Any]) -> str:
    """Return why the draws are unreliable, '' if they are not; plain: the entry of summary.json."""
    if "r_hat" not in plain:
        return (
            "no interval is given of draws by importance weights, which an earlier version made: draw again "
            "with `homodyne-dask posterior`"
        )
    r_hat, error = nan_if_none(plain["r_hat"]), nan_if_none(plain["largest_error"])
    unreliable = "the draws are unreliable, and no interval is given"
    if not r_hat < MAX_R_HAT:
        return (
            f"{unreliable}: the chains differ (R-hat {r_hat:.3f}, not below {MAX_R_HAT}); use more --draws "
            f"or narrower priors, or fix parameters that the data do not determine"
        )
    if error > UNTRUSTED_ERROR:
        return (
            f"{unreliable}: the likelihood interpolated from {plain['columns']} basis functions is "
            f"inaccurate at these draws (its logarithm differs by up to {error:.2g} from the exact one); use "
            f"narrower priors, or fix parameters that the data do not determine"
        )
    return ""


def nan_if_none(value: float | None) -> float:
    return math.nan if value is None else value
