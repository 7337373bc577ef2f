"""One core, half and all of them, in one run: kernels alone, and passes of the program over resident data."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from homodyne_dask.machine.cores_and_cgroup_limits import cores
from tests.benchmarks import data, passes
from tests.benchmarks.passes import Row

KERNEL = "from tests.benchmarks import kernel; print(kernel.run()['M pairs/s'])"
WAYS: dict[str, Callable[[Path, int], Row]] = {
    "a worker of as many threads": lambda store, n: passes.rate(store, "resident", 1, n),
    "as many threads": lambda store, n: passes.rate(store, "resident", 0, n),
    "as many workers": lambda store, n: passes.rate(store, "resident", n, 1),
}
"""How a pass uses cores."""


def run(folder: Path) -> Iterator[Row]:
    """Millions of pairs per second of all kernels and of each way, and the best way beside the kernels."""
    store, total = data.widened(folder, 2950, 10), cores()
    for n in sorted({1, max(1, total // 2), total}):
        of = "all cores" if n == total else f"cores {n}"
        kernels, rates = sum(lone_kernels(n)), []
        yield {f"{of}, lone kernels": kernels}
        for way, rate in WAYS.items() if n > 1 else [*WAYS.items()][:1]:
            rates.append(rate(store, n)["M pairs/s"])
            yield {f"{of}, {way}": rates[-1]}
        yield {f"{of}, passes / lone kernels": max(rates) / kernels}


def lone_kernels(number: int) -> list[float]:
    """Return the millions of pairs per second of each of so many kernels, at once, a thread each."""
    environment = os.environ | {"NPROC": "1", "OPENBLAS_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", KERNEL], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(number)
    ]
    return [float(each.communicate()[0]) for each in started]
