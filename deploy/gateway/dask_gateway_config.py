"""Lines for the configuration of a dask-gateway server whose clusters compute fits."""
# ruff: noqa: F821 - the server defines c

# the server's own defaults are commands that newer releases of distributed do not install
c.ClusterConfig.scheduler_cmd = ["dask", "scheduler"]
c.ClusterConfig.worker_cmd = ["dask", "worker"]

# twice the `memory per worker` of `homodyne-dask plan` lets decoded data stay in memory
c.ClusterConfig.worker_cores = 4
c.ClusterConfig.worker_memory = "8 G"
