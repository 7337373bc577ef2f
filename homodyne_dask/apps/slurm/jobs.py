"""The jobs of a site, their scripts, and clusters of dask-jobqueue whose workers are such jobs.

A worker with a lifetime leaves the cluster before its job's walltime, passes its tasks on, and a new
job replaces it. The end of a lifetime interrupts the task being computed: a lifetime must be many times
as long as a task, and workers must not all leave at once.
"""

import asyncio
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from numbers import Real
from pathlib import Path
from secrets import token_hex
from typing import Any

import dask.config
from dask.utils import parse_bytes
from distributed import SpecCluster

from homodyne_dask import errors
from homodyne_dask.apps.slurm import sites
from homodyne_dask.apps.slurm.sites import JOB_NUMBER, Site, walltime_seconds
from homodyne_dask.cluster import connect as tls
from homodyne_dask.cluster import local as scratch
from homodyne_dask.cluster import workers as worker_settings
from homodyne_dask.cluster.workers import LONGEST_TASK_SECONDS, JobCluster, Workers
from homodyne_dask.errors import ClusterError, OptionError
from homodyne_dask.machine.running_code import SAFE_PATH, python_command
from homodyne_dask.store.files import path_of

START_SECONDS = 30.0
"""Seconds from the start of a job to its first task, with its libraries on a shared file system."""
CLOSING_SECONDS = 60.0
"""Seconds a worker is given to leave: SLURM looks at walltimes every 30 s."""
LOST_SECONDS = 15.0
"""Seconds after which a job whose workers have left is replaced: longer than a nanny takes to restart one."""
STAGGER_SHARE = 0.1
"""Spread of lifetimes as a fraction of the walltime, where that is longer than a new worker takes."""
IDLE_SECONDS = 60
"""Seconds without work after which workers above the least number are released."""
_PASSED = """cores processes memory walltime queue account job-extra-directives job-directives-skip
shebang death-timeout """
"""Settings that are options of dask-jobqueue; further ones by batch system."""
_OF_BATCH = {"slurm": "job-cpu job-mem", "pbs": "resource-spec"}


_WAITING = """distributed.scheduler.no-workers-timeout homodyne-dask.no-progress
homodyne-dask.first-worker"""


def lifetime(walltime: float, task: float) -> tuple[float, float]:
    """Return the lifetime of workers whose jobs have a walltime, and its largest deviation [s].

    Every worker has time for three tasks of `task` seconds at least, and where one leaves, another has
    usually joined and computed a task before the next one leaves.
    """
    replaced = LOST_SECONDS + START_SECONDS + task
    work = replaced + 3 * task + CLOSING_SECONDS
    needed = max(work + replaced, work / (1 - 2 * STAGGER_SHARE))
    if walltime < needed:
        raise OptionError(
            f"a walltime of {walltime:g} s is too short for workers to start, compute tasks of up "
            f"to {task:.2g} s and stop in time: give at least {-(-needed // 60):.0f} minutes"
        )
    stagger = max(STAGGER_SHARE * walltime, replaced / 2)
    return walltime - CLOSING_SECONDS - task - stagger, stagger


