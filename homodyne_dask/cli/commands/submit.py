"""homodyne-dask submit: a fit as a batch job of its own."""

from pathlib import Path
from typing import Any

import click

from homodyne_dask.errors import OptionError


@click.command()
@click.argument("config", metavar="FIT.yaml", type=click.Path(path_type=Path))
@click.option("--site", required=True, help="Where: generic, perlmutter, esrf, or one of your own.")
@click.option("--jobs", default="", help="Of workers: how many, or least and most: 1:20.")
@click.option("--dry-run", is_flag=True, help="Print the job script and send nothing.")
def submit(config: Path, site: str, jobs: str, dry_run: bool) -> None:
    """Run the fit of FIT.yaml as a batch job that starts the jobs of its workers itself.

    Before its walltime it stops with a checkpoint, goes back to the queue and goes on there. After a
    crash, submit again: it goes on from the checkpoint.
    """
    from homodyne_dask.cli.config import read_config
    from homodyne_dask.cli.worker_options import check_worker_options, longest_task_of
    from homodyne_dask.cluster.slurm.driver import driver_script, submit_fit
    from homodyne_dask.cluster.slurm.sites import site_named

    read = read_config(config)
    if read.scheduler or read.scheduler_file:
        raise OptionError(f"{config} names a scheduler: take it out, submit starts its own")
    check_worker_options(read.model_copy(update={"site": site}))
    for store in read.data:
        if not store.exists():
            raise OptionError(f"{config}: data: {store} does not exist")
    chosen: Any = site_named(site)
    words = ["fit", str(config.absolute()), "--site", site, "--go-on"]
    words += ["--jobs", jobs] if jobs else []
    if dry_run:
        click.echo(driver_script(chosen, words, Path.cwd()), nl=False)
        return
    number = submit_fit(chosen, words, Path.cwd(), longest_task_of(read))
    click.echo(
        f"job {number} submitted; what it says: {chosen.logs}/{chosen['name']}-driver-{number}.out"
    )
    click.echo(f"look: squeue -j {number}; end it: scancel {number}")
