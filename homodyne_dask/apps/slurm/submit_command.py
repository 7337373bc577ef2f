"""Run a fit as a batch job."""

from pathlib import Path

import click

from homodyne_dask.apps.slurm import jobs as batch
from homodyne_dask.apps.slurm import sites
from homodyne_dask.cli.fit_config import FitConfig, read_config
from homodyne_dask.cli.path_arguments import LOCAL_PATH
from homodyne_dask.cli.printing import AS_JSON, echo, echo_json
from homodyne_dask.cli.shared_options import options_of
from homodyne_dask.cli.worker_options import check_worker_options, longest_task_of
from homodyne_dask.errors import OptionError
from homodyne_dask.store.files import absolute, working_folder


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
    words = ["fit", str(absolute(config)), "--site", site, "--resume"]
    words += ["--jobs", jobs] if jobs else []
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
