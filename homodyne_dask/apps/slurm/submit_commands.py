"""Run a fit as a batch job; check a site or a running cluster before a fit."""

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

import homodyne_dask as hd
from homodyne_dask.apps.slurm import jobs as batch
from homodyne_dask.apps.slurm import sites
from homodyne_dask.cli.commands.plan import plan_values
from homodyne_dask.cli.fit_config import FitConfig, read_config
from homodyne_dask.cli.path_arguments import LOCAL_PATH
from homodyne_dask.cli.printing import AS_JSON, echo, echo_json, printing
from homodyne_dask.cli.shared_options import configuration, options_of, selected
from homodyne_dask.cli.worker_options import check_worker_options, longest_task_of
from homodyne_dask.cluster.connect import connect_by_file
from homodyne_dask.cluster.workers import LONGEST_TASK_SECONDS
from homodyne_dask.errors import OptionError
from homodyne_dask.models import model_named
from homodyne_dask.store.files import absolute, working_folder
from homodyne_dask.sweep import preflight as worker_checks


@click.command()
@click.argument("config", metavar="FIT.yaml", type=LOCAL_PATH)
@options_of(FitConfig, ["site", "jobs"])
@click.option("--dry-run", is_flag=True, help="Print the job script and submit nothing.")
@AS_JSON
def submit(config: Path, site: str | None, jobs: str | None, dry_run: bool, as_json: bool) -> None:
    """Submit the fit of FIT.yaml as a batch job, which in turn submits the jobs of its workers.

    Before the end of its walltime, the job writes a checkpoint and queues itself again to continue
    from it. After a crash, submit the fit again: it continues from its checkpoint.
    """
    if site is None:
        raise OptionError("--site is missing: give the name of a site")
    settings = read_config(config)
    if settings.scheduler or settings.scheduler_file:
        raise OptionError(f"{config} names a scheduler: remove it, because submit starts its own")
    check_worker_options(settings.replaced(site=site))
    for store in settings.data:
        if isinstance(store, Path) and not store.exists():
            raise OptionError(f"{config}: data = {store} does not exist")
    chosen = sites.site_named(site)
    more = ["--jobs", jobs] if jobs else []
    words = ["fit", str(absolute(config)), "--site", site, "--resume", *more]
    if dry_run:
        echo(batch.driver_script(chosen, words, working_folder()), nl=False)
        return
    number = batch.submit_fit(chosen, words, working_folder(), longest_task_of(settings))
    output = f"{chosen.logs}/{chosen['name']}-driver-{number}.out"
    if as_json:
        echo_json({"job": number, "output": output})
        return
    echo(f"job {number} submitted; its output: {output}")
    echo(f"state: squeue -j {number}; cancel: scancel {number}")


@click.command()
@click.argument("sources", metavar="[STORE... | FIT.yaml]", nargs=-1)
@click.option("--site", help="Site to check, or template.")
@click.option(
    "--scheduler-file",
    "file",
    type=LOCAL_PATH,
    help="File of the scheduler whose workers to check.",
)
@click.option(
    "--model", default=None, help="Model to plan for: laminar_flow (default), static, ..."
)
@AS_JSON
def preflight(
    sources: tuple[str, ...], site: str | None, file: Path | None, model: str | None, as_json: bool
) -> None:
    """Check the requirements of a fit before it runs, without submitting a job.

    With --site, the command prints the job script, the response of sbatch, versions and folders. With
    --scheduler-file, it checks that every worker can read the stores and has the versions and settings
    that a fit requires. --site template prints all settings of a site, for sites.yaml.
    """
    if site == sites.TEMPLATE:
        echo((sites.FOLDER / f"{site}.yaml").read_text(encoding="utf-8").rstrip("\n"))
        return
    if not (site or sources):
        raise OptionError("nothing to check: give --site, or stores with --scheduler-file")
    click.get_current_context().with_resource(printing(to_stderr=as_json))
    options = {"model": model} if model else {}
    if not any(source.endswith((".yaml", ".yml")) for source in sources):
        options.setdefault("model", "laminar_flow")
    config = configuration(sources, options) if sources else None
    found: dict[str, Any] = {}
    if site:
        job_script, facts = _site_facts(site, config)
        echo(f"{job_script}\n")
        for what, text in facts.items():
            echo(f"{what:<18} {text}")
        found |= {"site": site, "script": job_script, **facts}
    if config:
        found |= {"stores": _check_stores(config, file)}
    if as_json:
        echo_json(found)


def _site_facts(name: str, config: FitConfig | None) -> tuple[str, dict[str, str]]:
    site = sites.site_named(name)
    task = LONGEST_TASK_SECONDS if config is None else longest_task_of(config)
    untried = (
        f"the site {name} has not been tested on the real machine: check the job script, and set what "
        f"differs in sites.yaml (--site template)"
    )
    versions = worker_checks.package_versions().items()
    facts = {} if site["tried"] else {"note": untried}
    facts["versions"] = ", ".join(f"{what} {text}" for what, text in versions)
    facts["interface"] = site["interface"] or sites.default_interface()
    for what, folder in (("keys", site.shared), ("logs", site.logs)):
        there = next(path for path in (folder, *folder.parents) if path.exists())
        may = "writable" if os.access(there, os.W_OK) else f"{there} is not writable"
        facts[what] = f"{folder}, {may}"
    if site["batch"] == "slurm":
        facts["sbatch says"] = sites.check_script(batch.script(site, site.shared / "key", task))
    return batch.script(site, site.shared / "<key>", task).strip(), facts


def _check_stores(config: FitConfig, file: Path | None) -> dict[str, Any]:
    """Print and return the plan of each store; raises ClusterError where workers cannot fit it."""
    found: dict[str, Any] = {}
    with connect_by_file(file) if file else nullcontext() as client:
        for store in config.data:
            scan = selected(config, store)
            work = hd.plan(scan, model_named(config.model), client=client, **config.plan_options())
            echo(str(work))
            found[str(store)] = plan_values(work) | {"workers_examined": client is not None}
            if client is not None:
                worker_checks.preflight(client, scan, work)
                said = f"all can read {store.name} and meet the requirements of a fit"
                echo(f"{'workers':<18} {said}")
    return found
