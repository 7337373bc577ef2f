"""homodyne-dask toys: photons simulated at a fit, and fitted as it was."""

from pathlib import Path
from typing import Any

import click

import homodyne_dask as hd
from homodyne_dask.cli import result_upload, worker_options
from homodyne_dask.cli.printing import AS_JSON, echo, echo_json, echo_progress
from homodyne_dask.cli.read_options import from_options
from homodyne_dask.cli.shared_options import (
    ANY_PATH,
    CLUSTER,
    LOCAL_PATH,
    STORE,
    Text,
    config_parameters,
    options_given,
)
from homodyne_dask.errors import in_line
from homodyne_dask.results.files.saved_results import data_of
from homodyne_dask.store.files import AnyPath


@click.command()
@click.argument("folder", metavar="FIT", type=ANY_PATH)
@click.option(
    "-n",
    "--number",
    type=click.IntRange(2),
    default=100,
    show_default=True,
    help="Number of simulated scans (toys).",
)
@click.option(
    "--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of the photons."
)
@click.option(
    "--weighting", type=Text(("pairs", "speckle")),
    help="Weighting of the fits: pairs or speckle; default: that of FIT.",
)  # fmt: skip
@click.option(
    "--counts", type=float,
    help="Mean counts per pixel and frame, if the residuals do not determine them.",
)  # fmt: skip
@click.option(
    "--pixels",
    type=float,
    help="Independent pixels per bin, if the residuals do not determine them.",
)
@click.option(
    "--picture", type=LOCAL_PATH, help="Plot the pulls, (value - truth) / error, to this PNG file."
)
@STORE
@config_parameters(CLUSTER)
@AS_JSON
def toys(
    folder: AnyPath,
    number: int,
    seed: int,
    weighting: str | None,
    counts: float | None,
    pixels: float | None,
    picture: Path | None,
    store: AnyPath | None,
    as_json: bool,
    **workers: Any,
) -> None:
    """Simulate scans of photons from the fit in the folder FIT, fit them, and compare the results with their
    true values.

    The table lists bias, scatter divided by error, and how often the intervals contain the truth.
    """
    result = hd.load_result(folder)
    scan = data_of(result, folder, result_upload.WITH_STORE, store)
    source = {"data": [scan.path], "model": result.config["model"]}
    with worker_options.client_of(from_options(source | options_given(workers))) as client:
        found = hd.toys(
            result, scan, n=number, seed=seed, weighting=weighting, counts=counts, pixels=pixels,
            client=client, progress=echo_progress,
        )  # fmt: skip
    if as_json:
        echo_json(found.to_dict())
    else:
        echo(str(found))
    if picture is not None:
        found.plot().savefig(picture)
        echo(f"\nwritten: {in_line(str(picture))}", err=as_json)
