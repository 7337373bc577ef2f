"""The kernel in a process of its own, with settings that count only before JAX starts.

`python -m homodyne_dask.cli.doctor.child` prints one line of JSON about itself, then, for each line
"threads passes" it reads, one with the seconds that took.
"""

import base64
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

TIMEOUT = 45.0
"""Seconds of silence after which a child is ended."""
_OURS = ("XLA_FLAGS", "NPROC", "PJRT_NPROC", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


class ChildError(Exception):
    """A child that died or said nothing; the message is its last word."""


class Child:
    """A process that runs the kernel; use in a `with`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed in exit
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
        self.errors.close()

    def answer(self) -> dict[str, Any]:
        """Return the next thing the child says; raises ChildError when it cannot."""
        assert self.process.stdout is not None
        watch = threading.Timer(TIMEOUT, self.process.kill)
        watch.start()
        line = self.process.stdout.readline()
        watch.cancel()
        if not line:
            self.process.wait()
            raise ChildError(last_word(self.stderr()) or f"silent for {TIMEOUT:g} s")
        return json.loads(line)

    def seconds(self, threads: int, passes: int) -> float:
        """Return the seconds in which each of some threads made some passes."""
        assert self.process.stdin is not None
        try:
            print(threads, passes, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            raise ChildError(last_word(self.stderr())) from None
        return self.answer()["seconds"]

    def stderr(self) -> str:
        """Return what the child wrote for people."""
        self.errors.seek(0)
        return self.errors.read()


def last_word(text: str) -> str:
    """Return the reason in what a dying process wrote: without time, file and line."""
    lines = [line for line in text.splitlines() if line.strip()]
    fatal = [line for line in lines if re.match(r"F\d{4} ", line)]
    last = (fatal or lines or [""])[-1]
    return re.sub(r"^[A-Z]\d{4} .*?\] ", "", last).strip()


def brief(reason: str) -> str:
    """Return the first sentence of a reason, without what it tells a second time."""
    return re.sub(r"^(Unknown flag)s? in XLA_FLAGS.*", r"\1", reason.partition(". ")[0])


def plain_environment() -> dict[str, str]:
    """Return this process's environment without what JAX and XLA read."""
    return {k: v for k, v in os.environ.items() if k not in _OURS and not k.startswith("JAX_")}


def decoded(moments: str) -> Float[np.ndarray, " n"]:
    """Return the moments a child told."""
    return np.frombuffer(base64.b64decode(moments))


def pool() -> int:
    """Return the threads on which XLA executes in this process."""
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return names.count("tf_XLAExecute")


def main() -> None:
    """Be the child."""
    from homodyne_dask.cli.doctor.workload import Workload

    work = Workload()
    began = time.perf_counter()
    gram = work.gram()
    told = {
        "first": time.perf_counter() - began,
        "pairs": int(gram.pairs.sum()),
        "moments": base64.b64encode(np.ascontiguousarray(gram.moments)).decode(),
        "wrong": work.wrong(),
        "pool": pool(),
    }
    print(json.dumps(told), flush=True)
    for line in sys.stdin:
        threads, passes = map(int, line.split())
        print(json.dumps({"seconds": work.seconds(threads, passes)}), flush=True)


if __name__ == "__main__":
    main()
