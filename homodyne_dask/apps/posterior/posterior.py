"""The posterior of a fit: draws with units, quantiles, files in the form of ArviZ, and pictures.

The figures of a posterior, `posterior.plot`.

The section "Posterior" of a report, from the plain values that summary.json holds.

A posterior in the folder of its fit: its files, its pictures, and the report with both.

A posterior as a netCDF file, written and read back.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray
from jaxtyping import Float
from xarray import DataTree

from homodyne_dask.apps.posterior.arviz_tree import (
    FORMAT,
    VERSION,
    PosteriorDraws,
    theta_in,
    tree_of,
)
from homodyne_dask.apps.posterior.posterior_summary import (
    nan_if_none,
    plain_summary,
    summary_table,
    why_unreliable,
)
from homodyne_dask.document.blocks import (
    Document,
    Picture,
    Pictures,
    Reportable,
    Section,
    Sentences,
    Table,
)
from homodyne_dask.errors import OptionError, SourceError, why_unreadable
from homodyne_dask.read_only import HandedOut
from homodyne_dask.results.data import numbers_and_intervals as numbers
from homodyne_dask.results.data.dataclass_json import plain_values
from homodyne_dask.results.data.fitted_parameters import nearest_turn
from homodyne_dask.results.files.json_files import MAX_BYTES, missing_values
from homodyne_dask.results.files.result_folder import (
    LOCK,
    POSTERIOR_PICTURES,
    locked_folder,
    move_files,
    staging,
    write_report,
)
from homodyne_dask.results.result_classes import FitResult
from homodyne_dask.results.saved_results import SUMMARY, from_summary, load_result, reportable
from homodyne_dask.results.views.panels import png_of
from homodyne_dask.results.views.style import TITLES, in_place_of
from homodyne_dask.store.files import path_of, read_with_tail, replace_file, write_file
from homodyne_dask.store.hdf5_files import check_contents

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from homodyne_dask.store.scan import Scan


class PosteriorPlots:
    """The figures of a posterior, `posterior.plot`, as matplotlib Figures; ax: as in `Plots`."""

    def __init__(self, posterior: "Posterior") -> None:
        self.posterior = posterior

    def corner(self, ax: "Axes | None" = None) -> Any:
        """Densities of each parameter and each pair, with 68 and 95 % contours and the fit's Gaussian."""
        from homodyne_dask.apps.posterior.posterior_figures import draw_corner

        with in_place_of(ax):
            return draw_corner(self.posterior)

    def rates(self, ax: "Axes | None" = None, panel: str | None = None) -> Any:
        """J(t), the shear rate and the strain: median with 68 and 95 % bands, with the bands of the fit."""
        from homodyne_dask.apps.posterior.posterior_figures import draw_posterior_rates

        with in_place_of(ax, panel):
            return draw_posterior_rates(self.posterior)


@dataclass(frozen=True, repr=False)
class Posterior(HandedOut, Reportable):
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

    def _document(self) -> Document:

        return report_of_posterior(self)

    @cached_property
    def summary(self) -> xarray.Dataset:
        """Over the free parameters: mean, sd, quantile, and value, stderr of the fit (`summary_table`)."""
        return summary_table(self.result, self.tree)

    @cached_property
    def theta(self) -> Float[np.ndarray, "draw p"]:
        """The parameters of all draws in the order and the units of the model; fixed ones are constant."""
        return theta_in(self.result, self.tree["posterior"].dataset)

    @property
    def reliable(self) -> bool:
        """Whether the draws are reliable, by R-hat and the error of the likelihood."""
        return not why_unreliable(self.plain)

    @cached_property
    def plain(self) -> dict[str, Any]:
        """The numbers as plain values, as the entry `posterior` of summary.json; unknown ones are None."""
        return plain_values(plain_summary(self.summary, self.tree))

    @property
    def plot(self) -> PosteriorPlots:
        """Figures of the posterior: `posterior.plot.corner()` and `rates()`."""
        return PosteriorPlots(self)

    def to_netcdf(self, path: str | Path) -> None:
        """Write `tree` to a netCDF-4 file, atomically; `load_posterior` and ArviZ read it.

        A file is replaced as by `FitResult.to_json`. Raises OptionError for a path of Zarr.
        """

        write_netcdf(self.tree, path)

    def values(self) -> dict[str, Any]:
        """Return `plain`, and quantiles by bin and age, as plain values; unknown numbers are None."""
        group = self.tree["posterior"].dataset
        percent = {f"{100 * q:g}": q for q in self.summary["quantiles"].values.tolist()}

        def quantiles(name: str) -> dict[str, Any]:
            values = group[name].values
            of = np.quantile(values.reshape(-1, values.shape[-1]), list(percent.values()), axis=0)
            return dict(zip(percent, of, strict=True))

        rates = {name: quantiles(name) for name in ("J", "gamma_dot", "strain") if name in group}
        scaling, provenance = self.result.scaling, self.result.provenance
        about = {"format": FORMAT, "format_version": VERSION, "version": provenance.version}
        about |= {"model": provenance.config["model"], "store": provenance.inputs["store"]}
        return plain_values(
            about
            | self.plain
            | {"bins": {name: scaling[name] for name in ("label", "q", "phi")}}
            | {name: quantiles(name) for name in ("contrast", "offset")}
            | ({"age_s": group["age"].values, "rates": rates} if rates else {})
        )

    def save(self, folder: str | Path) -> list[Path]:
        """Write the posterior into the folder of the fit, update report and summary.json; return the files.

        posterior.nc, posterior_corner.png, and posterior_rates.png for models with rates.
        Raises OptionError for the folder of another fit.
        """

        return save_posterior(self, folder)


