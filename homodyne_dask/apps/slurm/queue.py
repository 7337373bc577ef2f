"""Commands of SLURM: test a job script, submit it, list the user's jobs.

An sbatch that fails in the end may have submitted its job: the queue, in which the name of the job is unique,
says so before it is asked again.
"""

import logging
import os
import re
import shutil
import subprocess
import time
from contextlib import suppress
from typing import NamedTuple

from homodyne_dask.errors import ClusterError, one_line, shown

COMMAND_TIMEOUT = 60.0
"""Seconds a command of the batch system may take."""
LOST_WORKER_TIMEOUT = 5.0
"""Seconds after which a job whose workers have left is replaced; a nanny restarts one in less."""


LONGEST_PAUSE = 60.0
"""Seconds between attempts to submit a job, at most."""
_ELSEWHERE = "use a login node of the cluster, or workers on this machine (without --site)"
_NOT_SET_UP = "Could not establish a configuration source"
"""Of a machine that has the commands of SLURM, but no cluster."""
LOG = logging.getLogger(__name__)
_PASSES = re.compile(
    r"tim(ed|e) ?out|did not answer|unable to contact|temporarily|try again|\bbusy|zero bytes|socket|"
    r"connection (refused|failure|reset)|communication|munge|authentication|\w*Submit\w*Limit|"
    r"MaxSubmitJobs|cannot connect to server|would exceed .*limit",
    re.IGNORECASE,
)
"""What a batch system says of troubles that pass by themselves, a full queue of the user included."""


class QueuedJob(NamedTuple):
    """A job in the queue."""

    number: str
    state: str
    reason: str
    name: str = ""


def passes(refusal: str) -> bool:
    """Return whether a batch system that refuses a job with these words may take it later."""
    return _PASSES.search(refusal) is not None


def probe(script: str, patience: float = 0.0) -> str:
    """Return SLURM's answer to a test of a job script; raises ClusterError if it would be refused."""
    return one_line("".join(_sbatch("--test-only", script, patience)))


def submit_script(script: str, name: str, patience: float = 0.0) -> str:
    """Submit a job script and return the job's number; raises ClusterError with sbatch's message.

    name: of the job in the script, which no other job has. patience: seconds for which it is tried again
    where SLURM cannot take it now.
    """
    printed = _sbatch("--parsable", script, patience, name)[1]
    with suppress(ClusterError):  # the number that the queue has, whatever a site prints
        if number := _number_of(name):
            return number
    return job_number(printed)


def job_number(said: str) -> str:
    """Return the number of a job that sbatch has submitted, above which a site may print lines of its own.

    In place of dask-jobqueue's method. Raises ClusterError where there is none.
    """
    found = re.search(
        r"(?:^Submitted batch job )?\b(\d+)(?:;\S*| on cluster \S+)?$",
        said.strip().rpartition("\n")[2],
    )
    if found is None:
        raise ClusterError(
            f"sbatch printed no number of a job ({shown(said)}): see `squeue --me` whether it runs, and ask "
            f"your site what its sbatch prints"
        )
    return found[1]


def jobs() -> list[QueuedJob]:
    """Return the user's waiting and running jobs; raises ClusterError if SLURM does not answer."""
    words = ["squeue", "--noheader", "--format=%A|%T|%r|%j", "--user", str(os.getuid())]
    status, said, listed = _run(words, "")
    if status:
        raise ClusterError(f"squeue failed ({one_line(said)})")
    return [QueuedJob(*line.split("|", 3)) for line in listed.splitlines() if line.count("|") >= 2]


def _number_of(name: str) -> str | None:
    return next((job.number for job in jobs() if job.name == name), None)


def _sbatch(option: str, script: str, patience: float, name: str = "") -> tuple[str, str]:
    """Return what sbatch says and prints; name: of the job to be submitted."""
    began, pause, refusal, known = time.monotonic(), 1.0, "", True
    while True:
        if known:
            refusal, said, printed = _asked(option, script)
            if not refusal:
                return said, printed
            LOG.warning("sbatch: %s; trying again", refusal)
        passed = time.monotonic() - began
        time.sleep(min(pause, max(patience - passed, 1.0)))
        pause = min(2 * pause, LONGEST_PAUSE)
        known = not name
        with suppress(ClusterError):  # squeue does not answer either
            if name and (number := _number_of(name)):
                return "", number
            known = True
        if passed >= patience:
            raise ClusterError(
                f"sbatch has taken no job for {passed:.0f} s ({refusal}): see `scontrol ping` and "
                f"`squeue --me`"
            )


def _asked(option: str, script: str) -> tuple[str, str, str]:
    """Return why sbatch cannot take a job now, '' where it did, and what it says and prints."""
    try:
        status, said, printed = _run(["sbatch", option], script)
    except _NoAnswerError as e:
        return str(e), "", ""
    if not status:
        return "", said, printed
    refusal = one_line(said + printed) or f"exit status {status}"
    if _NOT_SET_UP in refusal:
        raise ClusterError(f"SLURM is not set up on this machine ({refusal}): {_ELSEWHERE}")
    if not passes(refusal):
        raise ClusterError(
            f"sbatch rejected the job ({refusal}): change the site's settings or the options"
        )
    return refusal, said, printed


class _NoAnswerError(ClusterError):
    """A command of the batch system did not end in time."""


def _run(command: list[str], stdin: str) -> tuple[int, str, str]:
    """Return the exit status of a command, its errors and its output."""
    if shutil.which(command[0]) is None:
        raise ClusterError(f"{command[0]} is not available on this machine: {_ELSEWHERE}")
    try:
        streams = {"input": stdin, "capture_output": True, "text": True}
        ended = subprocess.run(command, **streams, timeout=COMMAND_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        raise _NoAnswerError(
            f"{command[0]} did not answer within {COMMAND_TIMEOUT:g} s: check whether the batch system is "
            f"down"
        ) from None
    return ended.returncode, ended.stderr, ended.stdout
