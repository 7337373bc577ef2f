"""The jobs of a site, their scripts, and clusters whose workers are such jobs.

A worker with a lifetime leaves the cluster before its job's walltime, passes its tasks on, and a new
job replaces it. The end of a lifetime interrupts the task being computed: a lifetime must be many times
as long as a task, and workers must not all leave at once.

The clusters are dask-jobqueue's, which also replace every job that is lost, and say what is missing.
dask-jobqueue alone waits for ever for a job that ends before its workers come, and for one of several
workers; and the message of sbatch about a refused job goes to a log only.
"""

import asyncio
import math
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from numbers import Real
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType
from typing import Any

import dask.config
from dask.utils import parse_bytes, parse_timedelta
from dask_jobqueue.core import Job, JobQueueCluster
from dask_jobqueue.pbs import PBSCluster, PBSJob
from dask_jobqueue.slurm import SLURMCluster, SLURMJob
from distributed import Adaptive, Status
from distributed.deploy.spec import ProcessInterface

from homodyne_dask.apps.slurm.sites import (
    FOLDER,
    JOB_NUMBER,
    Site,
    check_script,
    default_interface,
    queued_jobs,
    site_named,
    submit_script,
    walltime_seconds,
)
from homodyne_dask.cluster import _dask_internals
from homodyne_dask.cluster import connect as tls
from homodyne_dask.cluster import local as scratch
from homodyne_dask.cluster.connect import closing_logged
from homodyne_dask.cluster.workers import (
    LONGEST_TASK_SECONDS,
    MONITOR_SETTINGS,
    SCHEDULER_SETTINGS,
    JobCluster,
    Workers,
    monitor_environment,
    worker_environment,
)
from homodyne_dask.errors import (
    ClusterError,
    OptionError,
    one_line,
    require_package,
    require_type,
    shown,
)
from homodyne_dask.machine.running_code import SAFE_PATH, python_command
from homodyne_dask.store.files import path_of

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


IDLE_SECONDS = 60
"""Seconds without work after which workers above the least number are released."""


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

    jobs: number of jobs to keep running, or (least, most): as many as the work needs. A job that is lost
    for any reason is replaced. settings: changes to the settings of the site (templates/template.yaml),
    such as `walltime="02:00:00"`. folder: for the cluster's key, on a file system that all nodes share; by
    default a new one. task: maximum time of a task in seconds, so that workers run many tasks and stop
    before their walltime; `hd.plan(...).longest_task` allows shorter walltimes than the default, which is
    valid for every plan. At a site with PBS, jobs are submitted to PBS. `cluster.get_client()` connects.

    Raises OptionError for a site or setting that cannot be used, ClusterError with the batch system's
    message for a job it refuses, PackageError without dask-jobqueue.

    >>> with hd.slurm_cluster("generic", jobs=(1, 4)) as cluster:  # doctest: +SKIP
    ...     hd.fit("A0123_c2.zarr", "laminar_flow", client=cluster.get_client())
    """
    require_type("site", site, str, "the name of a site")
    require_type("task", task, Real, "seconds")
    chosen, (least, most) = site_named(site, **settings), bounds(jobs)
    where = path_of("folder", folder) if folder else chosen.shared / f"{site}-{token_hex(3)}"
    new_cluster, options = cluster_class(chosen), job_options(chosen, task)
    waiting = ("distributed.scheduler.no-workers-timeout",)
    waiting += ("homodyne-dask.no-progress", "homodyne-dask.first-worker")
    waits = dict.fromkeys(waiting, chosen["patience"])
    chosen.logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        held.enter_context(dask.config.set(SCHEDULER_SETTINGS | MONITOR_SETTINGS | waits))
        security = held.enter_context(tls.new_key(where)) if chosen["security"] == "tls" else None
        local = held.enter_context(scratch.scratch_folder())
        cluster: Any = new_cluster(
            security=security,
            name=where.name,
            shared_temp_directory=str(chosen.shared),
            scheduler_options={"local_directory": str(local), **chosen["scheduler-options"]},
            **options,
        )
        held.enter_context(closing_logged(cluster))
        cluster.site, cluster.task = chosen, task
        if chosen["batch"] == "slurm":
            check_script(cluster.job_script())
        processes, threads = most * chosen["processes"], most * chosen["cores"]
        cluster.expected = Workers(processes, threads, processes * worker_memory(chosen))
        cluster.adapt(minimum_jobs=least, maximum_jobs=most, interval="1s", wait_count=IDLE_SECONDS)
        cluster.scale(jobs=least)
        cluster.sync(_submitted, cluster)
        for job in cluster.workers.values():
            if job.refusal:
                raise ClusterError(f"the job was refused: {job.refusal}")
        yield cluster


async def _submitted(cluster: Any) -> None:
    await cluster  # until the batch system has answered


def bounds(jobs: int | tuple[int, int]) -> tuple[int, int]:
    """Return the minimum and maximum number of jobs; raises OptionError below 1 or in wrong order."""
    pair = (jobs, jobs) if isinstance(jobs, int) else jobs
    whole = isinstance(pair, tuple | list) and all(type(number) is int for number in pair)
    if not whole or len(pair) != 2 or not 1 <= pair[0] <= pair[1]:
        raise OptionError(
            f"jobs = {shown(jobs)} cannot be used: give a number of at least 1, or (least, most)"
        )
    return pair[0], pair[1]


MAX_FAILED_JOBS = 5
"""Failed jobs in a row (without stable workers) after which no more are submitted."""
STABLE_LOOKS = 2
"""Looks at the queue after which a new worker counts as stable: it has passed the check of workers."""
LONGEST_PAUSE = 16
"""Looks that are left out, at most, while the batch system refuses jobs."""


class _ReportingJob(Job):
    """Keeps the batch system's message when it is refused."""

    job_id_regexp = JOB_NUMBER
    refusal = ""
    looks = 0
    """How often its workers were connected when the queue was listed."""

    async def start(self) -> None:
        try:
            await super().start()
        except (RuntimeError, ValueError) as e:
            before, _, words = str(e).partition("stderr:")
            self.refusal = one_line(words or before)
            self.status = Status.failed

    async def close(self) -> None:
        await ProcessInterface.close(self)  # at once: a cluster that closes asks for it
        await super().close()


