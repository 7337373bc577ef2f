"""Start, inspect and stop a persistent scheduler: a process found through a file beside its key."""

import json
import os
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import click
import dask.config
import psutil
from distributed import Client, Status

from homodyne_dask.apps.slurm.jobs import slurm_cluster
from homodyne_dask.cli.path_arguments import LOCAL_PATH
from homodyne_dask.cli.printing import AS_JSON, echo, echo_json
from homodyne_dask.cli.shared_options import workers_of_options
from homodyne_dask.cluster.connect import (
    closing_logged,
    connect_by_file,
    dashboard_of,
    new_key,
    read_scheduler_file,
)
from homodyne_dask.cluster.local import answered, known_workers, local_cluster
from homodyne_dask.errors import ClusterError
from homodyne_dask.machine.private_folder import make_private
from homodyne_dask.machine.running_code import code_digest, python_command
from homodyne_dask.store.files import absolute, write_atomic
from homodyne_dask.text import counted, size

LOCAL = "local"
"""The name of the site for workers on this machine."""
PATIENCE = 60.0
"""Seconds that a persistent scheduler may take to start, or to end with its jobs."""

FILE = click.option(
    "--scheduler-file", "file", type=LOCAL_PATH,
    default=lambda: Path("~/.homodyne-dask/standing/scheduler.json").expanduser(),
    callback=lambda _, __, file: absolute(file),
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
    "--site", default=LOCAL, help="Site where the workers run; default: local (this machine)."
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
def cluster_start(site: str, jobs: str, foreground: bool, file: Path) -> None:
    """Start a scheduler and its workers; they run until `cluster stop`."""
    _refuse_second(file)
    if foreground:
        _serve(site, workers_of_options("", {"jobs": jobs or 1}).jobs or 1, file)
        return
    make_private(file.parent)
    log = file.with_suffix(".log")
    words = ["cluster", "start", "--foreground", "--site", site, "--scheduler-file", str(file)]
    command = python_command("-m", "homodyne_dask.cli", *words, *(["--jobs", jobs] if jobs else []))
    log.unlink(missing_ok=True)
    with log.open("x") as out:
        streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
        process = subprocess.Popen(command, **streams, start_new_session=True)
    if not _wait(lambda: file.exists() or process.poll() is not None):
        process.terminate()
        raise ClusterError(f"the scheduler did not start within {PATIENCE:g} s: see {log}")
    if not file.exists():
        last = (log.read_text().strip().splitlines() or ["it wrote nothing"])[-1]
        raise ClusterError(last.removeprefix("error: "))
    _print_scheduler(file)


def _serve(site: str, jobs: int | tuple[int, int], file: Path) -> None:
    """Run a persistent scheduler until it is stopped; `file` exists while it can be used."""
    code_digest()  # of what is loaded now: fits of other code are refused later
    with ExitStack() as held:
        held.callback(file.unlink, missing_ok=True)  # last, when its jobs have ended
        if site == LOCAL:
            security = held.enter_context(new_key(file.parent))
            client: Client = held.enter_context(local_cluster(security=security))
        else:
            made = held.enter_context(slurm_cluster(site, jobs, folder=file.parent))
            client = held.enter_context(closing_logged(made.get_client()))
        here = {"host": socket.gethostname(), "pid": os.getpid(), "dashboard": dashboard_of(client)}
        write_atomic(file, json.dumps(client.scheduler_info(n_workers=0) | here) + "\n")
        _print_scheduler(file)
        scheduler = cast(Any, client.cluster).scheduler
        while scheduler.status is Status.running:
            time.sleep(0.2)


def _refuse_second(file: Path) -> None:
    """Raise ClusterError where the file belongs to a scheduler that runs; that of a killed one is removed."""
    if not file.exists():
        return
    other = read_scheduler_file(file)
    host, process = other.get("host"), other.get("pid")
    if host == socket.gethostname() and not psutil.pid_exists(process or 0):
        file.unlink()
        return
    raise ClusterError(
        f"{file} belongs to a scheduler on {host} (process {process}): run `homodyne-dask cluster stop "
        f"--scheduler-file {file}`, or, if that machine is no longer running, remove the file"
    )


@cluster.command("status")
@FILE
@KEY
@AS_JSON
def cluster_status(file: Path, key: str | None, as_json: bool) -> None:
    """Print the scheduler, its workers and the number of running tasks."""
    with connect_by_file(file, key) as client:
        rows = [
            {
                "name": str(worker["name"]),
                "address": address,
                "threads": worker["nthreads"],
                "memory_bytes": worker["metrics"].get("memory", 0),
                "tasks_running": len(worker["metrics"].get("executing", ())),
            }
            for address, worker in answered(client, known_workers, client).items()
        ]
    if as_json:
        known = read_scheduler_file(file)
        named = {key: known.get(key) for key in ("address", "dashboard", "host", "pid")}
        echo_json({"scheduler_file": str(file), **named, "workers": rows})
        return
    _print_scheduler(file)
    threads, tasks = (sum(row[key] for row in rows) for key in ("threads", "tasks_running"))
    echo(f"workers    {len(rows)}, with {counted(threads, 'thread')}; running tasks: {tasks}")
    for row in rows:
        threads, used = counted(row["threads"], "thread"), size(row["memory_bytes"])
        echo(f"  {row['name']}  {row['address']}  {threads}  {used} in use")


@cluster.command("stop")
@FILE
@KEY
def cluster_stop(file: Path, key: str | None) -> None:
    """Stop the scheduler and its workers, and cancel their jobs."""
    # a client that is shut down stays the default of Dask
    with dask.config.set(scheduler=None), connect_by_file(file, key) as client:
        client.shutdown()
    if not _wait(lambda: not file.exists()):
        raise ClusterError(f"the scheduler of {file} did not stop within {PATIENCE:g} s")
    echo("stopped")


def _wait(reached: Callable[[], bool]) -> bool:
    until = time.monotonic() + PATIENCE
    while not (is_reached := reached()) and time.monotonic() < until:
        time.sleep(0.05)
    return is_reached


def _print_scheduler(file: Path) -> None:
    known = read_scheduler_file(file)
    page, host = known.get("dashboard", ""), known.get("host", "HOST")
    echo(f"scheduler  {known['address']} on {host}")
    echo(f"to use it  homodyne-dask fit ... --scheduler-file {file}")
    port = urlsplit(page).port
    echo(f"dashboard  {page}; from another machine: ssh -L {port}:127.0.0.1:{port} {host}")
