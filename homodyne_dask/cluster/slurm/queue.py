"""What the batch system is asked: does it take a job, which jobs wait, end this one."""

import os
import pwd
import shutil
import subprocess
from typing import NamedTuple

from homodyne_dask.errors import ClusterError

TIMEOUT = 60.0
"""Seconds a command of the batch system may take."""


class QueuedJob(NamedTuple):
    """A job in the queue."""

    number: str
    state: str
    reason: str


def probe(script: str) -> str:
    """Ask SLURM whether it would take a job script; return what it says, raise ClusterError if not."""
    said = _called(["sbatch", "--test-only"], script)
    words = " ".join((said.stderr + said.stdout).split())
    if said.returncode:
        raise ClusterError(
            f"sbatch refuses the job ({words}): change the site's settings or the options"
        )
    return words


def submit_script(script: str) -> str:
    """Submit a job script and return the job's number; raises ClusterError with sbatch's message."""
    said = _called(["sbatch", "--parsable"], script)
    if said.returncode:
        words = " ".join((said.stderr + said.stdout).split())
        raise ClusterError(
            f"sbatch refuses the job ({words}): change the site's settings or the options"
        )
    return said.stdout.strip().partition(";")[0]


COMMAND = ("squeue", "--noheader", "--format=%A|%T|%r", "--user")


def query() -> list[str]:
    """Return the command that lists the user's jobs."""
    return [*COMMAND, pwd.getpwuid(os.getuid()).pw_name]


def parse_queue(said: str) -> list[QueuedJob]:
    """Return the jobs that a listing holds."""
    return [QueuedJob(*line.split("|", 2)) for line in said.splitlines() if line.count("|") >= 2]


def jobs() -> list[QueuedJob]:
    """Return the user's jobs that wait or run."""
    said = _called(query(), "")
    if said.returncode:
        raise ClusterError(f"squeue does not answer ({' '.join(said.stderr.split())})")
    return parse_queue(said.stdout)


def _called(command: list[str], given: str) -> subprocess.CompletedProcess[str]:
    if shutil.which(command[0]) is None:
        raise ClusterError(
            f"{command[0]} is not on this machine: go to a login node of the cluster, or use "
            f"workers on this machine (without --site)"
        )
    try:
        return subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        raise ClusterError(
            f"{command[0]} did not answer within {TIMEOUT:g} s: is the batch system down?"
        ) from None
