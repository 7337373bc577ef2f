"""The posterior of a fit: draws with units, quantiles, files in the form of ArviZ, and pictures."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray
from xarray import DataTree

from homodyne_dask.errors import SourceError
from homodyne_dask.results.data.fit_result import FitResult
from homodyne_dask.results.data.posterior_draws import PosteriorDraws
from homodyne_dask.results.data.posterior_summary import plain_summary, summary_table
from homodyne_dask.results.data.result_tables import plain_columns, plain_values
from homodyne_dask.results.files.arviz_tree import (
    FORMAT,
    VERSION,
    ZARR,
    draws_in,
    netcdf_of_tree,
    read_tree,
    tree_of,
    write_zarr,
)
from homodyne_dask.results.files.json_files import missing_values, write_with_checksum
from homodyne_dask.results.views.posterior_section import enough_sentences, why_unreliable
from homodyne_dask.results.views.rendering import renderer
from homodyne_dask.store.files import path_of, write_atomic
from homodyne_dask.store.scan import Scan
from homodyne_dask.text import abridged

if TYPE_CHECKING:
    from homodyne_dask.results.views.figures.posterior_figures import PosteriorPlots

NETCDF, JSON = "posterior.nc", "posterior.json"


@dataclass(frozen=True)
class Posterior:
    """The posterior of one fit, of `hd.posterior` or `load_posterior`; `print(posterior)` is a table."""

    result: FitResult
    """The fit."""
    draws: PosteriorDraws
    """The draws as arrays; those of a periodic parameter are the ones nearest to the value of the fit."""
    tree: DataTree = field(repr=False, compare=False)
    """The draws with names, units and coordinates, in the form of ArviZ 1.

    Groups: posterior (each free parameter; contrast and offset by bin; J, gamma_dot and strain at 50 ages),
    sample_stats, log_likelihood (of each bin), prior, observed_data (c2 over cells of age and lag),
    constant_data. Attributes: pareto_k, effective_draws, adjust, design_effect, convention, seed, ...
    """

    @cached_property
    def summary(self) -> xarray.Dataset:
        """Over the free parameters: mean, sd, quantile, and value, stderr of the fit (`summary_table`)."""
        return summary_table(self.result, self.draws)

    @property
    def gaussian_enough(self) -> dict[str, bool]:
        """By parameter, whether the error bar of the fit is enough: its 95 % interval is the posterior's.

        To 5 % of stderr, within two errors of the ends from the number of draws. Without those of which
        the fit has no interval.
        """
        known = self.summary.isel(param=np.isfinite(self.summary["shift"].values))
        names, enough = known["param"].values.tolist(), known["enough"].values.tolist()
        return dict(zip(names, enough, strict=True))

    @property
    def reliable(self) -> bool:
        """Whether the draws are to be trusted: Pareto k̂ of importance weights, or R̂ of chains."""
        return not why_unreliable(self.plain)

    @property
    def sentences(self) -> list[str]:
        """In words, for which parameters the error bars of the fit are enough."""
        return enough_sentences(self.plain)

    @cached_property
    def plain(self) -> dict[str, Any]:
        """The numbers as plain values, as the entry `posterior` of summary.json; unknown ones are None."""
        return plain_values(plain_summary(self.result, self.draws))

    def __str__(self) -> str:
        """Return the table of quantiles, and what was done, as text."""
        return renderer("posterior_text")(self.result, self.plain)

    def __repr__(self) -> str:
        """Return the first lines of the text."""
        return abridged(str(self))

    def _repr_html_(self) -> str:
        """Return the same as HTML, for Jupyter."""
        return renderer("posterior_fragment")(self.result, self.plain)

    @property
    def plot(self) -> "PosteriorPlots":
        """The figures, as matplotlib Figures: `posterior.plot.corner()`; rates, trace."""
        return renderer("PosteriorPlots")(self)

    def to_netcdf(self, path: str | Path) -> None:
        """Write `tree` as one netCDF-4 file, atomically; `load_posterior` and ArviZ read it."""
        write_atomic(path_of("path", path), netcdf_of_tree(self.tree))

    def to_zarr(self, path: str | Path) -> None:
        """Write `tree` as a Zarr folder, replacing an earlier one; `load_posterior` and ArviZ read it."""
        write_zarr(self.tree, path_of("path", path))

    def to_json(self, path: str | Path) -> None:
        """Write the numbers without the draws as JSON with a checksum, atomically."""
        write_with_checksum(path_of("path", path), self.values())

    def values(self) -> dict[str, Any]:
        """Return what `to_json` writes: `plain`, and quantiles by bin and age; unknown numbers are None."""
        group = self.tree["posterior"].dataset
        percent = {f"{100 * q:g}": q for q in self.summary["quantiles"].values.tolist()}

        def quantiles(name: str) -> dict[str, Any]:
            values = group[name].values
            of = np.quantile(values.reshape(-1, values.shape[-1]), list(percent.values()), axis=0)
            return dict(zip(percent, of, strict=True))

        rates = {name: quantiles(name) for name in ("J", "gamma_dot", "strain") if name in group}
        bins = plain_columns(self.result.scaling)
        return plain_values(
            {"format": FORMAT, "format_version": VERSION, "version": self.result.version}
            | {"model": self.result.config["model"], "store": self.result.inputs["store"]}
            | self.plain
            | {"bins": {name: bins[name] for name in ("label", "q", "phi")}}
            | {"contrast": quantiles("contrast"), "offset": quantiles("offset")}
            | ({"age_s": group["age"].values, "rates": rates} if rates else {})
        )

    def save(self, folder: str | Path) -> list[Path]:
        """Write into the folder of the fit, and its report and summary.json again; return the files.

        posterior.nc, posterior.json, posterior_corner.png, posterior_rates.png of models with rates, and
        posterior_trace.png where chains were run. Raises OptionError for the folder of another fit.
        """
        return renderer("save_posterior")(self, path_of("folder", folder))


def posterior_of(result: FitResult, draws: PosteriorDraws, scan: Scan) -> Posterior:
    """Return the posterior of a fit from the draws of a sampler; scan: what was fitted."""
    result = replace(result, posterior=None)
    draws = replace(draws, theta=_nearest(result, draws.theta), prior=_nearest(result, draws.prior))
    return Posterior(result, draws, tree_of(result, draws, scan))


def _nearest(result: FitResult, theta: np.ndarray) -> np.ndarray:
    """Return draws of which those of periodic parameters are moved by periods towards the fit."""
    table = result.parameters
    period = [result.periods.get(str(name)) or np.inf for name in table["param"].values]
    away = theta - table["value"].values
    with np.errstate(invalid="ignore"):
        turns = np.where(np.isfinite(period), np.round(away / period), 0.0)
    return theta - np.where(turns == 0, 0.0, turns * np.where(np.isfinite(period), period, 0.0))


def load_posterior(path: str | Path) -> Posterior:
    """Read a posterior written by `to_netcdf` or `to_zarr`, or that of the folder of a fit.

    path: of the file or the folder. Raises SourceError if it is none.

    >>> hd.posterior(hd.fit("A0123_c2.zarr", "brownian"), draws=500).to_netcdf("A0123.nc")
    >>> hd.load_posterior("A0123.nc").reliable
    True
    """
    where = path_of("path", path)
    if where.is_dir() and not (where / ZARR).exists():
        where /= NETCDF
    if where.suffix == ".json":
        raise SourceError(f"{where} holds no draws: give {where.with_suffix('.nc')}")
    tree = read_tree(where)
    with missing_values(where):
        return Posterior(*draws_in(tree), tree)
