"""Run programs one after the other; print their CPU seconds, wall seconds and time to a line as JSON.

`python process_tree.py PATTERN [[WORD, ...], ...]`, the programs as JSON. CPU seconds are those of all
processes that descend from a program, also of those whose parents ended before them.
"""

import ctypes
import json
import os
import re
import resource
import subprocess
import sys
import time

PR_SET_CHILD_SUBREAPER = 36


def descendants_seconds() -> float:
    """CPU seconds of all processes that descended from this one and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(pattern: str, programs: list[list[str]]) -> dict[str, float]:
    """Run programs; `first`: seconds to the first line in which the pattern is found."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    cpu, began, first = descendants_seconds(), time.perf_counter(), None
    for program in programs:
        started = subprocess.Popen(
            program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert started.stdout is not None
        said = []
        for line in started.stdout:
            said.append(line)
            if first is None and re.search(pattern, line):
                first = time.perf_counter() - began
        if started.wait() not in (0, 3):  # 3: a fit ended without converging
            raise SystemExit("".join(said[-20:]))
    wall = time.perf_counter() - began
    while True:  # for orphans, which are children of this process now
        try:
            os.wait()
        except ChildProcessError:
            break
    return {
        "CPU s": descendants_seconds() - cpu,
        "wall s": wall,
        "first s": wall if first is None else first,
    }


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], json.loads(sys.argv[2]))))
