"""homodyne-dask plan: what a fit would read and keep in memory, and about how long a pass takes."""

from typing import TYPE_CHECKING, Any

import click

import homodyne_dask as hd
from homodyne_dask.cli import shared_options as shared
from homodyne_dask.cli.fit_config import FitConfig
from homodyne_dask.cli.printing import AS_JSON, echo, echo_json
from homodyne_dask.cli.worker_options import client_of, workers_are_local
from homodyne_dask.errors import OptionError
from homodyne_dask.models import model_named
from homodyne_dask.request.options import PLAN, FitOptions
from homodyne_dask.store.scan import scan_of_size

if TYPE_CHECKING:
    from homodyne_dask.sweep.plan import Plan


PLANNED = "planned"
_PLANNED = [name for name, option in FitOptions.options().items() if PLAN in option.use]


@click.command(cls=shared.SectionCommand)
@click.argument("source", required=False)
@shared.options_of(FitConfig, ["model", *_PLANNED, *shared.SELECTED, *shared.ELSEWHERE])
@click.option(
    "--workers",
    help="Plan for a hypothetical cluster: the number of workers, optionally with the threads and memory of "
    "each, such as 1000:8:32GB.",
)
@click.option("--bins", type=click.IntRange(min=1), help="Without SOURCE: bins of each scan.")
@click.option("--repeats", type=click.IntRange(min=1), help="Without SOURCE: scans; default: 1.")
@AS_JSON
def plan(
    source: str | None,
    workers: str | None,
    bins: int | None,
    repeats: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Print the size and memory of a fit of SOURCE, and about how long a pass takes.

    SOURCE is a store or a YAML file. No data are read, and no workers are started. Without SOURCE, `plan
    --bins 23 --frames 3000 --repeats 4 --model laminar_flow` plans for a measurement that does not exist yet,
    with one q.
    """
    if source is not None and (bins or repeats):
        raise OptionError(
            "--bins and --repeats plan without data: leave out SOURCE, or these options"
        )
    planned_scan = _scan_without_data(bins, repeats, options) if source is None else None
    config = shared.configuration((source or PLANNED,), options)
    model = model_named(config.model)
    if workers and not workers_are_local(config):
        raise OptionError(
            "--workers plans for a hypothetical cluster: leave out --scheduler, --scheduler-file and --site"
        )
    plan_options = config.plan_options() | {"workers": workers}
    values = {}
    with client_of(config) as client:
        for store in config.data:
            scan = planned_scan or shared.selected(config, store)
            plan_of_store = hd.plan(scan, model, **plan_options, client=client)
            values[str(store)] = plan_values(plan_of_store)
            if not as_json:
                echo(str(plan_of_store))
    if as_json:
        echo_json(values)


def _scan_without_data(bins: int | None, repeats: int | None, options: dict[str, Any]) -> "hd.Scan":
    """Return a scan of a size; its frames are taken out of the options, which else select from a store."""
    if selecting := [n for n in shared.SELECTED if n != "frames" and options.get(n)]:
        raise OptionError(
            f"{selecting[0]} selects from a store, and no SOURCE is given: leave it out"
        )
    return scan_of_size(bins, options.pop("frames"), repeats or 1)


def plan_values(plan: "Plan") -> dict[str, Any]:
    """Return what `plan` prints as values, with units in the names."""
    layout, workers, driver = plan.layout, plan.workers, plan.driver
    values = {"model": plan.model, "bins": plan.bins, "pairs": layout.pairs, "tiles": layout.blocks}
    values |= {"tasks_per_pass": len(plan.tasks), "pass_s": plan.seconds_per_pass}
    values |= {"longest_task_s": plan.longest_task, "bytes_per_pass": layout.bytes_per_pass}
    values |= {"resident": plan.resident, "memory_per_worker_bytes": plan.memory_per_worker}
    values |= {"device": plan.device.name, "device_reason": plan.device.why}
    values |= {"in_this_process": workers.local, "worker_processes": workers.processes}
    values |= {"worker_threads": workers.threads, "driver_memory_bytes": driver.memory}
    return values | {"scheduler_s": driver.seconds}
