"""The effect of flags and variables that people copy on the kernel: on its rate and on its bits.

Each setting runs in a process of its own, which takes turns with a process of the plain environment,
so that other programs on this machine slow both. All of them take ten minutes.
"""

import hashlib
import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np

from homodyne_dask.apps.doctor import environment as jax_settings
from homodyne_dask.apps.doctor.environment import FLAG_EFFECTS, VARIABLE_EFFECTS
from homodyne_dask.apps.doctor.kernel_process import (
    KernelProcess,
    KernelProcessError,
    decoded_moments,
    first_sentence,
    plain_environment,
)


class Setting(NamedTuple):
    """Environment variables of a process that computes with JAX."""

    text: str
    """As people write it."""
    environment: dict[str, str]
    effect: str
    """On a fit."""


def flag(text: str, effect: str) -> Setting:
    return Setting(text, {"XLA_FLAGS": text}, effect)


def variables(text: str, effect: str) -> Setting:
    return Setting(text, dict(word.split("=") for word in text.split()), effect)


PLAIN = Setting("(nothing)", {}, "a second plain process: the size of the noise")
FLAGS = (
    PLAIN,
    *(flag(text, effect) for text, effect in FLAG_EFFECTS.items()),
    flag(
        "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
        "the second word is not a flag and is not read",
    ),
    flag("intra_op_parallelism_threads=1", "is taken for the name of a file"),
    flag(
        "--xla_cpu_enable_fast_math=true --xla_cpu_fast_math_honor_nans=false",
        "lets the compiler assume that there is no NaN: masked pairs are",
    ),
)
VARIABLES = (
    *(variables(text, effect) for text, effect in VARIABLE_EFFECTS.items()),
    variables("JAX_NUM_THREADS=1", "not read"),
    variables("OMP_NUM_THREADS=1", "limits NumPy's linear algebra, not JAX"),
    variables("OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1", "limits NumPy's linear algebra, not JAX"),
    variables("TF_CPP_MIN_LOG_LEVEL=3", "hides warnings of XLA"),
    variables("XLA_PYTHON_CLIENT_PREALLOCATE=false", "for GPUs"),
)
SYNCHRONOUS = "JAX_CPU_ENABLE_ASYNC_DISPATCH=0"
THREADS = (
    Setting("(nothing)", {}, "a pool of as many threads as cores"),
    variables("NPROC=1", "a pool of one thread"),
    variables("NPROC=2", "a pool of two threads"),
    variables("PJRT_NPROC=1", "as NPROC, and preferred to it"),
    variables(f"{SYNCHRONOUS} NPROC=1", VARIABLE_EFFECTS[SYNCHRONOUS]),
    variables(f"{SYNCHRONOUS} NPROC=2", VARIABLE_EFFECTS[SYNCHRONOUS]),
    variables("NPROC=0", "a pool of one thread"),
    variables("NPROC=16", "sixteen threads on any number of cores"),
    variables("OMP_NUM_THREADS=1", "nothing"),
    variables("JAX_NUM_THREADS=1", "nothing"),
    flag("--xla_cpu_multi_thread_eigen=false", "nothing"),
)
"""Compared with one and with two Python threads calling the kernel, as the threads of a worker."""


ROUNDS = 9
POOLS = (1, 2)
"""NPROC of the processes compared."""
Row = dict[str, Any]


class Started(NamedTuple):
    """A process that has run the kernel once, and its first answer."""

    process: KernelProcess
    first: float
    """Seconds of the first pass, with its compilation."""
    pairs: int
    moments: bytes
    error: float
    """Relative, against plain NumPy."""
    pool: int
    """Threads of XLA."""

    @property
    def sha256(self) -> str:
        """Of the bits of the Gram."""
        return hashlib.sha256(self.moments).hexdigest()


def audit(rounds: int = ROUNDS) -> Iterator[Row]:
    """Yield a row for each setting: flags and variables, then threads, then static arguments."""
    yield from flag_rows((*FLAGS, *VARIABLES), rounds)
    yield from thread_rows(THREADS, rounds)
    yield from static_rows()


def flag_rows(settings: Iterable[Setting], rounds: int = ROUNDS) -> Iterator[Row]:
    """Yield for each setting whether it is known, the rate relative to none, and whether bits change."""
    with ExitStack() as stack:
        plain = [_started(stack, {"NPROC": str(pool)}) for pool in POOLS]
        for setting in settings:
            row: Row = {"setting": setting.text, "known": known(setting)}
            row["effect"] = setting.effect
            try:
                for pool, reference in zip(POOLS, plain, strict=True):
                    row |= _compared(setting, pool, reference, rounds)
            except KernelProcessError as e:
                row["ends with"] = str(e)
            yield row


def _compared(setting: Setting, pool: int, plain: Started, rounds: int) -> Row:
    with ExitStack() as stack:
        started = _started(stack, {"NPROC": str(pool)} | setting.environment)
        slow = started.first > 20 * plain.first
        ratios = [
            _turn(plain.process) / _turn(started.process) for _ in range(1 if slow else rounds)
        ]
        row: Row = {
            f"rate x{pool}": statistics.median(ratios),
            f"spread x{pool}": statistics.quantiles(ratios, n=4)[::2] if ratios[1:] else None,
            f"first s x{pool}": started.first,
            f"bits x{pool}": bits(started, plain),
        }
    return row


def _turn(process: KernelProcess) -> float:
    return process.seconds(threads=1, passes=1)


