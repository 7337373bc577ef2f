"""The fitted models, evaluated in a process of their own.

JAX takes more memory than a page may, and its compiler would hold the page up. One process serves all results
of a page; it ends with the connection to it.
"""

import subprocess
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from socket import socketpair
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
from jaxtyping import Float, Float32

from homodyne_dask.errors import HomodyneDaskError, OptionError
from homodyne_dask.live.view.window import CellAxis
from homodyne_dask.results.fit_result import FitResult
from homodyne_dask.store.processes import python_command
from homodyne_dask.store.scan import Scan

WORKER = "homodyne_dask.live.view.model_worker"


@dataclass(frozen=True)
class RateLine:
    """A rate against time, with bands of 68 and 95 %."""

    time: Float[np.ndarray, " n"]
    """s."""
    value: Float[np.ndarray, " n"]
    bands: tuple[Float[np.ndarray, "2 n"], ...]
    """Lower and upper edges, the narrower band first; none where no covariance is known."""
    errors: str
    """Covariance of the bands: robust, naive or none."""


class Rates(NamedTuple):
    """The rates of a result."""

    lines: dict[str, RateLine]
    """J and gamma_dot, those that it has."""
    notes: tuple[str, ...]
    """What is to be known about the bands."""


class ModelProcess:
    """The process that evaluates the models of some results; use it in a `with`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._results: list[bytes] = []

    def __enter__(self) -> "ModelProcess":
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._stop()

    def add(self, result: FitResult, scan: Scan) -> int:
        """Add a result and what was fitted; return the number by which it is asked for."""
        held = cloudpickle.dumps((result, scan.selection))
        with self._lock:
            self._results.append(held)
            self._stop()
            self._start()  # it loads JAX while the page is made
            return len(self._results) - 1

    def means(
        self, number: int, bin: int, rows: CellAxis, columns: CellAxis
    ) -> Float32[np.ndarray, "rows columns"]:
        """Return the means of f over the cells of a window.

        Raises OptionError where the model is not known here, or the process has died.
        """
        return self._ask("means", number, bin, rows, columns)

    def f_at(
        self, number: int, bin: int, t1: Float[np.ndarray, " n"], t2: Float[np.ndarray, " n"]
    ) -> Float[np.ndarray, " n"]:
        """Return f of a bin at pairs of times."""
        return self._ask("f_at", number, bin, t1, t2)

    def rates(self, number: int) -> Rates:
        """Return J and, with shear, gamma_dot; nothing for a model that has no rates."""
        return self._ask("rates", number)

    def _ask(self, *request: Any) -> Any:
        with self._lock:
            try:
                if self._process is None:
                    self._start()
                self._connection.send(request)
                answer = self._connection.recv()
            except (OSError, EOFError):
                self._stop()
                answer = OptionError(
                    "the process that evaluates the model has died, perhaps for want of memory: it is "
                    "started again as soon as something else is shown"
                )
        return _answer(answer)

    def _start(self) -> None:
        ours, theirs = socketpair()
        with theirs:
            words = python_command("-W", "ignore", "-m", WORKER, str(theirs.fileno()))
            self._process = subprocess.Popen(
                words, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
            )
        self._connection = Connection(ours.detach())
        for held in self._results:
            self._connection.send(("add", held))
            _answer(self._connection.recv())

    def _stop(self) -> None:
        if self._process is not None:
            self._connection.close()
            self._process.kill()
            self._process.wait()
            self._process = None


def _answer(answer: Any) -> Any:
    """Return an answer of the process; raises what it is where it is an error."""
    if isinstance(answer, HomodyneDaskError):
        raise answer
    return answer
