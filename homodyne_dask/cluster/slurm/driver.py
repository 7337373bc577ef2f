"""The job that runs a fit: its script, and the tests by SLURM before it is submitted."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from dask.utils import parse_bytes

from homodyne_dask.cluster.slurm import queue
from homodyne_dask.cluster.slurm.jobs import environment, script
from homodyne_dask.cluster.slurm.sites import FOLDER, Site, walltime_seconds
from homodyne_dask.errors import OptionError
from homodyne_dask.store.processes import python_command

TEMPLATE = FOLDER / "driver.sbatch"


def driver_script(site: Site, words: Sequence[str], folder: Path) -> str:
    """Return the script of a job that runs `homodyne-dask WORDS` in a folder.

    Raises OptionError for a site without SLURM.
    """
    if site["batch"] != "slurm":
        raise OptionError(
            f"submit is for SLURM, and site {site.name} has {site['batch']}: run `homodyne-dask fit "
            f"--site {site.name}` in a job of your own"
        )
    driver = site["driver"]
    directives = [*driver["job-extra-directives"]]
    for option, value in (
        ("--partition", driver["queue"] or site["queue"]),
        ("--account", site["account"]),
    ):
        directives += [f"{option}={value}"] if value else []
    return TEMPLATE.read_text().format(
        name=site["name"],
        logs=site.logs,
        notice=driver["notice"],
        cores=driver["cores"],
        memory=f"{parse_bytes(driver['memory']) // 2**20}M",
        walltime=driver["walltime"],
        seconds=f"{walltime_seconds(driver['walltime'], 'driver.walltime'):.0f}",
        directives="\n".join(f"#SBATCH {line}" for line in directives),
        prologue="\n".join([*site["job-script-prologue"], *environment(site, driver["cores"])]),
        folder=shlex.quote(str(folder)),
        command=shlex.join(python_command("-m", "homodyne_dask.cli", *words)),
    )


def submit_fit(site: Site, words: Sequence[str], folder: Path, task: float) -> str:
    """Submit the job that runs `homodyne-dask WORDS` in a folder; return its number.

    task: seconds that a task of its workers may take. Raises ClusterError with sbatch's words where
    it, or the jobs of its workers, are refused.
    """
    driver = driver_script(site, words, folder)
    site.logs.mkdir(parents=True, exist_ok=True)
    queue.probe(script(site, site.shared / "key", task))
    queue.probe(driver)
    return queue.submit_script(driver)
