"""homodyne-dask plan: what a fit would read and hold."""

from contextlib import nullcontext
from typing import Any

import click

from homodyne_dask.cli.options import PROBLEM, SELECTION, configuration, selected, with_options


@click.command()
@click.argument("source")
@with_options(*PROBLEM, *SELECTION)
def plan(source: str, **options: Any) -> None:
    """Print pairs, tiles, bytes per pass and memory of a fit of SOURCE: a store, or a YAML file."""
    config = configuration((source,), options)
    from homodyne_dask.cluster import connection
    from homodyne_dask.fitting import plan as plan_of
    from homodyne_dask.models import model_named

    model = model_named(config.model)
    with connection(config.scheduler) if config.scheduler else nullcontext() as client:
        for store in config.data:
            scan = selected(config, store)
            click.echo(str(plan_of(scan, model, **config.plan_options(), client=client)))
