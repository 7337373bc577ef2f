"""The posterior of a fit: draws with units, quantiles, report, figures, and files in the form of ArviZ."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray
from jaxtyping import Float
from xarray import DataTree

from homodyne_dask.apps.posterior import arviz_tree as draws_tree
from homodyne_dask.apps.posterior.arviz_tree import QUANTILES, free_names, theta_in
from homodyne_dask.apps.posterior.chains import MAX_R_HAT
from homodyne_dask.apps.posterior.priors import FLAT_IN_RATE
from homodyne_dask.document import blocks
from homodyne_dask.errors import OptionError
from homodyne_dask.read_only import HandedOut, cached_read_only
from homodyne_dask.results.data import numbers_and_intervals as numbers
from homodyne_dask.results.data.dataclass_json import plain_values
from homodyne_dask.results.data.derived_quantities import fitted_quantities
from homodyne_dask.results.data.fit_result import plain_rows
from homodyne_dask.results.data.fitted_parameters import FittedParameter, nearest_turn
from homodyne_dask.results.files import result_folder as files_of
from homodyne_dask.results.files.json_files import missing_values
from homodyne_dask.results.result_classes import FitResult
from homodyne_dask.results.saved_results import SUMMARY, from_summary, load_result, reportable
from homodyne_dask.results.views.panels import png_of
from homodyne_dask.results.views.style import TITLES
from homodyne_dask.store.files import path_of, write_file

if TYPE_CHECKING:
    from homodyne_dask.apps.posterior.posterior_figures import PosteriorPlots
    from homodyne_dask.store.scan import Scan

MAX_ERROR = 0.05
"""Largest difference of log densities from those of all pairs of which a report does not warn."""
UNTRUSTED_ERROR = 0.5
"""Error of log p above which draws are unreliable: they have the wrong weight by more than half."""
ENOUGH = 0.05
"""Shift of the ends of the 95 % interval, in standard errors, up to which those of the fit are enough."""
ENDS = [0, -1]
SYMMETRIC = 0.1
"""Sum of the distances of both ends from the value of the fit, in half the width of the interval, up to
which an interval counts as symmetric about it."""
INFORMATIVE = 3.0
"""Width of the prior over that of the posterior, below which the prior narrows the posterior."""
KNOWN = 0.1
"""Largest error of a shift, due to the number of draws, with which the errors of the fit may be enough."""
LIMIT, AT_END, NEAR = 0.95, 0.01, 0.05
"""Probability that a one-sided limit holds the true value; share of the draws outside the narrowest interval,
toward a bound, and distance of the outermost draw from it, over the length of that interval, up to which the
interval includes the bound."""
CAPTIONS = {
    "posterior_corner": "Posterior: density of each parameter and of each pair, with 68 % and 95 % contours",
    "posterior_rates": "Posterior of the rates: median with 68 % and 95 % bands, and 95 % band of the fit",
}


@dataclass(frozen=True, repr=False)
class Posterior(HandedOut, blocks.Reportable):
    """Posterior of one fit, from `hd.posterior` or `load_posterior`; `print(posterior)` shows a table."""

    result: FitResult
    """The fit."""
    tree: DataTree = field(repr=False, compare=False)
    """The draws with names, units and coordinates, in the form of ArviZ 1. Those of a periodic parameter are
    the ones nearest to the value of the fit.

    Groups: posterior (each free parameter; contrast and offset by bin; J, gamma_dot and strain at 50 ages),
    sample_stats, log_likelihood (of each bin), prior, observed_data (c2 over cells of age and lag),
    constant_data. Attributes: r_hat, effective_draws, adjust, design_effect, convention, seed, ...
    """

    def _document(self) -> blocks.Document:
        model, store = self.result.config["model"], self.result.provenance.inputs["store"]
        section = posterior_section(self.plain)
        return blocks.Document(f"posterior of {model} fitted to {store}", [section])

    @cached_read_only
    def summary(self) -> xarray.Dataset:
        """Over the free parameters: mean, sd, quantile, and value, stderr of the fit (`summary_table`)."""
        return summary_table(self.result, self.tree)

    @cached_read_only
    def theta(self) -> Float[np.ndarray, "draw p"]:
        """The parameters of all draws in the order and the units of the model; fixed ones are constant."""
        return theta_in(self.result, self.tree["posterior"].dataset)

    @property
    def reliable(self) -> bool:
        """Whether the draws are reliable, by R-hat of the chains and the error of the likelihood."""
        return not why_unreliable(self.plain)

    @cached_read_only
    def plain(self) -> dict[str, Any]:
        """The entry `posterior` of summary.json; unknown numbers are None."""
        rows = plain_rows(self.summary.drop_vars(["value", "stderr", "quantile"]), "param")
        for row, quantiles in zip(rows.values(), self.summary["quantile"].values, strict=True):
            row["quantiles"] = by_percent(quantiles)
        draws = {
            "draws": self.tree["posterior"].sizes["chain"] * self.tree["posterior"].sizes["draw"]
        }
        about = {name: self.tree.attrs.get(name) for name in draws_tree.NUMBERS}
        seconds = json.loads(self.tree.attrs["seconds"])
        return plain_values(draws | about | {"seconds": seconds, "parameters": rows})

    @property
    def plot(self) -> "PosteriorPlots":
        """Figures of the posterior: `posterior.plot.corner()` and `rates()`."""
        from homodyne_dask.apps.posterior.posterior_figures import (  # lazy: it loads matplotlib
            PosteriorPlots,
        )

        return PosteriorPlots(self.result, self.tree)

    def to_netcdf(self, path: str | Path) -> None:
        """Write `tree` to a netCDF-4 file, atomically, for `load_posterior` and ArviZ."""
        draws_tree.write_netcdf(self.tree, path)

    def values(self) -> dict[str, Any]:
        """Return `plain`, and quantiles by bin and age, as plain values; unknown numbers are None."""
        group, result = self.tree["posterior"].dataset, self.result

        def quantiles(names: Iterable[str]) -> dict[str, dict[str, Any]]:
            draws = {name: group[name].values.reshape(-1, group[name].shape[-1]) for name in names}
            return {
                name: by_percent(np.quantile(x, QUANTILES, axis=0)) for name, x in draws.items()
            }

        rates = quantiles(name for name in ("J", "gamma_dot", "strain") if name in group)
        return plain_values(
            {
                "format": draws_tree.FORMAT,
                "format_version": draws_tree.VERSION,
                "version": result.provenance.version,
                "model": result.config["model"],
                "store": result.provenance.inputs["store"],
                **self.plain,
                "bins": {
                    name: result.scaling[name]
                    for name in ("scan", "label", "q", "phi")
                    if name in result.scaling.variables
                },
                **quantiles(("contrast", "offset")),
            }
            | ({"age_s": group["age"].values, "rates": rates} if rates else {})
        )

    def save(self, folder: str | Path) -> list[Path]:
        """Write the posterior into the folder of the fit, update report and summary.json; return the files.

        posterior.nc, posterior_corner.png, and posterior_rates.png for models with rates; summary.json is
        the last. Raises OptionError for a folder without a fit, or with another one.
        """
        folder = path_of("folder", folder)
        saved_fit = _fit_in(folder, self.result)
        result = _with_posterior(saved_fit, self.plain)
        with files_of.locked_folder(folder, files_of.LOCK), files_of.staging(folder) as staged:
            self.to_netcdf(staged / draws_tree.FILE)
            pictures = _write_pictures(self, staged)
            write_file(staged / "report.txt", result.report(all=True) + "\n")
            of_fit = [folder / f"{name}.png" for name in TITLES]
            files_of.write_report(
                result, staged, [path for path in of_fit if path.is_file()], pictures
            )
            # a folder whose summary.json names a posterior has all its files
            if saved_fit.errors.posterior is not None:
                _with_posterior(saved_fit, None).to_json(folder / SUMMARY)
            for path in (folder / draws_tree.FILE, *folder.glob(files_of.POSTERIOR_PICTURES)):
                path.unlink(missing_ok=True)
            files = files_of.move_files(staged, folder)
            result.to_json(folder / SUMMARY)
        return [*files, folder / SUMMARY]


def posterior_of(result: FitResult, draws: draws_tree.Draws, scan: "Scan") -> Posterior:
    """Return the posterior of a fit from the draws of a sampler; scan: what was fitted."""
    result, periods = _with_posterior(result, None), result.config["periods"]
    period = np.array([periods.get(name, 0.0) for name in result.params])
    theta, prior = (
        nearest_turn(theta, result.parameters["optimum"].values, period)
        for theta in (draws.theta, draws.prior)
    )
    return Posterior(
        result, draws_tree.tree_of(result, draws._replace(theta=theta, prior=prior), scan)
    )


def load_posterior(path: str | Path) -> Posterior:
    """Read a posterior written by `to_netcdf`, or the posterior in the folder of a fit.

    path: the file or the folder. Raises SourceError for any other file.

    >>> hd.posterior(hd.fit("A0123_c2.zarr", "brownian"), draws=500).to_netcdf("A0123.nc")
    >>> hd.load_posterior("A0123.nc").reliable
    True
    """
    file = path_of("path", path)
    if file.is_dir():
        file /= draws_tree.FILE
    tree = draws_tree.read_tree(file)
    with missing_values(file):
        fit = tree["constant_data"].dataset["fit_summary"].values.tobytes()
        posterior = Posterior(from_summary(json.loads(fit)), tree)
        for name, sampled in tree["posterior"].dataset.data_vars.items():
            if sampled.dtype.kind != "f" or sampled.dims[:2] != ("chain", "draw"):
                raise ValueError(f"{name} has no real numbers of chains and draws")
        if not (np.abs(posterior.theta) < 1e100).all():
            raise ValueError("a draw is no number, or none whose square is one")
        return reportable(posterior)


def posterior_section(
    plain: dict[str, Any], pictures: Sequence[blocks.Picture] = ()
) -> blocks.Section:
    """Return quantiles and what to quote, or why the draws are unreliable; what was done.

    plain: the entry `posterior` of summary.json.
    """
    objection = why_unreliable(plain)
    priors = "; ".join(f"{name} {row['prior']}" for name, row in plain["parameters"].items())
    factor, dof, error = (
        nan_if_none(plain[key]) for key in ("design_effect", "dof", "largest_error")
    )
    words = [f"log-likelihood divided by {factor:.3g} on average"] * (factor != 1)
    words += [f"t kernel with {dof:.1f} degrees of freedom"] * math.isfinite(dof)
    chains = ""
    if "r_hat" in plain:
        r_hat, effective = (nan_if_none(plain[key]) for key in ("r_hat", "effective_draws"))
        chains = f" by Markov chains ({effective:.0f} effective draws, R-hat {r_hat:.3f})"
    beyond = f", more than {MAX_ERROR}" * (error > MAX_ERROR)
    sentences = [
        plain["adjust_note"].rstrip(".") + (f" ({', '.join(words)})" if words else ""),
        f"priors: {priors}",
        f"{numbers.format_count(plain['draws'])} draws{chains}, seed {plain['seed']}",
        f"the likelihood of all pairs is interpolated from {plain['columns']} basis functions: its logarithm "
        f"differs by at most {error:.2g} from the exact value at the {plain['checked']} draws "
        f"compared{beyond}",
    ]
    title = "Quantiles of the posterior"
    quantiles = blocks.Sentences([objection]) if objection else blocks.Table(title, _rows(plain), 3)
    content = [quantiles, blocks.Sentences(sentences), blocks.Figures(pictures)]
    return blocks.Section("Posterior", content)


def _rows(plain: dict[str, Any]) -> list[list[str]]:
    rows = [["parameter", "mean ± sd", "unit", "2.5 %", "50 %", "97.5 %", "shift", "quote"]]
    for name, row in plain["parameters"].items():
        sd, shift = nan_if_none(row["sd"]), nan_if_none(row["shift"])
        ends = numbers.quantiles([row["quantiles"][p] for p in ("2.5", "50", "97.5")], sd)
        if side := row["limit"]:
            limit = numbers.quantiles([row["limit_value"]], sd)[0]
            ends = ["", "", f"< {limit}"] if side == "upper" else [f"> {limit}", "", ""]
            shift = math.nan
        shift_words = f"{100 * shift:.0f} %" if math.isfinite(shift) else "-"
        mean, quote = numbers.value_and_error(row["mean"], sd), row["quote"] or "-"
        rows.append([name, mean, row["unit"], *ends, shift_words, quote])
    return rows


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
    shift = (
        np.abs(ends - value - np.outer([-1, 1], numbers.half_width(95.0, dof) * error)).max(0)
        / stderr
    )
    # of an end: half the distance of the quantiles one binomial standard deviation to each side
    p = np.array(QUANTILES)[ENDS]
    draws = max(min(tree.attrs.get("effective_draws", np.nan), len(theta)), 1.0)
    deviation = np.sqrt(p * (1 - p) / draws)
    shares = (np.clip(p + sign * deviation, 0, 1) for sign in (-1, 1))
    lower, upper = (np.quantile(theta, share, axis=0) for share in shares)
    shift_error = (upper - lower).max(0) / 2 / stderr
    limits = [
        _limit_of(result.params[n], priors.get(n, ""), result, x)
        for n, x in zip(names, theta.T, strict=True)
    ]
    sides, limit_values = map(np.array, zip(*limits, strict=True))
    agrees = shift <= ENOUGH + 2 * shift_error
    enough, excluded = agrees & (shift_error <= KNOWN), (low > value) | (high < value)
    skewed = np.abs(high + low - 2 * value) > (
        SYMMETRIC * (high - low) / 2 + 2 * np.sqrt(2) * shift_error * stderr
    )
    width_of_prior = np.ptp(np.quantile(of_prior, p, axis=0), axis=0)
    # what to quote, of the first case that applies
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


def _limit_of(
    parameter: FittedParameter, prior: str, result: FitResult, draws: Float[np.ndarray, " draw"]
) -> tuple[str, float]:
    # an angle has no bound, and shapes of the rate, not the data, make a density at a bound of one
    if prior.startswith(FLAT_IN_RATE) or result.config["periods"].get(parameter.name):
        return "", np.nan
    return one_sided(draws, parameter.min, parameter.max, parameter.optimum)


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


def _with_posterior(result: FitResult, plain: dict[str, Any] | None) -> FitResult:
    return replace(result, errors=replace(result.errors, posterior=plain))


def _fit_in(folder: Path, result: FitResult) -> FitResult:
    if not (folder / SUMMARY).is_file():
        raise OptionError(
            f"{folder} contains no fit, but a posterior is written beside its fit: give the folder of the "
            f"fit, or write the posterior alone with to_netcdf"
        )
    present = load_result(folder)
    inputs, of_result = (fit.provenance.inputs for fit in (present, result))
    if not (
        inputs["store_sha256"] == of_result["store_sha256"]
        and present.config["model"] == result.config["model"]
        and present.parameters["optimum"].equals(result.parameters["optimum"])
        and [*inputs["frames"]] == [*of_result["frames"]]
        and present.scaling["label"].equals(result.scaling["label"])
    ):
        raise OptionError(
            f"{folder} contains another fit: give the folder of the fit of this posterior"
        )
    return present


def _write_pictures(posterior: Posterior, folder: Path) -> list[Path]:
    """Draw the figures, with medians and intervals of the parameters as their text alternative."""
    plain, pictures = posterior.plain, {"posterior_corner": posterior.plot.corner}
    if "J" in posterior.tree["posterior"].dataset:
        pictures["posterior_rates"] = posterior.plot.rates
    quantiles = {name: row["quantiles"] for name, row in plain["parameters"].items()}
    medians = (
        f"{name} {q['50']:.4g}, 95 % interval from {q['2.5']:.4g} to {q['97.5']:.4g}"
        for name, q in quantiles.items()
    )
    words = why_unreliable(plain) or f"Median: {'; '.join(medians)}."
    for name, draw in pictures.items():
        metadata = {"Title": CAPTIONS[name], "Description": words}
        write_file(folder / f"{name}.png", png_of(draw(), metadata))
    return [folder / f"{name}.png" for name in pictures]