def with_posterior(result: FitResult, plain: dict[str, Any] | None) -> FitResult:
    """Return a result that holds the numbers of its posterior, or none of it."""
    return replace(result, errors=replace(result.errors, posterior=plain))


def posterior_of(result: FitResult, draws: PosteriorDraws, scan: "Scan") -> Posterior:
    """Return the posterior of a fit from the draws of a sampler; scan: what was fitted."""
    result, periods = with_posterior(result, None), result.config["periods"]
    period = np.array([periods.get(name, 0.0) for name in result.params])
    theta, prior = (
        nearest_turn(each, result.parameters["optimum"].values, period)
        for each in (draws.theta, draws.prior)
    )
    return Posterior(result, tree_of(result, replace(draws, theta=theta, prior=prior), scan))


MAX_ERROR = 0.05
"""Largest difference of log densities from those of all pairs that is not remarked upon."""


def report_of_posterior(posterior: Posterior) -> Document:
    """Return a posterior in numbers."""
    config, inputs = posterior.result.config, posterior.result.provenance.inputs
    title = f"posterior of {config['model']} fitted to {inputs['store']}"
    return Document(title, [posterior_section(posterior.plain)])


def posterior_section(held: dict[str, Any], pictures: Sequence[Picture] = ()) -> Section:
    """Return quantiles and what to quote, or why the draws are unreliable; what was done."""
    why = why_unreliable(held)
    priors = "; ".join(f"{name} {of['prior']}" for name, of in held["parameters"].items())
    return Section(
        "Posterior",
        [
            Sentences([why]) if why else Table("Quantiles of the posterior", _rows(held), 3),
            Sentences([_adjustment(held), f"priors: {priors}", *_sampling(held)]),
            Pictures(pictures),
        ],
    )


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


def _sampling(held: dict[str, Any]) -> list[str]:
    """Return how the draws were made, and how exact the likelihood is."""
    error, draws = nan_if_none(held["largest_error"]), numbers.format_count(held["draws"])
    if "r_hat" not in held:
        return [f"{draws} draws, seed {held['seed']}"]
    r_hat, effective = (nan_if_none(held[key]) for key in ("r_hat", "effective_draws"))
    beyond = f", more than {MAX_ERROR}" * (error > MAX_ERROR)
    return [
        f"{draws} draws by Markov chains ({effective:.0f} effective draws, R-hat {r_hat:.3f}), seed "
        f"{held['seed']}",
        f"the likelihood of all pairs is interpolated from {held['columns']} basis functions: its logarithm "
        f"differs by at most {error:.2g} from the exact value at the {held['checked']} draws "
        f"compared{beyond}",
    ]


def _adjustment(held: dict[str, Any]) -> str:
    factor, dof = nan_if_none(held["design_effect"]), nan_if_none(held["dof"])
    words = [f"log-likelihood divided by {factor:.3g} on average"] if factor != 1 else []
    if math.isfinite(dof):
        words.append(f"t kernel with {dof:.1f} degrees of freedom")
    return held["adjust_note"].rstrip(".") + (f" ({', '.join(words)})" if words else "")


NETCDF = "posterior.nc"
_SIZE = 64
"""Bytes of the checksum at the end of a file: the SHA-256 of all others."""
_REMEDY = "give posterior.nc of a fit, or recreate it with `homodyne-dask posterior`"


def write_netcdf(tree: DataTree, path: str | Path) -> None:
    """Write a tree as netCDF-4, atomically, and its checksum after it, where readers of HDF5 do not look.

    It is made in memory: HDF5 crashes where it cannot write to a disk.
    """
    path = check_netcdf_path(path)
    content = tree.to_netcdf(engine="h5netcdf")
    assert content is not None  # no path was given
    content = bytes(content)
    replace_file(path, content + _digest(content))