def bits(started: Started, plain: Started) -> str:
    """Return 'same', the relative difference from the plain Gram, or 'WRONG' against plain NumPy."""
    if not started.error < 1e-9 or started.pairs != plain.pairs:
        return "WRONG"
    if started.sha256 == plain.sha256:
        return "same"
    ours, theirs = (np.frombuffer(t.moments).reshape(-1, 10, 10) for t in (started, plain))
    size = np.sqrt(np.einsum("bii->bi", theirs))
    apart = np.abs(ours - theirs) / (size[:, :, None] * size[:, None, :])
    return f"{apart.max():.0e}"


def known(setting: Setting) -> str:
    """Return whether JAX or XLA reads a setting."""
    if "XLA_FLAGS" in setting.environment:
        return jax_settings.flag_state(setting.environment["XLA_FLAGS"])
    names = [name for name in setting.environment if name.startswith("JAX_")]
    if names and not jax_settings.jax_variables().issuperset(names):
        return "no option of JAX"
    return "known" if names else "not of JAX" if setting.environment else "noise"


def thread_rows(settings: Sequence[Setting], rounds: int = ROUNDS) -> Iterator[Row]:
    """Yield the rates with one and with two Python threads calling the kernel at once [M pairs/s].

    The processes take turns.
    """
    with ExitStack() as stack:
        all_started = [_started(stack, setting.environment) for setting in settings]
        seconds: dict[int, list[list[float]]] = {
            1: [[] for _ in settings],
            2: [[] for _ in settings],
        }
        for _ in range(rounds):
            for n, one in enumerate(all_started):
                for threads, lists in seconds.items():
                    lists[n].append(one.process.seconds(threads, passes=2))
        for n, (setting, one) in enumerate(zip(settings, all_started, strict=True)):
            row: Row = {"setting": setting.text, "effect": setting.effect, "pool": one.pool}
            for threads, lists in seconds.items():
                rate = threads * 2 * one.pairs / statistics.median(lists[n]) / 1e6
                row[f"M pairs/s, {threads} calling"] = rate
            yield row | {"bits": bits(one, all_started[0])}


def static_rows() -> Iterator[Row]:
    """Yield compilations and times of the kernel with traced theta, and with theta, q and gap static."""
    module = "tests.benchmarks.static_arguments"
    environment = plain_environment() | {"NPROC": "1"}
    done = subprocess.run(
        [sys.executable, "-m", module], env=environment, capture_output=True, text=True, check=True
    )
    yield from json.loads(done.stdout)


def _started(stack: ExitStack, environment: dict[str, str]) -> Started:
    process = stack.enter_context(KernelProcess(plain_environment() | environment))
    answer = process.answer()
    del answer["unknown_options"]
    moments = decoded_moments(answer.pop("moments")).tobytes()
    return Started(process, moments=moments, **answer)


def table(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the lines of the audit as a table, each as soon as it is measured."""
    heads = {"rate x1": _FLAG_HEAD, "M pairs/s, 1 calling": _THREAD_HEAD, "compilations": _STATIC}
    shown: set[str] = set()
    for row in rows:
        kind = next((key for key in heads if key in row), "rate x1")
        if kind not in shown:
            yield from ([""] if shown else [])
            yield heads[kind]
            shown.add(kind)
        yield _line(kind, row)


_WIDTH = 72
_FLAG_HEAD = (
    f"{'setting':<{_WIDTH}} {'NPROC=1':>8} {'NPROC=2':>8} {'first s':>8} {'Gram':>6}  jaxlib"
)
_THREAD_HEAD = f"{'threads':<{_WIDTH}} {'pool':>8} {'1 calls':>8} {'2 call':>8} {'Gram':>6}"
_STATIC = f"{'theta, q and gap':<{_WIDTH}} {'compiled':>8} {'1st s':>8} {'again s':>8} {'Gram':>6}"


def _line(kind: str, row: Row) -> str:
    if kind == "rate x1":
        values = [row.get("rate x1"), row.get("rate x2"), row.get("first s x1")]
        cells = [row["setting"], *(f"{v:.2f}" if v else "-" for v in values)]
        cells += [row.get("bits x1", "-")]
        ending = row.get("ends with")
        note = row["known"] + (f": {first_sentence(ending)}" if ending else "")
    elif kind == "compilations":
        cells = [row["setting"], str(row["compilations"])]
        cells += [f"{row['first s']:.3f}", f"{row['again s']:.3f}", row["bits"]]
        note = ""
    else:
        rates = [f"{row[f'M pairs/s, {threads} calling']:.0f}" for threads in (1, 2)]
        cells = [row["setting"], str(row["pool"]), *rates, row["bits"]]
        note = ""
    first, *middle, last = cells
    text = f"{first:<{_WIDTH}} " + " ".join(f"{cell:>8}" for cell in middle) + f" {last:>6}"
    return f"{text}  {note}".rstrip()


def run() -> dict[str, float]:
    """Print the table; return rates relative to the plain environment, 0 for what ends a process."""
    rows = []

    def kept():
        for row in audit():
            rows.append(row)
            yield row

    for line in table(kept()):
        print(line)
    found = {}
    for row in rows:
        name = row["setting"].partition(",")[0]
        if "compilations" in row:
            found |= {f"{name}: compilations": row["compilations"], f"{name}: s": row["again s"]}
        elif "pool" in row:
            found[f"{name}: M pairs/s of 2 threads"] = row["M pairs/s, 2 calling"]
        else:
            found[f"{name}: rate"] = row.get("rate x1", 0.0)
    return found
