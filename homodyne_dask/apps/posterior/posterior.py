"""The posterior of a fit: draws with units, quantiles, report, figures, and files in the form of ArviZ."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray
from jaxtyping import Float
from xarray import DataTree

from homodyne_dask.apps.posterior.arviz_tree import (
    FILE,
    FORMAT,
    VERSION,
    Draws,
    read_tree,
    theta_in,
    tree_of,
    write_netcdf,
)
from homodyne_dask.apps.posterior.posterior_summary import (
    nan_if_none,
    plain_summary,
    summary_table,
    why_unreliable,
)
from homodyne_dask.document import blocks
from homodyne_dask.errors import OptionError
from homodyne_dask.read_only import HandedOut, cached_read_only
from homodyne_dask.results.data import numbers_and_intervals as numbers
from homodyne_dask.results.data.dataclass_json import plain_values
from homodyne_dask.results.data.fitted_parameters import nearest_turn
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
"""Largest difference of log densities from those of all pairs that is not remarked upon."""
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
        return plain_values(plain_summary(self.summary, self.tree))

    @property
    def plot(self) -> "PosteriorPlots":
        """Figures of the posterior: `posterior.plot.corner()` and `rates()`."""
        from homodyne_dask.apps.posterior.posterior_figures import (  # lazy: it loads matplotlib
            PosteriorPlots,
        )

        return PosteriorPlots(self.result, self.tree)

    def to_netcdf(self, path: str | Path) -> None:
        """Write `tree` to a netCDF-4 file, atomically, for `load_posterior` and ArviZ."""
        write_netcdf(self.tree, path)

    def values(self) -> dict[str, Any]:
        """Return `plain`, and quantiles by bin and age, as plain values; unknown numbers are None."""
        group, result = self.tree["posterior"].dataset, self.result
        percent = {f"{100 * q:g}": q for q in self.summary["quantiles"].values.tolist()}

        def quantiles(name: str) -> dict[str, Any]:
            values = group[name].values
            of = np.quantile(values.reshape(-1, values.shape[-1]), list(percent.values()), axis=0)
            return dict(zip(percent, of, strict=True))

        rates = {name: quantiles(name) for name in ("J", "gamma_dot", "strain") if name in group}
        about = {"format": FORMAT, "format_version": VERSION, "version": result.provenance.version}
        about |= {"model": result.config["model"], "store": result.provenance.inputs["store"]}
        return plain_values(
            about
            | self.plain
            | {"bins": {name: result.scaling[name] for name in ("label", "q", "phi")}}
            | {name: quantiles(name) for name in ("contrast", "offset")}
            | ({"age_s": group["age"].values, "rates": rates} if rates else {})
        )

    def save(self, folder: str | Path) -> list[Path]:
        """Write the posterior into the folder of the fit, update report and summary.json; return the files.

        posterior.nc, posterior_corner.png, and posterior_rates.png for models with rates; summary.json is
        the last. Raises OptionError for a folder without a fit, or with another one.
        """
        folder = path_of("folder", folder)
        before = _fit_in(folder, self.result)
        result = _with_posterior(before, self.plain)
        with files_of.locked_folder(folder, files_of.LOCK), files_of.staging(folder) as there:
            self.to_netcdf(there / FILE)
            drawn = _write_pictures(self, there)
            write_file(there / "report.txt", result.report(all=True) + "\n")
            of_fit = [folder / f"{name}.png" for name in TITLES]
            files_of.write_report(result, there, [path for path in of_fit if path.is_file()], drawn)
            # a folder whose summary.json names a posterior has all its files
            if before.errors.posterior is not None:
                _with_posterior(before, None).to_json(folder / SUMMARY)
            for path in (folder / FILE, *folder.glob(files_of.POSTERIOR_PICTURES)):
                path.unlink(missing_ok=True)
            files = files_of.move_files(there, folder)
            result.to_json(folder / SUMMARY)
        return [*files, folder / SUMMARY]


def posterior_of(result: FitResult, draws: Draws, scan: "Scan") -> Posterior:
    """Return the posterior of a fit from the draws of a sampler; scan: what was fitted."""
    result, periods = _with_posterior(result, None), result.config["periods"]
    period = np.array([periods.get(name, 0.0) for name in result.params])
    theta, prior = (
        nearest_turn(each, result.parameters["optimum"].values, period)
        for each in (draws.theta, draws.prior)
    )
    return Posterior(result, tree_of(result, draws._replace(theta=theta, prior=prior), scan))


def load_posterior(path: str | Path) -> Posterior:
    """Read a posterior written by `to_netcdf`, or the posterior in the folder of a fit.

    path: the file or the folder. Raises SourceError for any other file.

    >>> hd.posterior(hd.fit("A0123_c2.zarr", "brownian"), draws=500).to_netcdf("A0123.nc")
    >>> hd.load_posterior("A0123.nc").reliable
    True
    """
    where = path_of("path", path)
    if where.is_dir():
        where /= FILE
    tree = read_tree(where)
    with missing_values(where):
        fit = tree["constant_data"].dataset["fit_summary"].values.tobytes()
        posterior = Posterior(from_summary(json.loads(fit)), tree)
        for name, of in tree["posterior"].dataset.data_vars.items():
            if of.dtype.kind != "f" or of.dims[:2] != ("chain", "draw"):
                raise ValueError(f"{name} has no real numbers of chains and draws")
        if not (np.abs(posterior.theta) < 1e100).all():
            raise ValueError("a draw is no number, or none whose square is one")
        return reportable(posterior)


def posterior_section(
    held: dict[str, Any], pictures: Sequence[blocks.Picture] = ()
) -> blocks.Section:
    """Return quantiles and what to quote, or why the draws are unreliable; what was done.

    held: the entry `posterior` of summary.json.
    """
    why = why_unreliable(held)
    priors = "; ".join(f"{name} {of['prior']}" for name, of in held["parameters"].items())
    factor, dof = nan_if_none(held["design_effect"]), nan_if_none(held["dof"])
    words = [f"log-likelihood divided by {factor:.3g} on average"] * (factor != 1)
    words += [f"t kernel with {dof:.1f} degrees of freedom"] * math.isfinite(dof)
    draws, made = numbers.format_count(held["draws"]), ""
    if "r_hat" in held:
        r_hat, effective = (nan_if_none(held[key]) for key in ("r_hat", "effective_draws"))
        made = f" by Markov chains ({effective:.0f} effective draws, R-hat {r_hat:.3f})"
    error = nan_if_none(held["largest_error"])
    beyond = f", more than {MAX_ERROR}" * (error > MAX_ERROR)
    sentences = [
        held["adjust_note"].rstrip(".") + (f" ({', '.join(words)})" if words else ""),
        f"priors: {priors}",
        f"{draws} draws{made}, seed {held['seed']}",
        f"the likelihood of all pairs is interpolated from {held['columns']} basis functions: its logarithm "
        f"differs by at most {error:.2g} from the exact value at the {held['checked']} draws "
        f"compared{beyond}",
    ]
    title = "Quantiles of the posterior"
    first = blocks.Sentences([why]) if why else blocks.Table(title, _rows(held), 3)
    said = [first, blocks.Sentences(sentences), blocks.Figures(pictures)]
    return blocks.Section("Posterior", said)


def _rows(held: dict[str, Any]) -> list[list[str]]:
    rows = [["parameter", "mean ± sd", "unit", "2.5 %", "50 %", "97.5 %", "shift", "quote"]]
    for name, of in held["parameters"].items():
        sd, shift = nan_if_none(of["sd"]), nan_if_none(of["shift"])
        ends = numbers.quantiles([of["quantiles"][p] for p in ("2.5", "50", "97.5")], sd)
        if side := of["limit"]:
            limit = numbers.quantiles([of["limit_value"]], sd)[0]
            ends = ["", "", f"< {limit}"] if side == "upper" else [f"> {limit}", "", ""]
            shift = math.nan
        shown = f"{100 * shift:.0f} %" if math.isfinite(shift) else "-"
        mean, quote = numbers.value_and_error(of["mean"], sd), of["quote"] or "-"
        rows.append([name, mean, of["unit"], *ends, shown, quote])
    return rows


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
        about = {"Title": CAPTIONS[name], "Description": words}
        write_file(folder / f"{name}.png", png_of(draw(), about))
    return [folder / f"{name}.png" for name in pictures]
