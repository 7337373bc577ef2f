"""dask-jobqueue's clusters, extended to report refused jobs and to replace every job that is lost.

dask-jobqueue alone waits for ever for a job that ends before its workers come, and for one of several
workers; and the message of sbatch about a refused job goes to a log only.
"""

import asyncio
import math
import time
from typing import Any

import dask.config
from dask.utils import parse_timedelta
from dask_jobqueue.core import Job, JobQueueCluster
from dask_jobqueue.pbs import PBSCluster, PBSJob
from dask_jobqueue.slurm import SLURMCluster, SLURMJob
from distributed import Adaptive, Status
from distributed.deploy.spec import ProcessInterface

from homodyne_dask.cluster import _dask_internals
from homodyne_dask.cluster.slurm import _jobqueue_internals, queue
from homodyne_dask.cluster.slurm.sites import Site
from homodyne_dask.cluster.workers import JobCluster, Workers

MAX_FAILED_JOBS = 5
"""Failed jobs in a row (refused, or without stable workers) after which no more are submitted."""
STABLE_SECONDS = 30.0
"""Seconds after which a new worker counts as stable: it has loaded its libraries and passed the check."""


class _ReportingJob(Job):
    """A job that keeps the batch system's message when it is refused."""

    refusal = ""

    async def start(self) -> None:
        try:
            await super().start()
        except RuntimeError as e:
            self.refusal = _jobqueue_internals.refusal(e)
            self.status = Status.failed

    async def close(self) -> None:
        await ProcessInterface.close(self)  # at once: a cluster that closes asks for it
        await super().close()


class _ReportingCluster(JobQueueCluster, JobCluster):
    """A cluster that reports which of its workers are missing and why."""

    site: Site
    expected: Workers
    task: float
    listing: tuple[queue.QueuedJob, ...] = ()
    """The user's jobs when the queue was last listed."""
    refusal = ""
    """The last message of the batch system about a refused job."""
    failed_jobs = 0
    """Jobs in a row that were refused, or ended before their workers came or as soon as they had."""

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
        ours = {job.job_id for job in self.workers.values()}
        waiting = [job for job in self.listing if job.number in ours and job.state != "RUNNING"]
        reasons += sorted({f"{job.state.lower()} ({job.reason})" for job in waiting})
        if self.refusal:
            reasons.append(f"refused ({self.refusal})")
        if self.failed_jobs:
            reasons.append(
                f"{self.failed_jobs} jobs in a row ended before their workers joined, or immediately "
                f"afterwards; their logs are in {self.site.logs}"
            )
        return ", ".join(reasons)


class _SlurmJob(_ReportingJob, SLURMJob):
    pass


class _PbsJob(_ReportingJob, PBSJob):
    pass


class SlurmCluster(_ReportingCluster, SLURMCluster):
    """Workers as jobs of SLURM."""

    job_cls = _SlurmJob


class PbsCluster(_ReportingCluster, PBSCluster):
    """Workers as jobs of PBS."""

    job_cls = _PbsJob


CLUSTERS: dict[str, Any] = {"slurm": SlurmCluster, "pbs": PbsCluster}


class ReplacingAdaptive(Adaptive):
    """Keeps as many jobs as the tasks need, and drops lost jobs, so that new ones replace them."""

    cluster: Any

    def __init__(self, cluster: Any, **options: Any) -> None:
        self.first_and_last: dict[Job, tuple[float, float]] = {}
        """When a job's workers were first and last connected."""
        self.counted_at = 0.0
        """When jobs whose workers did not stay were last counted."""
        self.failed_at = -math.inf
        """When a job last failed."""
        self.listed_at = time.monotonic()
        super().__init__(cluster, **options)

    async def adapt(self) -> None:
        """Drop lost jobs, then scale to the number that the tasks need."""
        await self._drop_lost()
        await self._drop_failed()
        if self.cluster.given_up:
            # no more workers will come: tasks that wait for them fail at once
            _dask_internals.fail_waiting_tasks(self.cluster.scheduler)
            return
        await super().adapt()

    async def _drop_lost(self) -> None:
        """Drop jobs whose workers have left, where Dask has not dropped them itself."""
        now, observed = time.monotonic(), self.cluster.observed
        longest = parse_timedelta(dask.config.get("distributed.deploy.lost-worker-timeout"))
        self._count_unstable(now, longest)
        for name, job in list(self.cluster.workers.items()):
            first, last = self.first_and_last.get(job, (now, now))
            if _jobqueue_internals.worker_names(self.cluster, name) & observed:
                self.first_and_last[job] = first, now
                stable = last - first <= STABLE_SECONDS < now - first
                if stable and first > self.failed_at:  # an older one ends no row of failures
                    self.cluster.failed_jobs = 0
            elif now - last > longest:
                await self._drop(name)

    def _count_unstable(self, now: float, longest: float) -> None:
        """Count dropped jobs whose workers did not stay; jobs lost at once count as one."""
        dropped = self.first_and_last.keys() - set(self.cluster.workers.values())
        lives = [self.first_and_last.pop(job) for job in dropped]
        unstable = any(last - first < STABLE_SECONDS for first, last in lives)
        if unstable and now - self.counted_at > longest:
            self.counted_at = self.failed_at = now
            self.cluster.failed_jobs += 1

    async def _drop_failed(self) -> None:
        """Drop jobs that were refused, or that left the queue without ever having workers."""
        new = {n: job for n, job in self.cluster.workers.items() if job not in self.first_and_last}
        every = parse_timedelta(self.cluster.site["queue-interval"])
        if not new or time.monotonic() - self.listed_at < every:
            return
        self.listed_at = time.monotonic()
        lost = [name for name, job in new.items() if job.status is Status.failed]
        if self.cluster.site["batch"] == "slurm":
            listed = await _listed(queue.query())
            if listed is None:
                return  # the controller does not answer now
            self.cluster.listing = tuple(queue.parse_queue(listed))
            queued = {job.number for job in self.cluster.listing}
            lost += [name for name, job in new.items() if job.job_id and job.job_id not in queued]
        for name in lost:
            self.cluster.refusal = new[name].refusal or self.cluster.refusal
            self.failed_at = time.monotonic()
            self.cluster.failed_jobs += 1
            await self._drop(name)

    async def _drop(self, name: Any) -> None:
        if job := self.cluster.workers.pop(name, None):
            await job.close()


async def _listed(command: list[str]) -> str | None:
    """Return what a command of the batch system prints; None where it fails or takes too long."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        printed, _ = await asyncio.wait_for(process.communicate(), queue.COMMAND_TIMEOUT)
    except TimeoutError:
        process.kill()
        await process.wait()
        return None
    return None if process.returncode else printed.decode()
