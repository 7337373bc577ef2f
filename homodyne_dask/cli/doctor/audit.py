"""What settings that people copy do to the kernel that a fit calls: to its rate and to its bits.

Every setting gets a process of its own, which takes turns with a process of the plain environment,
so that whatever else this machine does slows both.
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

from homodyne_dask.cli.doctor import flags
from homodyne_dask.cli.doctor.child import Child, ChildError, brief, decoded, plain_environment
from homodyne_dask.cli.doctor.settings import FLAGS, THREADS, VARIABLES, Setting

ROUNDS = 9
POOLS = (1, 2)
"""NPROC of the processes compared."""
Row = dict[str, Any]


class Told(NamedTuple):
    """A child that has run the kernel once, and what it said of that."""

    child: Child
    first: float
    """Seconds of the first pass, with its compilation."""
    pairs: int
    moments: bytes
    wrong: float
    pool: int

    @property
    def sha256(self) -> str:
        """The identity of the Gram's bits."""
        return hashlib.sha256(self.moments).hexdigest()


def audit(rounds: int = ROUNDS) -> Iterator[Row]:
    """Yield what was measured of each setting, flags first, then threads, then traced and static."""
    yield from flag_rows((*FLAGS, *VARIABLES), rounds)
    yield from thread_rows(THREADS, rounds)
    yield from static_rows()


def flag_rows(settings: Iterable[Setting], rounds: int = ROUNDS) -> Iterator[Row]:
    """Yield for each setting: is it known, the ratio of rates with it and without, same bits or not."""
    with ExitStack() as stack:
        plain = [_started(stack, {"NPROC": str(pool)}) for pool in POOLS]
        for setting in settings:
            row: Row = {"setting": setting.text, "known": known(setting)}
            row["does"] = setting.does
            try:
                for pool, beside in zip(POOLS, plain, strict=True):
                    row |= _compared(setting, pool, beside, rounds)
            except ChildError as e:
                row["ends with"] = str(e)
            yield row


def _compared(setting: Setting, pool: int, plain: Told, rounds: int) -> Row:
    with ExitStack() as stack:
        told = _started(stack, {"NPROC": str(pool)} | setting.environment)
        slow = told.first > 20 * plain.first
        ratios = [_turn(plain.child) / _turn(told.child) for _ in range(1 if slow else rounds)]
        row: Row = {
            f"rate x{pool}": statistics.median(ratios),
            f"spread x{pool}": statistics.quantiles(ratios, n=4)[::2] if ratios[1:] else None,
            f"first s x{pool}": told.first,
            f"bits x{pool}": bits(told, plain),
        }
    return row


def _turn(child: Child) -> float:
    return child.seconds(threads=1, passes=1)


def bits(told: Told, plain: Told) -> str:
    """Return 'same', how far the Gram is from the plain one, or 'wrong' against plain NumPy."""
    if not told.wrong < 1e-9 or told.pairs != plain.pairs:
        return "WRONG"
    if told.sha256 == plain.sha256:
        return "same"
    ours, theirs = (np.frombuffer(t.moments).reshape(-1, 10, 10) for t in (told, plain))
    size = np.sqrt(np.einsum("bii->bi", theirs))
    apart = np.abs(ours - theirs) / (size[:, :, None] * size[:, None, :])
    return f"{apart.max():.0e}"


def known(setting: Setting) -> str:
    """Return whether JAX or this jaxlib's XLA reads a setting."""
    if "XLA_FLAGS" in setting.environment:
        return flags.state(setting.environment["XLA_FLAGS"])
    names = [name for name in setting.environment if name.startswith("JAX_")]
    if names and not flags.options().issuperset(names):
        return "no option of JAX"
    return "known" if names else "not JAX's" if setting.environment else "how far noise goes"


def thread_rows(settings: Sequence[Setting], rounds: int = ROUNDS) -> Iterator[Row]:
    """Yield the rates with one and with two Python threads calling the kernel at once [M pairs/s].

    All processes take turns.
    """
    with ExitStack() as stack:
        told = [_started(stack, setting.environment) for setting in settings]
        seconds: dict[int, list[list[float]]] = {1: [[] for _ in told], 2: [[] for _ in told]}
        for _ in range(rounds):
            for n, one in enumerate(told):
                for threads, lists in seconds.items():
                    lists[n].append(one.child.seconds(threads, passes=2))
        for n, (setting, one) in enumerate(zip(settings, told, strict=True)):
            row: Row = {"setting": setting.text, "does": setting.does, "pool": one.pool}
            for threads, lists in seconds.items():
                rate = threads * 2 * one.pairs / statistics.median(lists[n]) / 1e6
                row[f"M pairs/s, {threads} calling"] = rate
            yield row | {"bits": bits(one, told[0])}


def static_rows() -> Iterator[Row]:
    """Yield what theta as a traced argument costs beside theta, q and gap as static constants."""
    module = "homodyne_dask.cli.doctor.static"
    environment = plain_environment() | {"NPROC": "1"}
    done = subprocess.run(
        [sys.executable, "-m", module], env=environment, capture_output=True, text=True, check=True
    )
    yield from json.loads(done.stdout)


def _started(stack: ExitStack, environment: dict[str, str]) -> Told:
    child = stack.enter_context(Child(plain_environment() | environment))
    said = child.answer()
    moments = decoded(said.pop("moments")).tobytes()
    return Told(child, moments=moments, **said)


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
        note = row["known"] + (f": {brief(ending)}" if ending else "")
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


def collected(rows: Iterable[Row]) -> tuple[list[Row], Iterator[Row]]:
    """Return a list that fills as the iterator beside it is used."""
    kept: list[Row] = []

    def keep() -> Iterator[Row]:
        for row in rows:
            kept.append(row)
            yield row

    return kept, keep()
