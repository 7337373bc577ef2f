"""The posterior of a fit: draws with units, quantiles, files in the form of ArviZ, and pictures."""

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
from homodyne_dask.apps.posterior.posterior_plots import PosteriorPlots
from homodyne_dask.apps.posterior.posterior_summary import (
    plain_summary,
    summary_table,
    why_unreliable,
)
from homodyne_dask.document.blocks import Document
from homodyne_dask.document.plain_text import Reportable
from homodyne_dask.read_only import HandedOut
from homodyne_dask.results.data.dataclass_json import plain_values
from homodyne_dask.results.data.fitted_parameters import nearest_turn
from homodyne_dask.results.result_classes import FitResult

if TYPE_CHECKING:
    from homodyne_dask.store.scan import Scan


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
    constant_data. Attributes: pareto_k, effective_draws, adjust, design_effect, convention, seed, ...
    """

    def _document(self) -> Document:
        from homodyne_dask.apps.posterior.posterior_section import report_of_posterior

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
        """Whether the draws are reliable, by Pareto k̂ of their weights and the error of the likelihood."""
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
        from homodyne_dask.apps.posterior.posterior_netcdf import write_netcdf

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
        from homodyne_dask.apps.posterior.posterior_files import save_posterior

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
