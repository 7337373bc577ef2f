"""All uses of undocumented parts of dask-jobqueue and of its base SpecCluster.

Seen in dask-jobqueue 0.9.0 with distributed 2026.3.0 to 2026.8.0. Where a version lacks such a part,
that is logged once and a slower or larger way is taken.
"""

from typing import Any

from homodyne_dask.cluster._dask_internals import report_missing


def send_jobs(cluster: Any) -> None:
    """Submit the jobs that a cluster was scaled to, and return when the batch system has answered.

    Public: Cluster.scale, which submits them later in its event loop: then a job that is refused is
    not reported at once but by the cluster's `missing`.
    """
    if hasattr(cluster, "_correct_state"):
        cluster.sync(cluster._correct_state)
    else:
        report_missing("SpecCluster._correct_state", "refused jobs are reported later")


def refusal(error: RuntimeError) -> str:
    """Return what the batch system wrote when it refused a job, in one line.

    dask-jobqueue raises a RuntimeError whose text has it behind "stderr:"; the whole text is
    returned where it has not.
    """
    before, _, words = str(error).partition("stderr:")
    return " ".join((words or before).split())


def worker_names(cluster: Any, job: Any) -> set[Any]:
    """Return the names of the workers of a job, by the job's name.

    Public: SpecCluster.worker_spec, whose entry for a job of several workers has an undocumented
    "group" of suffixes. Without it a job of several workers counts as one, and is replaced later.
    """
    suffixes = cluster.worker_spec.get(job, {}).get("group")
    return {f"{job}{suffix}" for suffix in suffixes} if suffixes else {job}
