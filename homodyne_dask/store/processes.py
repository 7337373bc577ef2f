"""Names of `homodyne_dask.machine` under which modules still import them."""

# ruff: noqa: F401
from homodyne_dask.machine.allocator_and_threads import (
    in_thread,
    set_allocator_thresholds,
    trim_memory,
    worker_address,
)
from homodyne_dask.machine.cores_and_cgroup_limits import (
    cgroups,
    cores,
    cpu_quota,
    jax_threads,
    on_cores,
    processor,
    system_text,
)
from homodyne_dask.machine.running_code import (
    OUR_CODE,
    SAFE_PATH,
    code_digest,
    digest_of_sources,
    python_command,
    version_of,
)
