"""Ten minutes of fits whose workers are killed leave nothing behind."""

import ctypes
import gc
import linecache
import logging
import random
import sys
import time
from typing import ClassVar

import numpy as np
import psutil
import pytest

from tests.faults.local_workers import by_address, disturbed, everything, shared_memory, workers
from tests.faults.processes import still_there
from tests.result_bits import result_bits
from tests.synthetic import FLOW, angles, measured, store

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(3000)]
SOAK = 600.0
BYTES_OF_OBJECT = 100
"""Of Python, which has memory of its own for small ones."""


def fitted(path, kill):
    shared = set()
    with workers(2) as client:

        def disturb(number):
            shared.update(shared_memory(client))
            kill(client, number)

        result = disturbed(path, client, disturb, memory="auto")
        processes = everything(client)
    return result, [*still_there(processes, 20), *(one for one in shared if one.exists())]


@pytest.fixture
def _no_logs():
    """Nothing is logged: pytest would keep it all, and that is not the memory that is meant."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(before)


@pytest.mark.usefixtures("_no_logs", "many_passes")
def test_ten_minutes_of_fits_with_random_kills_leave_nothing_behind(tmp_path):
    scan = store(measured(FLOW, 1100, angles(4), dt=0.1), tmp_path)
    rng = random.Random(3)
    here = psutil.Process()
    kills, seen, memory, first = [], [], [], None
    until = time.monotonic() + SOAK

    def kill(client, number):
        if rng.random() < 0.3:
            time.sleep(rng.uniform(0, 0.3))
            if running := list(by_address(client).values()):
                kills.append(rng.choice(running))
                kills[-1].kill()

    while time.monotonic() < until:
        result, left = fitted(scan.path, kill)
        first = first or result_bits(result)
        assert result_bits(result) == first
        assert not left
        assert not here.children(recursive=True)
        gc.collect()
        linecache.clearcache()  # what tracebacks of lost workers quoted: no more than there is source
        seen.append((here.num_fds(), here.num_threads()))
        memory.append(in_use() / 2**20)
    handles, threads = (max(column) for column in zip(*seen, strict=True))
    grown = float(
        np.median(np.diff(memory[len(memory) // 4 :]))
    )  # a table that doubles is one step
    print(
        f"{len(seen)} fits, {len(kills)} kills; handles {seen[0][0]} to {seen[-1][0]}, threads "
        f"{seen[0][1]} to {seen[-1][1]}, in use "
        f"{' '.join(f'{one:.1f}' for one in memory)} MiB, {grown:.3f} a fit"
    )
    assert kills
    assert handles <= seen[1][0] + 5
    assert threads <= seen[1][1] + 5
    assert grown <= 0.1


class Allocated(ctypes.Structure):
    """What glibc's mallinfo2 returns, in bytes."""

    _fields_: ClassVar = [(f"field_{n}", ctypes.c_size_t) for n in range(10)]


def in_use() -> int:
    """The bytes that are allocated, about: what is freed is no leak, wherever the allocator keeps it."""
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = Allocated
    found = libc.mallinfo2()
    mapped, in_arenas = found.field_4, found.field_7
    return mapped + in_arenas + BYTES_OF_OBJECT * sys.getallocatedblocks()
