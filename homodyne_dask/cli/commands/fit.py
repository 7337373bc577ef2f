"""homodyne-dask fit: a store becomes parameters with errors, in a folder."""

from typing import Any

import click

from homodyne_dask.cli.fit_config import FitConfig
from homodyne_dask.cli.printing import printing
from homodyne_dask.cli.shared_options import (
    PictureFormat,
    SectionCommand,
    configuration,
    given_of,
    options_of,
)
from homodyne_dask.request.options import COMMON, OUTPUT, Options, option


class FitOutput(Options):
    """How one run of a fit goes, and what it writes beside the result."""

    resume: bool = option(False, OUTPUT, use=COMMON)
    """Resume an interrupted fit from its checkpoint, if there is one; otherwise start a new fit."""
    pictures: PictureFormat = option(None, OUTPUT, use=COMMON)
    """Format of the figures of each fit, which are also drawn as PNG, or none (--no-pictures); default: png
    if there are at most 8 fits, otherwise none. `show FOLDER --pictures` draws them later."""
    nexus: bool = option(False, OUTPUT)
    """Also write result.nx.h5, a NeXus file (NXxpcs, NXfit)."""
    as_json: bool = option(False, OUTPUT, use=COMMON, names=("--json",))
    """Print a JSON object for each fit; everything else goes to stderr."""


@click.command(cls=SectionCommand)
@click.argument("sources", metavar="STORE... | FIT.yaml", nargs=-1, required=True)
@options_of(FitConfig, [name for name in FitConfig.model_fields if name != "data"])
@options_of(FitOutput)
def fit(sources: tuple[str, ...], **options: Any) -> None:
    """Fit a model to each STORE, or run the fit of FIT.yaml, and write the result to A0123_fit/.

    With several stores, or with --over, a fit that fails does not stop the others;
    scans.csv and scans.html, or series.csv and series.html, list all fits.

    Exit status: 0 converged, 2 bad input, 3 ended without converging, 130 interrupted.
    """
    chosen = FitOutput(**given_of({name: options.pop(name) for name in FitOutput.model_fields}))
    context = click.get_current_context()
    context.with_resource(printing(to_stderr=chosen.as_json))
    config = configuration(sources, options)
    from homodyne_dask.cli.run_fits import run_fits  # with xarray and all of a fit

    context.exit(run_fits(config, chosen))
