"""The kernel in a process of its own, for environment variables that JAX reads only at its start.

It runs `workload.py`.
"""

import base64
import json
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

import numpy as np
from jaxtyping import Float

from homodyne_dask.store.processes import python_command

TIMEOUT = 45.0
"""Seconds without an answer after which the process is killed."""
_READ_BY_JAX = ("XLA_FLAGS", "NPROC", "PJRT_NPROC", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


class KernelProcessError(Exception):
    """A process that died or did not answer; the message is the last line it wrote."""


class FirstPass(TypedDict):
    """What the process says of its first pass."""

    first: float
    """Seconds of the first pass, with its compilation."""
    pairs: int
    moments: str
    """See `decoded_moments`."""
    error: float
    """Relative, against plain NumPy."""
    pool: int
    """Threads of XLA."""
    unknown_options: dict[str, str]
    """Options of the kernel that XLA refuses, with the reasons."""


class KernelProcess:
    """A process that runs the kernel on the blocks of a `Workload`; use it in a `with`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed in exit
        self.process = subprocess.Popen(
            python_command("-m", f"{__package__}.workload"),
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )

    def __enter__(self) -> "KernelProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
        self.errors.close()

    def answer(self) -> FirstPass:
        """Return what the process says of its first pass; raises KernelProcessError where it says nothing."""
        return json.loads(self._line())

    def seconds(self, threads: int, passes: int) -> float:
        """Return the seconds in which each of `threads` Python threads made `passes` passes."""
        assert self.process.stdin is not None
        try:
            print(threads, passes, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            raise KernelProcessError(fatal_line(self.stderr())) from None
        return json.loads(self._line())["seconds"]

    def _line(self) -> str:
        assert self.process.stdout is not None
        watch = threading.Timer(TIMEOUT, self.process.kill)
        watch.start()
        line = self.process.stdout.readline()
        watch.cancel()
        if not line:
            self.process.wait()
            raise KernelProcessError(fatal_line(self.stderr()) or f"no answer within {TIMEOUT:g} s")
        return line

    def stderr(self) -> str:
        """Return what the process wrote to stderr."""
        self.errors.seek(0)
        return self.errors.read()


def fatal_line(text: str) -> str:
    """Return the last fatal line of a log of XLA, without time, file and line number."""
    lines = [line for line in text.splitlines() if line.strip()]
    fatal = [line for line in lines if re.match(r"F\d{4} ", line)]
    last = (fatal or lines or [""])[-1]
    return re.sub(r"^[A-Z]\d{4} .*?\] ", "", last).strip()


def first_sentence(reason: str) -> str:
    """Return the first sentence of a reason, without a repetition of the flags in it."""
    return re.sub(r"^(Unknown flag)s? in XLA_FLAGS.*", r"\1", reason.partition(". ")[0])


def plain_environment() -> dict[str, str]:
    """Return the environment of this process without the variables that JAX and XLA read."""
    return {
        k: v for k, v in os.environ.items() if k not in _READ_BY_JAX and not k.startswith("JAX_")
    }


def decoded_moments(moments: str) -> Float[np.ndarray, " n"]:
    """Return the moments of the Gram in the first answer of a process."""
    return np.frombuffer(base64.b64decode(moments))


def jax_pool_threads() -> int:
    """Return the number of threads on which XLA executes in this process."""
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return names.count("tf_XLAExecute")
