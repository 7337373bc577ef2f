"""Start, inspect and stop a persistent scheduler."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from homodyne_dask.apps.slurm import persistent
from homodyne_dask.cli.path_arguments import LOCAL_PATH
from homodyne_dask.cli.printing import AS_JSON, echo, echo_json
from homodyne_dask.cli.shared_options import workers_of_options
from homodyne_dask.cluster.local import answered, known_workers
from homodyne_dask.store.files import absolute
from homodyne_dask.text import counted, size

FILE = click.option(
    "--scheduler-file", "file", type=LOCAL_PATH,
    help="File of the scheduler; default: ~/.homodyne-dask/standing/scheduler.json. Its key is in the same "
    "folder.",
)  # fmt: skip

KEY = click.option(
    "--key", type=click.Choice(["none"]), help="none if TLS is off at this site (`security: none`)."
)


@click.group()
def cluster() -> None:
    """Start, inspect and stop a persistent scheduler that several fits can share.

    \b
    homodyne-dask cluster start --site perlmutter --jobs 1:20
    homodyne-dask fit A0123_c2.zarr ... --scheduler-file ~/.homodyne-dask/standing/scheduler.json
    homodyne-dask cluster stop
    """


@cluster.command("start")
@click.option(
    "--site", default="local", help="Site where the workers run; default: local (this machine)."
)
@click.option(
    "--jobs", default="", help="Number of jobs, or minimum and maximum, such as 1:20; default: 1."
)
@click.option(
    "--foreground",
    is_flag=True,
    help="Stay in the foreground until the scheduler ends (for systemd and batch jobs).",
)
@FILE
def cluster_start(site: str, jobs: str, foreground: bool, file: Path | None) -> None:
    """Start a scheduler and its workers; they run until `cluster stop`."""
    where = _file(file)
    if foreground:
        number = workers_of_options("", {"jobs": jobs or 1}).jobs or 1
        persistent.serve(site, number, where, lambda scheduler: _print_scheduler(scheduler, where))
    else:
        _print_scheduler(persistent.start_scheduler(site, jobs, where), where)


@cluster.command("status")
@FILE
@KEY
@AS_JSON
def cluster_status(file: Path | None, key: str | None, as_json: bool) -> None:
    """Print the scheduler, its workers and the number of running tasks."""
    scheduler = persistent.read_scheduler_file(_file(file))
    with persistent.connection_by(_file(file), key) as client:
        known = answered(client, known_workers, client)
    rows = [_values(address, worker) for address, worker in known.items()]
    if as_json:
        echo_json({"scheduler_file": str(_file(file)), **vars(scheduler), "workers": rows})
        return
    _print_scheduler(scheduler, _file(file))
    threads, tasks = (sum(row[key] for row in rows) for key in ("threads", "tasks_running"))
    echo(f"workers    {len(rows)}, with {counted(threads, 'thread')}; running tasks: {tasks}")
    for row in rows:
        threads, used = counted(row["threads"], "thread"), size(row["memory_bytes"])
        echo(f"  {row['name']}  {row['address']}  {threads}  {used} in use")


@cluster.command("stop")
@FILE
@KEY
def cluster_stop(file: Path | None, key: str | None) -> None:
    """Stop the scheduler and its workers, and cancel their jobs."""
    persistent.stop_scheduler(_file(file), key)
    echo("stopped")


def _file(file: Path | None) -> Path:
    return absolute(file or Path("~/.homodyne-dask/standing/scheduler.json").expanduser())


def _values(address: str, worker: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": str(worker["name"]),
        "address": address,
        "threads": worker["nthreads"],
        "memory_bytes": worker["metrics"].get("memory", 0),
        "tasks_running": len(worker["metrics"].get("executing", ())),
    }


def _print_scheduler(scheduler: Any, file: Path) -> None:
    page = urlsplit(scheduler.dashboard)
    echo(f"scheduler  {scheduler.address} on {scheduler.host}, site {scheduler.site}")
    echo(f"to use it  homodyne-dask fit ... --scheduler-file {file}")
    echo(
        f"dashboard  {scheduler.dashboard}; from another machine: "
        f"ssh -L {page.port}:127.0.0.1:{page.port} {scheduler.host}"
    )
