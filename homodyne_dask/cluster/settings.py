"""Settings of Dask and of JAX for schedulers and workers."""

SCHEDULER_SETTINGS = {
    # an innocent task is blamed for each death of a worker that holds it
    "distributed.scheduler.allowed-failures": 10,
    "distributed.scheduler.no-workers-timeout": "120s",
    "distributed.scheduler.worker-ttl": "60s",
    # a worker that died is started again by its nanny, on a busy machine slowly
    "distributed.deploy.lost-worker-timeout": "120s",
}
"""Settings of Dask's configuration for a scheduler."""
MONITOR_SETTINGS = {
    # at its default rate the monitor of an idle process takes 4 % of a core
    "distributed.admin.tick.interval": "200ms",
    "distributed.worker.profile.interval": "100ms",
    # a worker keeps what ran in each of so many cycles, 100 kB, and as many steps of tasks
    "distributed.worker.profile.cycle": "600s",
    "distributed.admin.low-level-log-length": 100,
    # a nanny that asks ten times a second what memory its worker has takes 0.4 % of a core for that
    "distributed.worker.memory.monitor-interval": "500ms",
}
"""Settings of Dask's configuration for schedulers and workers: how often they monitor themselves."""


def worker_environment(threads: int) -> dict[str, str]:
    """Return the environment variables of a worker, which JAX reads as it starts."""
    return {
        "NPROC": str(threads),
        # kernels run in the worker's own threads, side by side: in a pool they would wait for each other
        "JAX_CPU_ENABLE_ASYNC_DISPATCH": "0",
        "JAX_ENABLE_X64": "1",
        "JAX_PLATFORMS": "cpu",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def monitor_environment() -> dict[str, str]:
    """Return MONITOR_SETTINGS as the environment variables that a Dask process reads at its start."""
    names = {key: key.upper().replace(".", "__").replace("-", "_") for key in MONITOR_SETTINGS}
    return {f"DASK_{names[key]}": str(value) for key, value in MONITOR_SETTINGS.items()}