class _ReplacingCluster(JobQueueCluster, JobCluster):
    """A cluster whose lost jobs are dropped, so that Dask replaces them."""

    site: Site
    listing: Mapping[str, str] = MappingProxyType({})
    """The user's jobs when the queue was last listed."""
    refusal = ""
    """The last message of the batch system about a refused job."""
    failed_jobs = 0
    """Jobs in a row that ended before their workers came or as soon as they had."""

    @property
    def given_up(self) -> bool:
        """Whether no more jobs are submitted."""
        return self.failed_jobs >= MAX_FAILED_JOBS

    def adapt(self, **options: Any) -> Adaptive:
        """Keep as many jobs as the tasks need, and replace those that are lost."""
        return super().adapt(Adaptive=ReplacingAdaptive, **options)

    def missing(self) -> str:
        """Return which workers are missing and why, '' for none."""
        absent = self.plan - self.observed
        if not absent:
            return ""
        reasons = [f"{len(absent)} of {len(self.plan)} workers are missing"]
        states = {self.listing.get(job.job_id, "") for job in self.workers.values()}
        reasons += sorted(state.lower() for state in states if not state.startswith("RUNNING"))
        if self.refusal:
            reasons.append(f"refused ({self.refusal})")
        elif self.failed_jobs:
            reasons.append(
                f"{self.failed_jobs} jobs in a row ended before their workers joined, or immediately "
                f"afterwards; their logs are in {self.site.logs}"
            )
        return ", ".join(filter(None, reasons))

    async def drop_lost_jobs(self) -> None:
        """Drop jobs that were refused, have left the queue, or wait in it again."""
        jobs, connected = dict(self.workers), {f"{worker}-" for worker in self.observed}
        self.listing = await asyncio.to_thread(queued_jobs, self.site)
        lost: dict[Any, Any] = {}
        self.refusal = ""
        for name, job in jobs.items():
            state = self.listing.get(job.job_id)
            # the workers of a job of several are numbered
            if any(worker.startswith(f"{name}-") for worker in connected):
                job.looks += 1
                # a cluster that has given up stays so: the worker may have come before the failed jobs
                if job.looks == STABLE_LOOKS and not self.given_up:
                    self.failed_jobs = 0
            elif state is None or (job.looks and state.startswith("PENDING")):
                lost[name] = job
                self.refusal = job.refusal or self.refusal
        # jobs lost at once count as one
        self.failed_jobs += any(j.job_id and j.looks < STABLE_LOOKS for j in lost.values())
        for name, job in lost.items():
            self.workers.pop(name, None)
            await job.close()


class SlurmCluster(_ReplacingCluster, SLURMCluster):
    """Workers as jobs of SLURM."""

    job_cls = type("SlurmJob", (_ReportingJob, SLURMJob), {})


class PbsCluster(_ReplacingCluster, PBSCluster):
    """Workers as jobs of PBS."""

    job_cls = type("PbsJob", (_ReportingJob, PBSJob), {})


CLUSTERS: dict[str, Any] = {"slurm": SlurmCluster, "pbs": PbsCluster}


class ReplacingAdaptive(Adaptive):
    """Dask's scaling, before which jobs that are lost are dropped, so that it replaces them."""

    cluster: Any
    next_look, pause = -math.inf, 1

    async def adapt(self) -> None:
        """Drop lost jobs now and then, and scale to the number that the tasks need."""
        if time.monotonic() >= self.next_look:
            try:
                await self.cluster.drop_lost_jobs()
                refused = bool(self.cluster.refusal)
            except ClusterError:  # the batch system does not answer
                refused = True
            self.pause = min(2 * self.pause, LONGEST_PAUSE) if refused else 1
            interval = parse_timedelta(self.cluster.site["queue-interval"])
            self.next_look = time.monotonic() + self.pause * interval
        if self.cluster.given_up:
            # no more workers will come: tasks that wait for them fail at once
            _dask_internals.fail_waiting_tasks(self.cluster.scheduler)
        else:
            await super().adapt()