def job_options(site: Site, task: float) -> dict[str, Any]:
    """Return the options of dask-jobqueue's jobs, but for security; task: seconds that a task may take."""
    seconds, stagger = lifetime(walltime_seconds(site["walltime"], "walltime"), task)
    arguments = (
        f"--memory-limit {site['worker-memory']} --lifetime {seconds:.0f}s --lifetime-stagger {stagger:.0f}s "
        f"--no-dashboard --dashboard-address 127.0.0.1:0 --preload-nanny {scratch.__name__}"
    )
    passed = (_PASSED + _OF_BATCH[site["batch"]]).split()
    return {key.replace("-", "_"): site[key] for key in passed} | {
        "job_name": site["name"],
        # the worker is the batch process, so that it hears SIGTERM
        "python": site["python"] or f"exec {shlex.join(python_command())}",
        "interface": site["interface"] or sites.default_interface(),
        "local_directory": f'"${scratch.SCRATCH}"',
        "log_directory": str(site["log-directory"]),
        "job_script_prologue": [
            *site["job-script-prologue"],
            *environment(site["cores"] // site["processes"]),
            *scratch.script_lines(site["local-directory"]),
        ],
        "worker_extra_args": [*arguments.split(), *site["worker-extra-args"]],
    }


def script(site: Site, key: Path, task: float = LONGEST_TASK_SECONDS) -> str:
    """Return the job script of a site, with placeholders for address and name; key: folder of its key."""
    options = job_options(site, task)
    if site["security"] == "tls":
        options |= {"security": tls.key_at(key), "protocol": "tls://"}
    job = cluster_class(site["batch"]).job_cls("<scheduler>", name="<worker>", **options)
    return job.job_script()


def environment(threads: int) -> list[str]:
    settings = worker_settings.worker_environment(threads) | {"MALLOC_TRIM_THRESHOLD_": "65536"}
    settings |= worker_settings.monitor_environment() | SAFE_PATH
    return [f"export {name}={shlex.quote(value)}" for name, value in settings.items()]


def driver_script(site: Site, words: Sequence[str], folder: Path) -> str:
    if site["batch"] != "slurm":
        raise OptionError(
            f"submit needs SLURM, but site {site['site']} has {site['batch']}: run `homodyne-dask fit "
            f"--site {site['site']}` in your own batch job"
        )
    driver = site["driver"]
    chosen = {"partition": driver["queue"] or site["queue"], "account": site["account"]}
    directives = [f"--{option}={value}" for option, value in chosen.items() if value]
    template = (sites.FOLDER / "driver.sbatch").read_text()
    return template.format(
        site=site,
        driver=driver,
        memory=f"{parse_bytes(driver['memory']) // 2**20}M",
        seconds=f"{walltime_seconds(driver['walltime'], 'driver.walltime'):.0f}",
        directives="\n#SBATCH ".join(["", *driver["job-extra-directives"], *directives]),
        prologue="\n".join([*site["job-script-prologue"], *environment(driver["cores"])]),
        folder=shlex.quote(str(folder)),
        command=shlex.join(python_command("-m", "homodyne_dask.cli", *words)),
    )


@contextmanager
def slurm_cluster(
    site: str = "generic",
    jobs: int | tuple[int, int] = 1,
    *,
    folder: str | Path | None = None,
    task: float = LONGEST_TASK_SECONDS,
    **settings: Any,
) -> Iterator[Any]:
    """Start workers as jobs of a site for the duration of a `with` block; yields the cluster at once.

    jobs: number of jobs to keep running, or (least, most): as many as the work needs. A job whose workers
    are lost is replaced. settings: changes to the settings of the site (templates/template.yaml),
    such as `walltime="02:00:00"`. folder: for the cluster's key, on a file system that all nodes share; by
    default a new one. task: maximum time of a task in seconds, so that workers run many tasks and stop
    before their walltime; `hd.plan(...).longest_task` allows shorter walltimes than the default, which is
    valid for every plan. At a site with PBS, jobs are submitted to PBS. `cluster.get_client()` connects.

    Raises OptionError for a site or setting that cannot be used, ClusterError with the batch system's
    message for a job it refuses, PackageError without dask-jobqueue.

    >>> with hd.slurm_cluster("generic", jobs=(1, 4)) as cluster:  # doctest: +SKIP
    ...     hd.fit("A0123_c2.zarr", "laminar_flow", client=cluster.get_client())
    """
    errors.require_type("site", site, str, "the name of a site")
    errors.require_type("task", task, Real, "seconds")
    chosen, (least, most) = sites.site_named(site, **settings), bounds(jobs)
    shared, options = chosen["shared-temp-directory"], job_options(chosen, task)
    where = path_of("folder", folder) if folder else shared / f"{site}-{token_hex(3)}"
    configured = worker_settings.SCHEDULER_SETTINGS | worker_settings.MONITOR_SETTINGS
    configured |= {"distributed.deploy.lost-worker-timeout": LOST_SECONDS}
    configured |= dict.fromkeys(_WAITING.split(), chosen["patience"])
    chosen["log-directory"].mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        held.enter_context(dask.config.set(configured))
        security = held.enter_context(tls.new_key(where)) if chosen["security"] == "tls" else None
        local = held.enter_context(scratch.scratch_folder())
        cluster = cluster_class(chosen["batch"])(
            security=security,
            name=where.name,
            shared_temp_directory=str(shared),
            scheduler_options={"local_directory": str(local), **chosen["scheduler-options"]},
            **options,
        )
        held.enter_context(tls.closing_logged(cluster))
        if chosen["batch"] == "slurm":
            sites.sbatch("--test-only", cluster.job_script())
        processes, threads = most * chosen["processes"], most * chosen["cores"]
        cluster.expected = Workers(processes, threads, processes * chosen["worker-memory"])
        cluster.task, cluster.logs = task, chosen["log-directory"]
        cluster.adapt(minimum_jobs=least, maximum_jobs=most, interval="1s", wait_count=IDLE_SECONDS)
        cluster.scale(jobs=least)
        try:
            cluster.sync(asyncio.wait_for, cluster, None)  # until the batch system has answered
        except (RuntimeError, ValueError) as e:
            before, _, words = str(e).partition("stderr:")
            raise ClusterError(f"the job was refused: {errors.one_line(words or before)}") from e
        yield cluster


def bounds(jobs: int | tuple[int, int]) -> tuple[int, int]:
    pair = (jobs, jobs) if isinstance(jobs, int) else jobs
    whole = isinstance(pair, tuple | list) and all(type(number) is int for number in pair)
    if not whole or len(pair) != 2 or not 1 <= pair[0] <= pair[1]:
        raise OptionError(
            f"jobs = {errors.shown(jobs)} cannot be used: give a number of at least 1, or (least, most)"
        )
    return pair[0], pair[1]


class _Jobs(SpecCluster, JobCluster):
    """The part of a cluster of dask-jobqueue that is ours: it says what is missing."""

    logs: Path
    given_up = property(lambda _: False)  # type: ignore[assignment]  # Dask goes on to replace jobs

    def missing(self) -> str:
        number, planned = len(self.plan - self.observed), len(self.plan)
        where = f"see the queue, and the logs of jobs in {self.logs}"
        return f"{number} of {planned} workers are missing: {where}" * bool(number)

    def _update_worker_status(self, op: str, msg: Any) -> None:
        """Drop, so that it is replaced, a job of several workers with the last; Dask does of one."""
        if op == "remove":
            job, _, _ = str(self.scheduler_info["workers"][msg]["name"]).rpartition("-")

            def drop() -> None:
                left = any(str(worker).startswith(f"{job}-") for worker in self.observed)
                if job in self.workers and not left:
                    self._futures.add(asyncio.ensure_future(self.workers.pop(job).close()))

            asyncio.get_running_loop().call_later(LOST_SECONDS, drop)
        super()._update_worker_status(op, msg)


def cluster_class(batch: str) -> Any:
    errors.require_package("a site", "dask_jobqueue", "slurm")
    cluster = getattr(import_module("dask_jobqueue"), f"{batch.upper()}Cluster")
    job = type("Job", (cluster.job_cls,), {"job_id_regexp": JOB_NUMBER})
    return type(cluster.__name__, (_Jobs, cluster), {"job_cls": job})
