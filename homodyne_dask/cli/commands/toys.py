"""homodyne-dask toys: photons simulated at a fit, and fitted as it was."""

from typing import Annotated, Any, Literal

import click
from pydantic import Field

import homodyne_dask as hd
from homodyne_dask.cli import result_upload, worker_options
from homodyne_dask.cli.fit_config import FitConfig, LocalPath
from homodyne_dask.cli.path_arguments import ANY_PATH, OVERWRITE, PICTURES, STORE, check_new
from homodyne_dask.cli.printing import AS_JSON, echo_found, echo_progress
from homodyne_dask.cli.shared_options import CLUSTER, given_of, options_of, workers_of_options
from homodyne_dask.request.option_types import Form, Integer, Number
from homodyne_dask.request.options import Options, option
from homodyne_dask.results.saved_results import data_of
from homodyne_dask.store.files import AnyPath


class ToyOptions(Options):
    """Simulated scans, by the names of `hd.toys`."""

    n: Annotated[Integer, Field(ge=2), Form("a whole number of at least 2", "INTEGER")] = option(
        100, names=("--number", "-n")
    )
    """Number of simulated scans (toys)."""
    seed: Integer = option(1)
    """Seed of the photons."""
    weighting: Literal["pairs", "speckle"] | None = option(None)
    """Weighting of the fits; default: that of FIT."""
    counts: Number | None = option(None)
    """Mean counts per pixel and frame, if the residuals do not determine them."""
    pixels: Number | None = option(None)
    """Independent pixels per bin, if the residuals do not determine them."""
    picture: LocalPath | None = option(None)
    """Plot the pulls, (value - truth) / error, to this PNG file."""


@click.command()
@click.argument("folder", metavar="FIT", type=ANY_PATH)
@options_of(ToyOptions)
@STORE
@options_of(FitConfig, CLUSTER)
@OVERWRITE
@AS_JSON
def toys(
    folder: AnyPath, store: AnyPath | None, overwrite: bool, as_json: bool, **given: Any
) -> None:
    """Simulate scans of photons from the fit in the folder FIT, fit them, and compare the results with their
    true values.

    The table lists bias, scatter divided by error, and how often the intervals contain the truth.
    """
    workers = {name: given.pop(name) for name in CLUSTER}
    options = ToyOptions(**given_of(given))
    chosen, picture = options.model_dump(exclude={"picture"}), options.picture
    check_new(picture, overwrite, PICTURES)
    result = hd.load_result(folder)
    scan = data_of(result, folder, result_upload.WITH_STORE, store)
    with worker_options.client_of(workers_of_options(scan.path, workers)) as client:
        found = hd.toys(result, scan, **chosen, client=client, progress=echo_progress)
    echo_found(found, as_json, picture)
