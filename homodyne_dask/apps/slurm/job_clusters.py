"""dask-jobqueue's clusters, which also replace every job that is lost, and say what is missing.

dask-jobqueue alone waits for ever for a job that ends before its workers come, and for one of several
workers; and the message of sbatch about a refused job goes to a log only.
"""

import asyncio
import math
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from dask.utils import parse_timedelta
from dask_jobqueue.core import Job, JobQueueCluster
from dask_jobqueue.pbs import PBSCluster, PBSJob
from dask_jobqueue.slurm import SLURMCluster, SLURMJob
from distributed import Adaptive, Status
from distributed.deploy.spec import ProcessInterface

from homodyne_dask.apps.slurm.sites import JOB_NUMBER, Site, queued_jobs
from homodyne_dask.cluster import _dask_internals
from homodyne_dask.cluster.workers import JobCluster
from homodyne_dask.errors import ClusterError, one_line

MAX_FAILED_JOBS = 5
"""Failed jobs in a row (without stable workers) after which no more are submitted."""
STABLE_LOOKS = 2
"""Looks at the queue after which a new worker counts as stable: it has passed the check of workers."""
LONGEST_PAUSE = 16
"""Looks that are left out, at most, while the batch system refuses jobs."""


class _ReportingJob(Job):
    """A job that keeps the batch system's message when it is refused."""

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
