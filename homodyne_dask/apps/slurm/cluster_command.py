"""The commands of clusters: `cluster` (a persistent scheduler), `submit` (a fit as a job) and `preflight`."""

import json
import os
import socket
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import click
import dask.config
import psutil
from distributed import Status

import homodyne_dask as hd
from homodyne_dask.apps.slurm import jobs as batch
from homodyne_dask.cli import shared_options as shared
from homodyne_dask.cli.commands.plan import plan_values
from homodyne_dask.cli.fit_config import FitConfig, read_config
from homodyne_dask.cli.path_arguments import LOCAL_PATH
from homodyne_dask.cli.printing import AS_JSON, echo, echo_json, printing
from homodyne_dask.cli.shared_options import options_of
from homodyne_dask.cli.worker_options import check_worker_options, longest_task_of
from homodyne_dask.cluster import connect
from homodyne_dask.cluster.connect import connect_by_file, read_scheduler_file
from homodyne_dask.cluster.local import answered, known_workers, local_cluster
from homodyne_dask.cluster.workers import LONGEST_TASK_SECONDS
from homodyne_dask.errors import ClusterError, OptionError
from homodyne_dask.machine.running_code import code_digest
from homodyne_dask.models import model_named
from homodyne_dask.store.files import absolute, working_folder, write_atomic
from homodyne_dask.sweep import preflight as worker_checks
from homodyne_dask.text import counted

LOCAL = "local"  # the site of workers on this machine
PATIENCE = 60.0  # seconds that a persistent scheduler may take to end with its jobs
FILE = click.option(
    "--scheduler-file", "file", type=LOCAL_PATH, callback=lambda _, __, file: absolute(file),
    default=lambda: Path("~/.homodyne-dask/standing/scheduler.json").expanduser(),
    help="File of the scheduler, beside its key; default: ~/.homodyne-dask/standing/scheduler.json.",
)  # fmt: skip
KEY = click.option("--key", type=click.Choice(["none"]), help="none for a scheduler without TLS.")


@click.group()
def cluster() -> None:
    """Start, inspect and stop a persistent scheduler that several fits can share.

    \b
    homodyne-dask cluster start --site perlmutter --jobs 1:20
    homodyne-dask fit A0123_c2.zarr ... --scheduler-file ~/.homodyne-dask/standing/scheduler.json
    homodyne-dask cluster stop
    """


@cluster.command("start")
@click.option("--site", default=LOCAL, help="Site of the workers; default: local (this machine).")
@click.option("--jobs", help="Number of jobs, or minimum and maximum, such as 1:20; default: 1.")
@click.option("--foreground", is_flag=True, expose_value=False, help="What it always does.")
@FILE
def cluster_start(site: str, jobs: str | None, file: Path) -> None:
    """Run a scheduler and its workers in the foreground, until `cluster stop` or Ctrl-C.

    To run it in the background: `nohup homodyne-dask cluster start ... &`. Its file exists while it can be
    used.
    """
    config = shared.workers_of_options("", {"jobs": jobs, "site": None if site == LOCAL else site})
    check_worker_options(config)
    if file.exists():
        host, process = map(read_scheduler_file(file).get, ("host", "pid"))
        if host != socket.gethostname() or psutil.pid_exists(process or 0):
            raise ClusterError(
                f"{file} belongs to a scheduler on {host} (process {process}): run `homodyne-dask cluster "
                f"stop --scheduler-file {file}`, or, if that machine is no longer running, remove the file"
            )
        file.unlink()  # of one that was killed
    code_digest()  # of what is loaded now: fits of other code are refused later
    with ExitStack() as resources:
        resources.callback(file.unlink, missing_ok=True)  # last, when its jobs have ended
        if config.site is None:
            security = resources.enter_context(connect.new_key(file.parent))
            client = resources.enter_context(local_cluster(security=security))
        else:
            starting = batch.slurm_cluster(
                config.site, 1 if config.jobs is None else config.jobs, folder=file.parent
            )
            client = resources.enter_context(starting).get_client()
            resources.enter_context(connect.closing_logged(client))
        place = {"host": socket.gethostname(), "pid": os.getpid()}
        place["dashboard"] = connect.dashboard_of(client)
        write_atomic(file, json.dumps(client.scheduler_info(n_workers=0) | place) + "\n")
        _print_scheduler(file)
        scheduler = cast(Any, client.cluster).scheduler
        while scheduler.status is Status.running:
            time.sleep(0.2)


