"""One core, half and all of them, in one run: kernels alone, and passes of the program over resident data."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from homodyne_dask.machine.cores_and_cgroup_limits import cores
from tests.benchmarks import data, passes
from tests.benchmarks.__main__ import ONE_THREAD
from tests.benchmarks.passes import Row

KERNEL = "from tests.benchmarks import kernel; print(kernel.run()['M pairs/s'])"


def run(folder: Path) -> Iterator[Row]:
    """Millions of pairs per second of all kernels and of each way, and the best way beside the kernels."""
    store, total = data.widened(folder, 2950, 10), cores()
    for n in sorted({1, max(1, total // 2), total}):
        ways = {
            "a worker of as many threads": (1, n),
            "as many threads": (0, n),
            "as many workers": (n, 1),
        }
        name = "all cores" if n == total else f"cores {n}"
        kernels, rates = sum(lone_kernels(n)), []
        yield {f"{name}, lone kernels": kernels}
        for way, (processes, threads) in [*ways.items()][: 1 if n == 1 else None]:
            rates.append(passes.rate(store, "resident", processes, threads)["M pairs/s"])
            yield {f"{name}, {way}": rates[-1]}
        yield {f"{name}, passes / lone kernels": max(rates) / kernels}


def lone_kernels(number: int) -> list[float]:
    """Return the millions of pairs per second of each of so many kernels, at once, a thread each."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", KERNEL], env=os.environ | ONE_THREAD, stdout=subprocess.PIPE
        )
        for _ in range(number)
    ]
    return [float(process.communicate()[0]) for process in started]
