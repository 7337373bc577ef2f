"""homodyne-dask posterior: the posterior of all the data of a finished fit."""

from pathlib import Path
from typing import Any

import click

import homodyne_dask as hd
from homodyne_dask.cli import result_upload, worker_options
from homodyne_dask.cli.exit_status import NOT_CONVERGED
from homodyne_dask.cli.printing import AS_JSON, echo, echo_json, echo_progress
from homodyne_dask.cli.read_options import from_options
from homodyne_dask.cli.shared_options import (
    ANY_PATH,
    CLUSTER,
    LOCAL_PATH,
    STORE,
    config_parameters,
    options_given,
    values_by_name,
    words,
)
from homodyne_dask.errors import OptionError, in_line
from homodyne_dask.results.data import block_means
from homodyne_dask.results.files.folder import fits_in
from homodyne_dask.results.files.posterior_netcdf import check_netcdf_path
from homodyne_dask.results.files.saved_results import SUMMARY, data_of
from homodyne_dask.store.files import AnyPath, is_file


@click.command()
@click.argument("folder", metavar="FIT", type=ANY_PATH)
@click.option(
    "--prior", multiple=True, metavar="NAME=PRIOR",
    help="Prior of a parameter: mean and standard deviation of a normal distribution, such as D0=2500:300, "
    "or a named distribution (lognormal, halfnormal, truncnormal, uniform or loguniform), such as "
    "D0=lognormal:2500:0.3; repeatable. Default: uniform or log-uniform within the bounds.",
)  # fmt: skip
@click.option(
    "--draws", type=click.IntRange(100, 1_000_000), default=4000, show_default=True,
    help="Number of draws.",
)  # fmt: skip
@click.option(
    "--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of the draws."
)
@click.option(
    "--adjust", type=click.Choice(["robust", "none"]), default="robust", show_default=True,
    help="Width of the likelihood: that of the standard errors (robust), or that of uncorrelated noise "
    "(none).",
)  # fmt: skip
@STORE
@config_parameters(CLUSTER)
@AS_JSON
@click.option(
    "--output", "-o", type=LOCAL_PATH,
    help="Write the draws to this netCDF file, and leave FIT unchanged.",
)  # fmt: skip
def posterior(
    folder: AnyPath,
    prior: tuple[str, ...],
    draws: int,
    seed: int,
    adjust: str,
    store: AnyPath | None,
    as_json: bool,
    output: Path | None,
    **workers: Any,
) -> None:
    """Sample the posterior of the fit in the folder FIT, and write it there.

    The data are read about as often as in a short fit, from the store that was fitted. The command writes
    posterior.nc (for ArviZ) and figures to FIT, and adds a section "Posterior" to its report.
    `homodyne-dask explain posterior` explains the numbers.

    Exit status: 0 done, 2 bad input, 3 the draws are unreliable, 130 interrupted.
    """
    fits = [] if is_file(folder / SUMMARY) else fits_in(folder)
    if fits:
        raise OptionError(
            f"{folder} contains {len(fits)} fits, but a posterior is computed for a single fit: give "
            f"{folder / fits[0]}, or another of them"
        )
    if output is not None and check_netcdf_path(output).exists():
        raise OptionError(f"{output} exists: give another --output")
    result = hd.load_result(folder)
    priors = values_by_name("prior", words(prior)) or None
    data = data_of(result, folder, result_upload.WITH_STORE, store)
    scan = block_means.as_fitted(data, result)
    echo_progress(
        f"{draws:,} draws from the posterior of {result.config['model']} fitted to {in_line(scan.path)}"
    )
    source = {"data": [scan.path], "model": result.config["model"]}
    with worker_options.client_of(from_options(source | options_given(workers))) as client:
        found = hd.posterior(
            result, scan, priors=priors, draws=draws, seed=seed, adjust=adjust, client=client,
            progress=echo_progress,
        )  # fmt: skip
    if as_json:
        echo_json(found.values())
    else:
        echo(str(found))
    if output is not None:
        found.to_netcdf(output)
        files = [str(output)]
    else:
        with result_upload.on_disk(folder) as (here, where):
            files = list(map(where, found.save(here)))
    if not as_json:
        echo(f"\nwritten: {in_line(', '.join(files))}")
    click.get_current_context().exit(0 if found.reliable else NOT_CONVERGED)
