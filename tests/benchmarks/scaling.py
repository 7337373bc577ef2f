"""What a pass over 1e11 pairs would take of clusters that are not there, as docs/performance.md.

`python -m tests.benchmarks.scaling` prints the table, from the plan of the program.
"""

from heapq import heapreplace

from homodyne_dask.cluster.workers import workers_asked
from homodyne_dask.sweep.layout import SCHEDULER_SECONDS, Layout
from homodyne_dask.sweep.plan import make_plan

BINS, SIDE = 23, 512
SECONDS_PER_PAIR = 8e-9
"""Of a thread that computes and reads: c + r of the page."""
TASK_OVERHEAD_SECONDS = 0.008
"""Processor time of Dask for a task, in driver and worker together."""
MESSAGES_PER_TASK = 7
EURO_PER_CORE_HOUR = 0.04
CASES = [(11, workers) for workers in (10, 100, 1000)]
"""Powers of ten of pairs, and workers of eight threads."""


def layout_of(pairs: float) -> Layout:
    """The tiles of so many pairs; nothing of them is anywhere."""
    side = int((2 * pairs / BINS) ** 0.5) // SIDE + 1
    tiles = tuple((i, j) for i in range(side) for j in range(i, side))
    return Layout(SIDE, BINS, (tuple(range(BINS)),), tiles, int(pairs))


def line(power: int, workers: int) -> str:
    pairs = 10.0**power
    cut = layout_of(pairs)
    plan = make_plan(cut, workers_asked(workers), "laminar_flow", 7, BINS)
    tasks, threads = len(plan.tasks), plan.workers.threads
    of_tile = pairs / cut.blocks * SECONDS_PER_PAIR
    seconds = makespan(
        [TASK_OVERHEAD_SECONDS + of_tile * len(task.tiles) for task in plan.tasks], threads
    )
    messages, rate = (  # to two digits
        int(float(f"{number:.2g}"))
        for number in (MESSAGES_PER_TASK * tasks, plan.layout.bytes_per_pass / seconds / 1e9)
    )
    return (
        f"| 10{str(power).translate(str.maketrans('01', '⁰¹'))} | {workers} | {tasks} | {messages} "
        f"| {plan.driver.seconds:.1f} s | {plan.driver.memory / 1e9:.2f} GB "
        f"| {pairs * SECONDS_PER_PAIR / threads:.2g} s | {seconds:.2g} s | {rate} "
        f"| {seconds * threads / 3600 * EURO_PER_CORE_HOUR:.2g} € |"
    )


def makespan(seconds: list[float], threads: int, serve: float = SCHEDULER_SECONDS) -> float:
    """The time in which some threads that take tasks in turn complete all.

    serve: seconds in which the scheduler serves a task, one after the other.
    """
    free = [0.0] * threads
    for n, task in enumerate(seconds):
        heapreplace(free, max(free[0], n * serve) + task)
    return max(free)


if __name__ == "__main__":
    for case in CASES:
        print(line(*case))
