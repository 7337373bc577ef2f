"""homodyne-dask fit: a store becomes parameters with errors, in a folder."""

from typing import Any

import click

from homodyne_dask.cli.fit_config import config_options
from homodyne_dask.cli.printing import text_to_stderr
from homodyne_dask.cli.shared_options import (
    SectionCommand,
    SectionOption,
    config_parameters,
    configuration,
)
from homodyne_dask.request.options import OUTPUT

_OF_OUTPUT: dict[str, Any] = {"cls": SectionOption, "section": OUTPUT}


@click.command(cls=SectionCommand)
@click.argument("sources", metavar="STORE... | FIT.yaml", nargs=-1, required=True)
@config_parameters(name for name in config_options() if name != "data")
@click.option(
    "--resume", is_flag=True, **_OF_OUTPUT,
    help="Resume an interrupted fit from its checkpoint, if there is one; otherwise start a new fit.",
)  # fmt: skip
@click.option(
    "--pictures/--no-pictures", default=None, **_OF_OUTPUT,
    help="Whether to draw the figures of each fit; default: only if there are at most 8 fits. `show FOLDER "
    "--pictures` draws them later.",
)  # fmt: skip
@click.option(
    "--nexus", is_flag=True, common=False, **_OF_OUTPUT,
    help="Also write result.nx.h5, a NeXus file (NXxpcs, NXfit).",
)  # fmt: skip
@click.option(
    "--json", "as_json", is_flag=True, **_OF_OUTPUT,
    help="Print a JSON object for each fit; everything else goes to stderr.",
)  # fmt: skip
def fit(
    sources: tuple[str, ...],
    resume: bool,
    pictures: bool | None,
    nexus: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Fit a model to each STORE, or run the fit of FIT.yaml, and write the result to A0123_fit/.

    With several stores, or with --over, a fit that fails does not stop the others;
    scans.csv and scans.html, or series.csv and series.html, list all fits.

    Exit status: 0 converged, 2 bad input, 3 ended without converging, 130 interrupted.
    """
    context = click.get_current_context()
    context.with_resource(text_to_stderr(as_json))
    config = configuration(sources, options)
    from homodyne_dask.cli.run_fits import RunOptions, run_fits  # with xarray and all of a fit

    chosen = RunOptions(resume, pictures, nexus, as_json)
    context.exit(run_fits(config, chosen))
