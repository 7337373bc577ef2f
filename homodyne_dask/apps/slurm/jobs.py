"""The jobs of a site: the options of dask-jobqueue for workers, the job that runs a fit, and their scripts.

A worker with a lifetime leaves the cluster before its job's walltime, passes its tasks on, and a new
job replaces it. The end of a lifetime interrupts the task being computed: a lifetime must be many times
as long as a task, and workers must not all leave at once.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dask.utils import parse_bytes, parse_timedelta

from homodyne_dask.apps.slurm.sites import (
    FOLDER,
    Site,
    check_script,
    default_interface,
    submit_script,
    walltime_seconds,
)
from homodyne_dask.cluster import connect as tls
from homodyne_dask.cluster import scratch
from homodyne_dask.cluster.settings import monitor_environment, worker_environment
from homodyne_dask.cluster.workers import LONGEST_TASK_SECONDS
from homodyne_dask.errors import OptionError, require_package
from homodyne_dask.machine.running_code import SAFE_PATH, python_command

START_SECONDS = 30.0
"""Seconds from the start of a job to its first task, with its libraries on a shared file system."""
CLOSING_SECONDS = 60.0
"""Seconds a worker is given to leave: SLURM looks at walltimes every 30 s."""
STAGGER_SHARE = 0.1
"""Spread of lifetimes as a fraction of the walltime, where that is longer than a new worker takes."""
NANNY_BYTES = 250_000_000
"""Bytes of a job that each worker's nanny takes, with its interpreter."""
_PASSED = (
    "cores processes memory walltime queue account job-extra-directives job-directives-skip shebang"
)
"""Settings that are options of dask-jobqueue."""
TEMPLATE = FOLDER / "driver.sbatch"


def lifetime(walltime: float, task: float, interval: float = 15.0) -> tuple[float, float]:
    """Return the lifetime of workers whose jobs have a walltime, and its largest deviation [s].

    task: seconds that a task may take; interval: after which a job that has ended is replaced.
    Every worker has time for three such tasks at least, and where one leaves another has usually joined
    and computed a task before the next one leaves. Raises OptionError for a walltime too short for that.
    """
    replaced = interval + START_SECONDS + task
    work = replaced + 3 * task + CLOSING_SECONDS
    needed = max(work + replaced, work / (1 - 2 * STAGGER_SHARE))
    if walltime < needed:
        raise OptionError(
            f"a walltime of {walltime:g} s is too short for workers to start, compute tasks of up "
            f"to {task:.2g} s and stop in time: give at least {-(-needed // 60):.0f} minutes"
        )
    stagger = max(STAGGER_SHARE * walltime, replaced / 2)
    return walltime - CLOSING_SECONDS - task - stagger, stagger


def worker_memory(site: Site) -> int:
    """Return the bytes each worker of a job may use."""
    return site.memory // site["processes"] - NANNY_BYTES


def job_options(site: Site, task: float = LONGEST_TASK_SECONDS) -> dict[str, Any]:
    """Return the options of dask-jobqueue's jobs for a site, but for its security.

    task: seconds that a task may take (`lifetime`).
    """
    options = {key.replace("-", "_"): site[key] for key in _PASSED.split()}
    options |= {"job_name": site["name"], "death_timeout": site["death-timeout"]}
    if site["batch"] == "slurm":
        # without it dask-jobqueue rounds up to whole GiB
        memory = site["job-mem"] or f"{site.memory // 2**20}M"
        options |= {"job_cpu": site["job-cpu"], "job_mem": memory}
    else:
        options |= {"resource_spec": site["resource-spec"]}
    walltime = walltime_seconds(site["walltime"], "walltime")
    seconds, stagger = lifetime(walltime, task, parse_timedelta(site["queue-interval"]))
    return options | {
        # the worker is the batch process, so that it hears SIGTERM
        "python": site["python"] or f"exec {shlex.join(python_command())}",
        "interface": site["interface"] or default_interface(),
        "local_directory": f'"${scratch.SCRATCH}"',
        "log_directory": str(site.logs),
        "job_script_prologue": [
            *site["job-script-prologue"],
            *environment(site["cores"] // site["processes"]),
            *scratch.script_lines(site["local-directory"]),
        ],
        "worker_extra_args": [
            *("--memory-limit", str(worker_memory(site))),
            *("--lifetime", f"{seconds:.0f}s", "--lifetime-stagger", f"{stagger:.0f}s"),
            *("--no-dashboard", "--dashboard-address", "127.0.0.1:0"),
            *("--preload-nanny", scratch.__name__),
            *site["worker-extra-args"],
        ],
    }


def cluster_class(site: Site) -> Any:
    """Return the class of the clusters of a site; raises PackageError where dask-jobqueue is missing."""
    require_package("a site", "dask_jobqueue", "slurm")
    from homodyne_dask.apps.slurm.job_clusters import CLUSTERS

    return CLUSTERS[site["batch"]]


def script(site: Site, key: Path, task: float = LONGEST_TASK_SECONDS) -> str:
    """Return the job script of a site, with placeholders for address and name."""
    options = job_options(site, task)
    if site["security"] == "tls":
        options |= {"security": tls.key_at(key), "protocol": "tls://"}
    job = cluster_class(site).job_cls("<scheduler>", name="<worker>", **options)
    return job.job_script()


def environment(threads: int) -> list[str]:
    """Return the lines of a job script that set threads, memory, imports and Dask for its processes."""
    settings = worker_environment(threads) | {"MALLOC_TRIM_THRESHOLD_": "65536"}
    settings |= monitor_environment() | SAFE_PATH
    return [f"export {name}={shlex.quote(value)}" for name, value in settings.items()]


def driver_script(site: Site, words: Sequence[str], folder: Path) -> str:
    """Return the script of a job that runs `homodyne-dask WORDS` in a folder.

    Raises OptionError for a site without SLURM.
    """
    if site["batch"] != "slurm":
        raise OptionError(
            f"submit needs SLURM, but site {site.name} has {site['batch']}: run `homodyne-dask fit "
            f"--site {site.name}` in your own batch job"
        )
    driver = site["driver"]
    chosen = {"partition": driver["queue"] or site["queue"], "account": site["account"]}
    directives = [*driver["job-extra-directives"]]
    directives += [f"--{option}={value}" for option, value in chosen.items() if value]
    return TEMPLATE.read_text().format(
        name=site["name"],
        logs=site.logs,
        notice=driver["notice"],
        cores=driver["cores"],
        memory=f"{parse_bytes(driver['memory']) // 2**20}M",
        walltime=driver["walltime"],
        seconds=f"{walltime_seconds(driver['walltime'], 'driver.walltime'):.0f}",
        directives="\n".join(f"#SBATCH {line}" for line in directives),
        prologue="\n".join([*site["job-script-prologue"], *environment(driver["cores"])]),
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
    check_script(script(site, site.shared / "key", task))
    return submit_script(driver)
