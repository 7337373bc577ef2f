"""A fit whose scheduler, driver and workers are the processes of one allocation.

    homodyne-dask key KEY                                        # once; a folder that all nodes see
    mpirun -n 42 python deploy/mpi/fit.py mpi KEY fit.yaml       # with dask-mpi and mpi4py
    srun -n 42 python deploy/mpi/fit.py srun KEY fit.yaml        # with dask-jobqueue

Process 0 is the scheduler, 1 runs `homodyne-dask fit` with all words after KEY, 40 are workers of
HOMODYNE_DASK_THREADS threads (1); they talk by the network interface HOMODYNE_DASK_INTERFACE.
"""

import logging
import os
import sys
from pathlib import Path

import dask.config
from distributed import Client

from homodyne_dask.cli import main
from homodyne_dask.cluster.connect import load_key
from homodyne_dask.cluster.workers import SCHEDULER_SETTINGS

NETWORK = {"interface": os.environ.get("HOMODYNE_DASK_INTERFACE"), "protocol": "tls"}
SCHEDULER: dict = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
WORKER = {"nthreads": int(os.environ.get("HOMODYNE_DASK_THREADS", "1"))}


def encrypt(key: Path) -> None:
    """Let all that Dask starts in this process use a key."""
    made = load_key(key)
    encrypted = {"comm.require-encryption": True, "comm.tls.ca-file": made.tls_ca_file}
    for role in ("client", "scheduler", "worker"):
        files = {"cert": made.tls_client_cert, "key": made.tls_client_key}
        encrypted |= {f"comm.tls.{role}.{name}": file for name, file in files.items()}
    dask.config.set(SCHEDULER_SETTINGS | {f"distributed.{n}": v for n, v in encrypted.items()})


def address_of_scheduler(launcher: str, key: Path) -> str:
    """Start this process's part and return in process 1; the others end in here."""
    if launcher == "mpi":
        from dask_mpi import initialize

        initialize(**NETWORK, **SCHEDULER, **WORKER, exit=False) or sys.exit()
        return dask.config.get("scheduler_address")
    from dask_jobqueue.slurm import SLURMRunner

    options = {"scheduler_options": NETWORK | SCHEDULER, "worker_options": NETWORK | WORKER}
    file = f"{key}/scheduler-{{job_id}}.json"
    return SLURMRunner(scheduler_file=file, **options).scheduler_address


if __name__ == "__main__":
    logging.getLogger("distributed").setLevel(logging.WARNING)
    encrypt(key := Path(sys.argv[2]).absolute())
    address = address_of_scheduler(sys.argv[1], key)
    try:
        main(["fit", *sys.argv[3:], "--scheduler", address, "--key", str(key)])
    finally:
        with Client(address) as client:
            client.shutdown()
