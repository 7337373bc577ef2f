"""The options of dask-jobqueue for the jobs of a site, and their scripts."""

import shlex
from importlib.metadata import version
from pathlib import Path
from typing import Any

from homodyne_dask.cluster import scratch, tls
from homodyne_dask.cluster.settings import monitor_environment, worker_environment
from homodyne_dask.cluster.slurm.lifetimes import lifetime
from homodyne_dask.cluster.slurm.sites import Site
from homodyne_dask.cluster.workers import LONGEST_TASK_SECONDS
from homodyne_dask.errors import require_package
from homodyne_dask.store.processes import SAFE_PATH, python_command

NANNY_BYTES = 250_000_000
"""Bytes of a job that each worker's nanny takes, with its interpreter."""
_PASSED = (
    "name",
    "cores",
    "processes",
    "memory",
    "walltime",
    "queue",
    "account",
    "job-extra-directives",
    "job-directives-skip",
    "shebang",
    "death-timeout",
)
_RENAMED = {"name": "job_name"}


def worker_memory(site: Site) -> int:
    """Return the bytes each worker of a job may use."""
    return site.memory // site["processes"] - NANNY_BYTES


def job_options(site: Site, task: float = LONGEST_TASK_SECONDS) -> dict[str, Any]:
    """Return the options of dask-jobqueue's jobs for a site, but for its security.

    task: seconds that a task may take (`lifetimes`).
    """
    options = {_RENAMED.get(key, key.replace("-", "_")): site[key] for key in _PASSED}
    if site["batch"] == "slurm":
        # without it dask-jobqueue rounds up to whole GiB
        memory = site["job-mem"] or f"{site.memory // 2**20}M"
        options |= {"job_cpu": site["job-cpu"], "job_mem": memory}
    else:
        options |= {"resource_spec": site["resource-spec"]}
    return options | {
        # the worker is the batch process, so that it hears SIGTERM
        "python": site["python"] or f"exec {shlex.join(python_command())}",
        "interface": site.interface,
        "local_directory": f'"${scratch.SCRATCH}"',
        "log_directory": str(site.logs),
        "job_script_prologue": [
            *site["job-script-prologue"],
            *environment(site, site.threads),
            *scratch.script_lines(site["local-directory"]),
        ],
        "worker_extra_args": [*_arguments(site, task), *site["worker-extra-args"]],
    }


def cluster_class(site: Site) -> Any:
    """Return the class of the clusters of a site; raises PackageError where dask-jobqueue is missing."""
    require_package("a site", "dask_jobqueue", "slurm")
    from homodyne_dask.cluster.slurm.adaptive import CLUSTERS

    return CLUSTERS[site["batch"]]


def script(site: Site, key: Path, task: float = LONGEST_TASK_SECONDS) -> str:
    """Return the job script of a site, with placeholders for address and name."""
    options = job_options(site, task)
    if site["security"] == "tls":
        options |= {"security": tls.key_at(key), "protocol": "tls://"}
    job = cluster_class(site).job_cls("<scheduler>", name="<worker>", **options)
    return job.job_script()


def _arguments(site: Site, task: float) -> list[str]:
    lives = lifetime(site.walltime, task)
    return [
        *("--memory-limit", str(worker_memory(site))),
        *("--lifetime", f"{lives.seconds:.0f}s", "--lifetime-stagger", f"{lives.stagger:.0f}s"),
        *("--no-dashboard", "--dashboard-address", "127.0.0.1:0"),
        *("--preload-nanny", scratch.__name__),
    ]


def environment(site: Site, threads: int) -> list[str]:
    """Return the lines of a job script that set threads, memory, imports and Dask for its processes."""
    settings = worker_environment(threads) | {"MALLOC_TRIM_THRESHOLD_": "65536"}
    settings |= monitor_environment() | SAFE_PATH
    lines = [f"export {name}={shlex.quote(value)}" for name, value in settings.items()]
    if cache := site["compile-cache"]:
        # kernels run on the type of CPU that compiled them
        lines += [
            "cpu=$(grep -m1 ^flags /proc/cpuinfo | sha256sum | cut -c1-12)",
            f"export JAX_COMPILATION_CACHE_DIR={cache}/jaxlib-{version('jaxlib')}-$cpu",
            'mkdir -p -m 700 "$JAX_COMPILATION_CACHE_DIR"',
        ]
    return lines
