"""Lifetimes of workers, chosen so that no walltime ends a worker in the middle of its work.

A worker with a lifetime leaves the cluster before its job's walltime, passes its tasks on, and a new
job replaces it. The end of a lifetime interrupts the task being computed: a lifetime must be many times
as long as a task, and workers must not all leave at once.
"""

from typing import NamedTuple

from homodyne_dask.errors import OptionError

LOST_WORKER_TIMEOUT = 5.0
"""Seconds after which a worker that has left is replaced; a nanny restarts one in less."""
START_SECONDS = 30.0
"""Seconds from the start of a job to its first task, with its libraries on a shared file system."""
CLOSING_SECONDS = 60.0
"""Seconds a worker is given to leave: SLURM looks at walltimes every 30 s."""
STAGGER_SHARE = 0.1
"""Spread of lifetimes as a fraction of the walltime, where that is longer than a new worker takes."""


class Lifetime(NamedTuple):
    """Lifetime of a worker and the largest deviation from it, in seconds."""

    seconds: float
    stagger: float


def lifetime(walltime: float, task: float) -> Lifetime:
    """Return the lifetime of workers whose jobs have a walltime, for tasks of up to some seconds.

    Every worker has time for three such tasks at least, and where one leaves another has usually joined
    and computed a task before the next one leaves. Raises OptionError for a walltime too short for that.
    """
    replaced = LOST_WORKER_TIMEOUT + START_SECONDS + task
    work = LOST_WORKER_TIMEOUT + START_SECONDS + 3 * task + CLOSING_SECONDS + task
    needed = max(work + replaced, work / (1 - 2 * STAGGER_SHARE))
    if walltime < needed:
        raise OptionError(
            f"a walltime of {walltime:g} s is too short for workers that start, compute tasks of up "
            f"to {task:.2g} s and leave in time: give at least {-(-needed // 60):.0f} minutes"
        )
    stagger = max(STAGGER_SHARE * walltime, replaced / 2)
    return Lifetime(walltime - CLOSING_SECONDS - task - stagger, stagger)