@cluster.command("status")
@FILE
@KEY
@AS_JSON
def cluster_status(file: Path, key: str | None, as_json: bool) -> None:
    """Print the scheduler, its workers and the number of running tasks."""
    with connect_by_file(file, key) as client:
        workers = answered(client, known_workers, client)
    rows = [
        {
            "name": str(worker["name"]),
            "address": address,
            "threads": worker["nthreads"],
            "memory_bytes": worker["metrics"].get("memory", 0),
            "tasks_running": len(worker["metrics"].get("executing", ())),
        }
        for address, worker in workers.items()
    ]
    if as_json:
        scheduler = read_scheduler_file(file)
        named = {key: scheduler.get(key) for key in ("address", "dashboard", "host", "pid")}
        echo_json({"scheduler_file": str(file), **named, "workers": rows})
        return
    _print_scheduler(file)
    threads, tasks = (sum(row[key] for row in rows) for key in ("threads", "tasks_running"))
    echo(f"workers    {len(rows)}, with {counted(threads, 'thread')}; running tasks: {tasks}")


@cluster.command("stop")
@FILE
@KEY
def cluster_stop(file: Path, key: str | None) -> None:
    """Stop the scheduler and its workers, and cancel their jobs."""
    # a client that is shut down stays the default of Dask
    with dask.config.set(scheduler=None), connect_by_file(file, key) as client:
        client.shutdown()
    until = time.monotonic() + PATIENCE
    while file.exists():
        if time.monotonic() > until:
            raise ClusterError(f"the scheduler of {file} did not stop within {PATIENCE:g} s")
        time.sleep(0.05)
    echo("stopped")


def _print_scheduler(file: Path) -> None:
    scheduler = read_scheduler_file(file)
    page, host = scheduler.get("dashboard"), scheduler.get("host", "HOST")
    echo(f"scheduler  {scheduler['address']} on {host}")
    echo(f"to use it  homodyne-dask fit ... --scheduler-file {file}")
    if page:
        port = urlsplit(page).port
        echo(f"dashboard  {page}; from another machine: ssh -L {port}:127.0.0.1:{port} {host}")


@click.command()
@click.argument("config", metavar="FIT.yaml", type=LOCAL_PATH)
@options_of(FitConfig, ["site", "jobs"])
@click.option("--dry-run", is_flag=True, help="Print the scripts of all jobs and submit nothing.")
@AS_JSON
def submit(config: Path, site: str | None, jobs: str | None, dry_run: bool, as_json: bool) -> None:
    """Submit the fit of FIT.yaml as a batch job, which in turn submits the jobs of its workers.

    Before the end of its walltime, the job writes a checkpoint and queues itself again to continue
    from it. After a crash, submit the fit again: it continues from its checkpoint.
    """
    if site is None:
        raise OptionError("--site is missing: give the name of a site")
    settings = read_config(config, shared.given_of({"site": site, "jobs": jobs}))
    check_worker_options(settings)
    for store in settings.data:
        if isinstance(store, Path) and not store.exists():
            raise OptionError(f"{config}: data = {store} does not exist")
    batch.bounds(1 if settings.jobs is None else settings.jobs)
    values_given = batch.site_named(site)
    words = ["fit", str(absolute(config)), "--site", site, "--resume"]
    words += ["--jobs", jobs] if jobs else []
    driver = batch.driver_script(values_given, words, working_folder())
    if dry_run:
        workers = batch.script(values_given, longest_task_of(settings))
        echo(f"{driver}\n# ---- the jobs of the workers, which that job submits\n{workers}")
        for name, option in (("account", "--account"), ("queue", "--partition")):
            if not values_given[name]:
                echo(
                    f"note: site {site} gives no {name} ({option}): add `{name}` to it in sites.yaml if your "
                    f"cluster requires it (`homodyne-dask preflight --site template` prints all settings)",
                    err=True,
                )
        return
    values_given["log-directory"].mkdir(parents=True, exist_ok=True)
    batch.sbatch("--test-only", batch.script(values_given, longest_task_of(settings)))
    number = batch.submit_script(driver)
    output = f"{values_given['log-directory']}/{values_given['name']}-driver-{number}.out"
    if as_json:
        echo_json({"job": number, "output": output})
    else:
        echo(f"job {number} submitted; its output: {output}")
        echo(f"state: squeue -j {number}; cancel: scancel {number}")


