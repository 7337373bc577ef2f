"""homodyne-dask cluster: a scheduler that outlives one fit."""

from pathlib import Path
from typing import Any

import click

from homodyne_dask.cli.options import jobs_asked

FILE = click.option(
    "--scheduler-file", "file", type=click.Path(path_type=Path),
    help="Default: ~/.homodyne-dask/standing/scheduler.json; its folder holds the key too.",
)  # fmt: skip


@click.group()
def cluster() -> None:
    """Start, look at and stop a scheduler that outlives one fit.

    \b
    homodyne-dask cluster start --site perlmutter --jobs 1:20
    homodyne-dask fit A0123_c2.zarr ... --scheduler-file ~/.homodyne-dask/standing/scheduler.json
    homodyne-dask cluster stop
    """


@cluster.command()
@click.option("--site", default="local", help="Of the jobs; local (default): this machine.")
@click.option("--jobs", default="", help="How many, or least and most: 1:20 (default 1).")
@click.option("--foreground", is_flag=True, help="Stay, as systemd and batch jobs want it.")
@FILE
def start(site: str, jobs: str, foreground: bool, file: Path | None) -> None:
    """Start a scheduler and its workers; they stay until `cluster stop`."""
    from homodyne_dask.cluster.slurm import persistent

    where = _file(file)
    if foreground:
        persistent.serve(site, jobs_asked(jobs), where, lambda there: _tell(there, where))
    else:
        _tell(persistent.start_scheduler(site, jobs, where), where)


@cluster.command()
@FILE
def status(file: Path | None) -> None:
    """Print the scheduler, its workers and what they do."""
    from homodyne_dask.cluster.slurm.persistent import connection_by, read_scheduler_file

    there = read_scheduler_file(_file(file))
    with connection_by(_file(file)) as client:
        known: Any = client.scheduler_info(n_workers=-1)
    workers = list(known["workers"].values())
    tasks = sum(len(worker["metrics"].get("executing", ())) for worker in workers)
    _tell(there, _file(file))
    click.echo(
        f"{len(workers)} workers with {sum(w['nthreads'] for w in workers)} threads, {tasks} at work"
    )
    for address, worker in known["workers"].items():
        click.echo(f"  {_line(address, worker)}")


@cluster.command()
@FILE
def stop(file: Path | None) -> None:
    """End the scheduler, its workers and their jobs."""
    from homodyne_dask.cluster.slurm import persistent

    persistent.stop_scheduler(_file(file))
    click.echo("stopped")


def _file(given: Path | None) -> Path:
    return (given or Path("~/.homodyne-dask/standing/scheduler.json").expanduser()).absolute()


def _line(address: str, worker: dict[str, Any]) -> str:
    from homodyne_dask.sweep.plan import size

    used = size(worker["metrics"].get("memory", 0))
    return f"{worker['name']}  {address}  {worker['nthreads']} threads  {used} in use"


def _tell(there: Any, file: Path) -> None:
    from urllib.parse import urlsplit

    page = urlsplit(there.dashboard)
    click.echo(f"scheduler  {there.address} on {there.host}, site {there.site}")
    click.echo(f"use it     homodyne-dask fit ... --scheduler-file {file}")
    click.echo(
        f"dashboard  {there.dashboard}; from elsewhere: "
        f"ssh -L {page.port}:127.0.0.1:{page.port} {there.host}"
    )
