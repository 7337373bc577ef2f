"""dask-jobqueue's clusters, extended to report refused jobs and to replace every job that is lost.

dask-jobqueue alone waits for ever for a job that ends before its workers come, and for one of several
workers; and the message of sbatch about a refused job goes to a log only.
"""

import asyncio
import secrets
import shlex
import time
from collections.abc import Sequence
from typing import Any

from dask.utils import parse_timedelta
from dask_jobqueue.core import Job, JobQueueCluster
from dask_jobqueue.pbs import PBSCluster, PBSJob
from dask_jobqueue.slurm import SLURMCluster, SLURMJob
from distributed import Adaptive, Status
from distributed.deploy.spec import ProcessInterface

from homodyne_dask.apps.slurm import queue
from homodyne_dask.apps.slurm.sites import Site
from homodyne_dask.cluster import _dask_internals
from homodyne_dask.cluster.workers import JobCluster
from homodyne_dask.errors import ClusterError, one_line

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
            before, _, words = str(e).partition("stderr:")
            self.refusal = one_line(words or before)
            self.status = Status.failed

    async def close(self) -> None:
        await ProcessInterface.close(self)  # at once: a cluster that closes asks for it
        await super().close()


class _ReportingCluster(JobQueueCluster, JobCluster):
    """A cluster that reports which of its workers are missing and why."""

    site: Site
    listing: Sequence[queue.QueuedJob] = ()
    """The user's jobs when the queue was last listed."""
    refusal = ""
    """The last message of the batch system about a refused job."""
    failed_jobs = 0
    """Jobs in a row that were rejected, or ended before their workers came or as soon as they had."""
    refused_at: float | None = None
    """Since when no job was taken for reasons that may pass."""

    @property
    def given_up(self) -> bool:
        """Whether no more jobs are submitted."""
        since = self.refused_at
        late = since is not None and time.monotonic() - since > self.site.patience
        return late or self.failed_jobs >= MAX_FAILED_JOBS

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
        elif self.failed_jobs:
            reasons.append(
                f"{self.failed_jobs} jobs in a row ended before their workers joined, or immediately "
                f"afterwards; their logs are in {self.site.logs}"
            )
        return ", ".join(reasons)


class _SlurmJob(_ReportingJob, SLURMJob):
    """A job with a name that no other has, by which it is found in the queue."""

    def _job_id_from_submit_output(self, out: str) -> str:
        return queue.job_number(out)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.unique_name = f"{self.job_name}-{secrets.token_hex(4)}"

    async def _submit_job(self, script_filename: str) -> str:
        words = [f"--job-name={self.unique_name}", script_filename]
        return await self._call([*shlex.split(self.submit_command), *words])

    def found(self, number: str) -> None:
        """Take the number that the queue has, also where sbatch failed after it had submitted the job."""
        self.job_id, self.refusal = number, ""
        if self.status is Status.failed:
            self.status = Status.running


class SlurmCluster(_ReportingCluster, SLURMCluster):
    """Workers as jobs of SLURM."""

    job_cls = _SlurmJob


class PbsCluster(_ReportingCluster, PBSCluster):
    """Workers as jobs of PBS."""

    job_cls = type("_PbsJob", (_ReportingJob, PBSJob), {})


CLUSTERS: dict[str, Any] = {"slurm": SlurmCluster, "pbs": PbsCluster}


class ReplacingAdaptive(Adaptive):
    """Dask's scaling, before which jobs that are lost are dropped, so that it replaces them."""

    cluster: Any

    def __init__(self, cluster: Any, **options: Any) -> None:
        self.lives: dict[Job, tuple[float, float]] = {}
        """When a job's workers were first and last connected."""
        self.listed_at = time.monotonic()
        super().__init__(cluster, **options)

    async def adapt(self) -> None:
        """Drop lost jobs, then scale to the number that the tasks need."""
        lost, failed = self._lost(), await self._failed()
        lives = [self.lives[job] for job in lost.values()]
        young = any(last - first < STABLE_SECONDS for first, last in lives)
        # jobs lost at once count as one
        self.cluster.failed_jobs += (
            sum(not queue.passes(j.refusal) for j in failed.values()) + young
        )
        jobs = self.cluster.workers.values()
        if any(job.job_id for job in jobs):
            self.cluster.refused_at, self.cluster.refusal = None, ""
        elif any(queue.passes(job.refusal) for job in jobs):
            self.cluster.refused_at = self.cluster.refused_at or time.monotonic()
        for name, job in (lost | failed).items():
            self.cluster.refusal = job.refusal or self.cluster.refusal
            self.cluster.workers.pop(name, None)
            await job.close()
        if self.cluster.given_up:
            # no more workers will come: tasks that wait for them fail at once
            _dask_internals.fail_waiting_tasks(self.cluster.scheduler)
        else:
            await super().adapt()

    def _lost(self) -> dict[Any, Any]:
        """Return the jobs whose workers have left, by name."""
        now, jobs = time.monotonic(), dict(self.cluster.workers)
        self.lives = {job: life for job, life in self.lives.items() if job in jobs.values()}
        connected = {str(worker) for worker in self.cluster.observed}
        for name, job in jobs.items():
            # those of a job of several workers are numbered
            if any(f"{worker}-".startswith(f"{name}-") for worker in connected):
                first, last = self.lives.get(job, (now, now))
                self.lives[job] = first, now
                stable = last - first < STABLE_SECONDS <= now - first
                # a cluster that has given up stays so: the worker may have come before the failed jobs
                if stable and not self.cluster.given_up:
                    self.cluster.failed_jobs = 0
        return {
            name: job
            for name, job in jobs.items()
            if job in self.lives and now - self.lives[job][1] > queue.LOST_WORKER_TIMEOUT
        }

    async def _failed(self) -> dict[Any, Any]:
        """Return, now and then, jobs that were refused, or left the queue without ever having workers."""
        new = {n: job for n, job in self.cluster.workers.items() if job not in self.lives}
        every = parse_timedelta(self.cluster.site["queue-interval"])
        if not new or time.monotonic() - self.listed_at < every:
            return {}
        self.listed_at = time.monotonic()
        refused = {name: job for name, job in new.items() if job.status is Status.failed}
        if self.cluster.site["batch"] != "slurm":
            return refused
        try:
            self.cluster.listing = await asyncio.to_thread(queue.jobs)
        except (
            ClusterError
        ):  # nobody knows now whether a job was submitted where sbatch failed in the end
            return {name: job for name, job in refused.items() if not queue.passes(job.refusal)}
        queued = {job.number: job.name for job in self.cluster.listing}
        by_name = {name: number for number, name in queued.items()}
        for job in new.values():
            if number := by_name.get(job.unique_name):
                job.found(number)
        lost = {n: job for n, job in new.items() if job.job_id and job.job_id not in queued}
        return lost | {name: job for name, job in refused.items() if job.status is Status.failed}
