"""Commands of SLURM: test a job script, submit it, list the user's jobs."""

import os
import pwd
import shutil
import subprocess
from typing import NamedTuple

from homodyne_dask.errors import ClusterError

COMMAND_TIMEOUT = 60.0
"""Seconds a command of the batch system may take."""


class QueuedJob(NamedTuple):
    """A job in the queue."""

    number: str
    state: str
    reason: str


def probe(script: str) -> str:
    """Return SLURM's answer to a test of a job script; raises ClusterError if it would be refused."""
    return _in_one_line(_sbatch("--test-only", script))


def submit_script(script: str) -> str:
    """Submit a job script and return the job's number; raises ClusterError with sbatch's message."""
    return _sbatch("--parsable", script).stdout.strip().partition(";")[0]


def _sbatch(option: str, script: str) -> subprocess.CompletedProcess[str]:
    answer = _run(["sbatch", option], script)
    if answer.returncode:
        raise ClusterError(
            f"sbatch rejected the job ({_in_one_line(answer)}): change the site's settings or the options"
        )
    return answer


def _in_one_line(answer: subprocess.CompletedProcess[str]) -> str:
    return " ".join((answer.stderr + answer.stdout).split())


LIST_COMMAND = ("squeue", "--noheader", "--format=%A|%T|%r", "--user")


def query() -> list[str]:
    """Return the command that lists the user's jobs."""
    return [*LIST_COMMAND, pwd.getpwuid(os.getuid()).pw_name]


def parse_queue(listing: str) -> list[QueuedJob]:
    """Return the jobs in the output of `query()`."""
    return [QueuedJob(*line.split("|", 2)) for line in listing.splitlines() if line.count("|") >= 2]


def jobs() -> list[QueuedJob]:
    """Return the user's waiting and running jobs; raises ClusterError if SLURM does not answer."""
    answer = _run(query(), "")
    if answer.returncode:
        raise ClusterError(f"squeue failed ({' '.join(answer.stderr.split())})")
    return parse_queue(answer.stdout)


def _run(command: list[str], stdin: str) -> subprocess.CompletedProcess[str]:
    if shutil.which(command[0]) is None:
        raise ClusterError(
            f"{command[0]} is not available on this machine: use a login node of the "
            f"cluster, or workers on this machine (without --site)"
        )
    try:
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=COMMAND_TIMEOUT, check=False
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ClusterError(
            f"{command[0]} did not answer within {COMMAND_TIMEOUT:g} s: check whether the batch system is "
            f"down"
        ) from None
