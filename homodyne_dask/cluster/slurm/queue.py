"""Commands of SLURM: test a job script, submit it, list the user's jobs."""

import logging
import os
import re
import shutil
import subprocess
import time
from typing import NamedTuple

from homodyne_dask.errors import ClusterError, one_line, shown

COMMAND_TIMEOUT = 60.0
"""Seconds a command of the batch system may take."""
LOST_WORKER_TIMEOUT = 5.0
"""Seconds after which a job whose workers have left is replaced; a nanny restarts one in less."""


LONGEST_PAUSE = 60.0
"""Seconds between attempts to submit a job, at most."""
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


def passes(refusal: str) -> bool:
    """Return whether a batch system that refuses a job with these words may take it later."""
    return _PASSES.search(refusal) is not None


def probe(script: str, patience: float = 0.0) -> str:
    """Return SLURM's answer to a test of a job script; raises ClusterError if it would be refused."""
    return one_line("".join(_sbatch("--test-only", script, patience)))


def submit_script(script: str, patience: float = 0.0) -> str:
    """Submit a job script and return the job's number; raises ClusterError with sbatch's message.

    patience: seconds for which it is tried again where SLURM cannot take it now.
    """
    return job_number(None, _sbatch("--parsable", script, patience)[1])


def job_number(_: object, said: str) -> str:
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
    words = ["squeue", "--noheader", "--format=%A|%T|%r", "--user", str(os.getuid())]
    status, said, listed = _run(words, "")
    if status:
        raise ClusterError(f"squeue failed ({one_line(said)})")
    return [QueuedJob(*line.split("|", 2)) for line in listed.splitlines() if line.count("|") >= 2]


def _sbatch(option: str, script: str, patience: float) -> tuple[str, str]:
    began, pause = time.monotonic(), 1.0
    while True:
        try:
            status, said, printed = _run(["sbatch", option], script)
            if not status:
                return said, printed
            why, remedy = one_line(said + printed), "change the site's settings or the options"
        except _NoAnswerError as e:
            why, remedy = str(e), ""
        passed = time.monotonic() - began
        if not passes(why):
            raise ClusterError(f"sbatch rejected the job ({why}): {remedy}")
        if passed >= patience:
            raise ClusterError(
                f"sbatch has taken no job for {passed:.0f} s ({why}): see `scontrol ping` and `squeue --me`"
            )
        LOG.warning("sbatch: %s; trying again", why)
        time.sleep(min(pause, patience - passed))
        pause = min(2 * pause, LONGEST_PAUSE)


class _NoAnswerError(ClusterError):
    """A command of the batch system did not end in time."""


def _run(command: list[str], stdin: str) -> tuple[int, str, str]:
    """Return the exit status of a command, its errors and its output."""
    if shutil.which(command[0]) is None:
        raise ClusterError(
            f"{command[0]} is not available on this machine: use a login node of the "
            f"cluster, or workers on this machine (without --site)"
        )
    try:
        streams = {"input": stdin, "capture_output": True, "text": True}
        ended = subprocess.run(command, **streams, timeout=COMMAND_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        raise _NoAnswerError(
            f"{command[0]} did not answer within {COMMAND_TIMEOUT:g} s: check whether the batch system is "
            f"down"
        ) from None
    return ended.returncode, ended.stderr, ended.stdout
