"""Commands of a batch system: test and submit a job script, list the user's jobs."""

import getpass
import os
import re
import shutil
import subprocess

from homodyne_dask.apps.slurm.sites import Site
from homodyne_dask.errors import ClusterError, one_line, shown

COMMAND_TIMEOUT = 60.0
"""Seconds a command of the batch system may take."""
JOB_NUMBER = r"(?m:^Submitted batch job |^)(?P<job_id>\d+)(?:;\S*| on cluster \S+|\.\S+)?\s*\Z"
"""The number of a job in what sbatch or qsub prints last, below what a site may print."""
_ELSEWHERE = "use a login node of the cluster, or workers on this machine (without --site)"
_NOT_SET_UP = "Could not establish a configuration source"
"""Of a machine that has the commands of SLURM, but no cluster."""


def check_script(script: str) -> str:
    """Return SLURM's answer to a test of a job script; raises ClusterError if it would be refused."""
    return _sbatch("--test-only", script)


def submit_script(script: str) -> str:
    """Submit a job script and return the job's number; raises ClusterError with sbatch's message."""
    printed = _sbatch("--parsable", script)
    if found := re.search(JOB_NUMBER, printed):
        return found["job_id"]
    raise ClusterError(
        f"sbatch printed no number of a job ({shown(printed)}): see `squeue --me` whether it runs, and ask "
        f"your site what its sbatch prints"
    )


def queued_jobs(site: Site) -> dict[str, str]:
    """Return the user's waiting and running jobs: SLURM's state and reason by number, '' of PBS.

    Raises ClusterError if the batch system does not answer.
    """
    command = ["qselect", "-u", getpass.getuser()]
    if site["batch"] == "slurm":
        command = ["squeue", "--noheader", "--format=%A %T (%r)", "--user", str(os.getuid())]
    status, errors, listed = _run(command)
    if status:
        raise ClusterError(f"{command[0]} failed ({one_line(errors)})")
    jobs = (line.partition(" ") for line in listed.splitlines())
    return {number.partition(".")[0]: state for number, _, state in jobs}


def _sbatch(option: str, script: str) -> str:
    status, errors, printed = _run(["sbatch", option], script)
    words = one_line(errors + printed)
    if status and _NOT_SET_UP in words:
        raise ClusterError(f"SLURM is not set up on this machine ({words}): {_ELSEWHERE}")
    if status:
        raise ClusterError(
            f"sbatch rejected the job ({words or f'exit status {status}'}): change the site's settings or "
            f"the options; if SLURM is busy or your queue is full (`squeue --me`), try again later"
        )
    return printed or words


def _run(command: list[str], script: str = "") -> tuple[int, str, str]:
    """Return the exit status of a command, its errors and its output."""
    if shutil.which(command[0]) is None:
        raise ClusterError(f"{command[0]} is not available on this machine: {_ELSEWHERE}")
    streams = {"input": script, "capture_output": True, "text": True}
    try:
        ended = subprocess.run(command, **streams, timeout=COMMAND_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        raise ClusterError(
            f"{command[0]} did not answer within {COMMAND_TIMEOUT:g} s: see `squeue --me` whether a job was "
            f"submitted, and check whether the batch system is down"
        ) from None
    return ended.returncode, ended.stderr, ended.stdout
