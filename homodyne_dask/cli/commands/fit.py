"""homodyne-dask fit: a store becomes parameters with errors, in a folder."""

from typing import Any

import click

from homodyne_dask.cli import shared_options as shared
from homodyne_dask.cli.fit_config import FitConfig
from homodyne_dask.cli.printing import printing


@click.command(cls=shared.SectionCommand)
@click.argument("sources", metavar="STORE... | FIT.yaml", nargs=-1, required=True)
@shared.options_of(FitConfig, [name for name in FitConfig.model_fields if name != "data"])
@shared.options_of(shared.RunOptions)
def fit(sources: tuple[str, ...], **options: Any) -> None:
    """Fit a model to each STORE, or run the fit of FIT.yaml, and write the result to A0123_fit/.

    With several stores, or with --over, a fit that fails does not stop the others;
    scans.csv and scans.html, or series.csv and series.html, list all fits.

    Exit status: 0 converged, 2 bad input, 3 ended without converging, 4 with --strict where the model does
    not describe the data, 130 interrupted.
    """
    run_options = shared.RunOptions(
        **shared.given_of({name: options.pop(name) for name in shared.RunOptions.model_fields})
    )
    context = click.get_current_context()
    context.with_resource(printing(to_stderr=run_options.as_json))
    config = shared.configuration(sources, options)
    from homodyne_dask.cli.run_fits import run_fits  # lazy: it loads xarray and all of a fit

    context.exit(run_fits(config, run_options))