@click.command()
@click.argument("sources", metavar="[STORE... | FIT.yaml]", nargs=-1)
@click.option("--site", help="Site to check, or template.")
@click.option("--scheduler-file", "file", type=LOCAL_PATH, help="File of the scheduler to check.")
@click.option("--model", help="Model to plan for: laminar_flow (default), static, ...")
@AS_JSON
def preflight(
    sources: tuple[str, ...], site: str | None, file: Path | None, model: str | None, as_json: bool
) -> None:
    """Check the requirements of a fit before it runs, without submitting a job.

    With --site, the command prints the job script, the response of sbatch, versions and folders. With
    --scheduler-file, it checks that every worker can read the stores and has the versions and settings
    that a fit requires. --site template prints all settings of a site, for sites.yaml.
    """
    if site == batch.TEMPLATE:
        echo((batch.FOLDER / f"{site}.yaml").read_text(encoding="utf-8").rstrip("\n"))
        return
    if not (site or sources):
        raise OptionError("nothing to check: give --site, or stores with --scheduler-file")
    if not sources and (model or file):
        raise OptionError("--model and --scheduler-file apply to stores: give them, or only --site")
    config = _config_of(sources, model) if sources else None
    results: dict[str, Any] = {}
    with printing(to_stderr=as_json):
        if site:
            task = LONGEST_TASK_SECONDS if config is None else longest_task_of(config)
            results |= {"site": site} | _check_site(batch.site_named(site), task)
        if config:
            results["stores"] = _check_stores(config, file)
    if as_json:
        echo_json(results)


def _config_of(sources: tuple[str, ...], model: str | None) -> FitConfig:
    in_file = any(source.endswith((".yaml", ".yml")) for source in sources)
    return shared.configuration(sources, {"model": model or (None if in_file else "laminar_flow")})


def _check_site(site: batch.Site, task: float) -> dict[str, str]:
    script = batch.script(site, task).strip()
    versions = worker_checks.package_versions().items()
    facts = {
        "versions": ", ".join(f"{package} {version}" for package, version in versions),
        "keys": str(site["shared-temp-directory"]),
        "logs": str(site["log-directory"]),
    }
    if site["batch"] == "slurm":
        facts["sbatch says"] = batch.sbatch("--test-only", script)
    echo("\n".join([script, "", *(f"{name:<18} {text}" for name, text in facts.items())]))
    return {"script": script, **facts}


def _check_stores(config: FitConfig, file: Path | None) -> dict[str, Any]:
    plans: dict[str, Any] = {}
    with connect_by_file(file) if file else nullcontext() as client:
        for store in config.data:
            scan = shared.selected(config, store)
            plan = hd.plan(scan, model_named(config.model), client=client, **config.plan_options())
            echo(str(plan))
            plans[str(store)] = plan_values(plan) | {"workers_examined": client is not None}
            if client is not None:
                worker_checks.preflight(client, scan, plan)
                echo(f"workers: all can read {store.name} and meet the requirements of a fit")
    return plans