def check_netcdf_path(path: str | Path) -> Path:
    """Return the path of a posterior that is to be written; raises OptionError for one of Zarr."""
    where = path_of("path", path)
    if where.suffix == ".zarr":
        raise OptionError(
            f"{where} would be a Zarr store, but a posterior is written as netCDF: give "
            f"{where.with_suffix('.nc')}, or write its tree with posterior.tree.to_zarr"
        )
    return where


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def read_tree(path: Path) -> DataTree:
    """Return the tree of a posterior, all in memory; raises SourceError for what is none."""
    try:
        content, checksum = read_with_tail(path, MAX_BYTES, _SIZE)
        if _digest(content) != checksum:
            raise SourceError(
                f"{path} is not a {FORMAT} as it was written (its checksum does not match), but damaged or "
                f"another file: {_REMEDY}"
            )
        check_contents(path)
        with xarray.open_datatree(path, engine="h5netcdf", phony_dims="sort") as opened:
            declared = opened.nbytes  # of all groups
            if declared > len(content):  # it is not compressed
                raise ValueError(f"it declares {declared:,} bytes in {len(content):,}")
            tree = opened.load()
    except OSError as e:
        raise SourceError(f"{path} cannot be read: {why_unreadable(e)}; {_REMEDY}") from e
    except (ValueError, KeyError, TypeError, RuntimeError) as e:
        raise SourceError(f"{path} is damaged, {why_unreadable(e)}: {_REMEDY}") from e
    if str(tree.attrs.get("format")) != FORMAT:
        raise SourceError(f"{path} is not a {FORMAT}: {_REMEDY}")
    if tree.attrs.get("format_version") != VERSION:
        raise SourceError(
            f"{path} has format version {tree.attrs.get('format_version')}, but this program reads "
            f"{VERSION}: recreate it with `homodyne-dask posterior`"
        )
    return tree


def load_posterior(path: str | Path) -> Posterior:
    """Read a posterior written by `to_netcdf`, or the posterior in the folder of a fit.

    path: the file or the folder. Raises SourceError for any other file.

    >>> hd.posterior(hd.fit("A0123_c2.zarr", "brownian"), draws=500).to_netcdf("A0123.nc")
    >>> hd.load_posterior("A0123.nc").reliable
    True
    """
    where = path_of("path", path)
    if where.is_dir():
        where /= NETCDF
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


CAPTIONS = {
    "posterior_corner": "Posterior: density of each parameter and of each pair, with 68 % and 95 % contours",
    "posterior_rates": "Posterior of the rates: median with 68 % and 95 % bands, and 95 % band of the fit",
}


def save_posterior(posterior: Posterior, folder: str | Path) -> list[Path]:
    """Write the files of a posterior into the folder of its fit, the report and summary.json again.

    Return the files, summary.json last. A folder whose summary.json names a posterior has all its files.
    Raises OptionError for a folder without a fit, or with another one.
    """
    folder = path_of("folder", folder)
    before = _fit_in(folder, posterior.result)
    result = with_posterior(before, posterior.plain)
    with locked_folder(folder, LOCK), staging(folder) as there:
        posterior.to_netcdf(there / NETCDF)
        drawn = _write_pictures(posterior, there)
        write_file(there / "report.txt", result.report(all=True) + "\n")
        of_fit = [folder / f"{name}.png" for name in TITLES]
        write_report(result, there, [path for path in of_fit if path.is_file()], drawn)
        if before.errors.posterior is not None:
            with_posterior(before, None).to_json(folder / SUMMARY)
        for path in (folder / NETCDF, *folder.glob(POSTERIOR_PICTURES)):
            path.unlink(missing_ok=True)
        files = move_files(there, folder)
        result.to_json(folder / SUMMARY)
    return [*files, folder / SUMMARY]


def _fit_in(folder: Path, result: FitResult) -> FitResult:
    """Return the fit of a folder, which has to be that of the posterior."""
    if not (folder / SUMMARY).is_file():
        raise OptionError(
            f"{folder} contains no fit, but a posterior is written beside its fit: give the folder of the "
            f"fit, or write the posterior alone with to_netcdf"
        )
    present = load_result(folder)
    same = (
        present.provenance.inputs["store_sha256"] == result.provenance.inputs["store_sha256"]
        and present.config["model"] == result.config["model"]
        and present.parameters["optimum"].equals(result.parameters["optimum"])
        and [*present.provenance.inputs["frames"]] == [*result.provenance.inputs["frames"]]
        and present.scaling["label"].equals(result.scaling["label"])
    )
    if not same:
        raise OptionError(
            f"{folder} contains another fit: give the folder of the fit of this posterior"
        )
    return present


def _write_pictures(posterior: Posterior, folder: Path) -> list[Path]:
    pictures, paths = {"posterior_corner": posterior.plot.corner}, []
    if "J" in posterior.tree["posterior"].dataset:
        pictures["posterior_rates"] = posterior.plot.rates
    for name, draw in pictures.items():
        paths.append(folder / f"{name}.png")
        about = {"Title": CAPTIONS[name], "Description": _alternative(posterior, name)}
        write_file(paths[-1], png_of(draw(), about))
    return paths


def _alternative(posterior: Posterior, name: str) -> str:
    """Return the text alternative of a figure: medians and intervals, of rates at the last frame."""
    if why := why_unreliable(posterior.plain):
        return why
    of = {name: row["quantiles"] for name, row in posterior.plain["parameters"].items()}
    if name == "posterior_rates":
        rates = posterior.values()["rates"].items()
        of = {rate: {p: values[-1] for p, values in row.items()} for rate, row in rates}
    words = (
        f"{name} {q['50']:.4g}, 95 % interval from {q['2.5']:.4g} to {q['97.5']:.4g}"
        for name, q in of.items()
    )
    return f"Median: {'; '.join(words)}."
