"""homodyne-dask plan: what a fit would read and keep in memory, and the time of a pass."""

from typing import Any

import click

from homodyne_dask.cli.options import (
    MODEL,
    SELECTION,
    WORKERS,
    configuration,
    of_fit,
    selected,
    with_options,
)
from homodyne_dask.cli.printing import echo
from homodyne_dask.fitting.options import plan_options


@click.command()
@click.argument("source")
@with_options(
    MODEL,
    *of_fit(plan_options()),
    *SELECTION,
    *WORKERS,
    click.option("--no-measure", is_flag=True, help="Read nothing and start no workers."),
)
def plan(source: str, no_measure: bool, **options: Any) -> None:
    """Print pairs, tiles, bytes and memory of a fit of SOURCE, and the time of a pass from a sample.

    SOURCE is a store, or a YAML file. The sample takes some seconds, most of them to start the workers.
    """
    config = configuration((source,), options)
    from homodyne_dask.cli.worker_options import client_of
    from homodyne_dask.fitting.fit import plan as plan_of
    from homodyne_dask.fitting.forecast import forecast
    from homodyne_dask.models import model_named

    model = model_named(config.model)
    with client_of(config) as client:
        for store in config.data:
            scan = selected(config, store)
            given = config.plan_options()
            echo(str(plan_of(scan, model, **given, client=client)))
            if not no_measure:
                echo(str(forecast(scan, model, **given, client=client)))
