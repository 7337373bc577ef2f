"""Sample the posterior of a fit."""

from pathlib import Path
from typing import Annotated, Any, Literal

import click
from pydantic import Field

import homodyne_dask as hd
from homodyne_dask.cli import path_arguments as paths
from homodyne_dask.cli import worker_options
from homodyne_dask.cli.exit_status import NOT_CONVERGED
from homodyne_dask.cli.fit_config import FitConfig
from homodyne_dask.cli.printing import AS_JSON, echo, echo_json, echo_progress
from homodyne_dask.cli.shared_options import CLUSTER, given_of, options_of, workers_of_options
from homodyne_dask.errors import in_line
from homodyne_dask.request.option_types import ByName, Form, Integer
from homodyne_dask.request.options import Options, option
from homodyne_dask.results.data.fit_view import as_fitted
from homodyne_dask.results.saved_results import data_of
from homodyne_dask.store.files import AnyPath


class PosteriorOptions(Options):
    """Draws of a posterior, by the names of `hd.posterior`."""

    priors: Annotated[ByName[str], Form("a prior of each parameter", "NAME=PRIOR")] = option(
        None, example="{D0: 2500:300}", names=("--prior",)
    )
    """Prior of a parameter: mean and standard deviation of a normal distribution, such as D0=2500:300, or a
    named distribution (lognormal, halfnormal, truncnormal, uniform or loguniform), such as
    D0=lognormal:2500:0.3; default: uniform or log-uniform within the bounds."""
    draws: Annotated[
        Integer,
        Field(ge=100, le=1_000_000),
        Form("a whole number from 100 to a million", "INTEGER"),
    ] = option(4000)
    """Number of draws."""
    seed: Integer = option(1)
    """Seed of the draws."""
    adjust: Literal["robust", "none"] = option("robust")
    """Width of the likelihood: that of the standard errors (robust), or that of uncorrelated noise (none)."""


@click.command()
@click.argument("folder", metavar="FIT", type=paths.LOCAL_PATH)
@options_of(PosteriorOptions)
@paths.STORE
@options_of(FitConfig, CLUSTER)
@AS_JSON
@paths.OVERWRITE
@click.option(
    "--output",
    "-o",
    type=paths.LOCAL_PATH,
    help="Write the draws to this netCDF file, and leave FIT unchanged.",
)
def posterior(
    folder: Path,
    store: AnyPath | None,
    as_json: bool,
    overwrite: bool,
    output: Path | None,
    **options: Any,
) -> None:
    """Sample the posterior of the fit in the folder FIT, and write it there.

    The data are read about as often as in a short fit, from the store that was fitted. The command writes
    posterior.nc (for ArviZ) and figures to FIT, and adds a section "Posterior" to its report.
    `homodyne-dask explain posterior` explains the numbers.

    Exit status: 0 done, 2 bad input, 3 the draws are unreliable, 130 interrupted.
    """
    workers = {name: options.pop(name) for name in CLUSTER}
    values = PosteriorOptions(**given_of(options))
    paths.require_one_fit(folder)
    paths.check_new(output, overwrite, (".nc",))
    result = hd.load_result(folder)
    data = data_of(result, folder, paths.WITH_STORE, store)
    scan = as_fitted(data, result)
    echo_progress(
        f"{values.draws:,} draws from the posterior of {result.config['model']} fitted to "
        f"{in_line(scan.path)}"
    )
    with worker_options.client_of(workers_of_options(scan.path, workers)) as client:
        sampled = hd.posterior(result, scan, **dict(values), client=client, progress=echo_progress)
    if as_json:
        echo_json(sampled.values())
    else:
        echo(str(sampled))
    if output is not None:
        sampled.to_netcdf(output)
    files = sampled.save(folder) if output is None else [output]
    if not as_json:
        echo(f"\nwritten: {in_line(', '.join(map(str, files)))}")
    click.get_current_context().exit(0 if sampled.reliable else NOT_CONVERGED)
