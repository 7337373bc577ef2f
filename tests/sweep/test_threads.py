"""Fits on threads of this process: the bits of one thread, memory as planned, a page, and nothing left."""

import subprocess
import sys
import threading
import time

import pytest

import homodyne_dask as hd
from homodyne_dask.cluster import workers
from homodyne_dask.errors import OptionError
from homodyne_dask.fitting import observer as fit_observer
from homodyne_dask.machine.allocator_and_threads import in_thread
from homodyne_dask.sweep import blocks as block_cache
from homodyne_dask.sweep import layout as layouts
from homodyne_dask.sweep import plan as plans
from homodyne_dask.sweep import tasks
from tests.result_bits import result_bits
from tests.synthetic import CREEP, FLOW, angles, measured, module_scan, store

GIVEN = {"initial": {"D0": 9000.0, "alpha": 0.0}, "fixed": {"D_offset": 1000.0}}
scan = module_scan(lambda: measured(CREEP, 1100, angles(3), dt=0.1))
"""3 angles of 1100 frames: 6 tiles, 1.8 million pairs."""


@pytest.fixture
def threads(monkeypatch):
    return lambda number: monkeypatch.setattr(workers, "cores", lambda: number)


@pytest.fixture(autouse=True)
def _many_tasks(monkeypatch):
    """A task for every few tiles, and threads of JAX for all that compute them."""
    monkeypatch.setattr(workers, "jax_threads", lambda: 64)
    monkeypatch.setattr(plans, "MIN_TASK_SECONDS", 0.0)
    monkeypatch.setattr(layouts, "SCHEDULER_SECONDS", 0.0)


@pytest.mark.long(whole=True)
@pytest.mark.parametrize(
    "options", [{}, {"loss": "soft_l1"}, {"memory": "stream"}, {"min_lag": 600}], ids=str
)
def test_any_pass_on_any_number_of_threads_has_the_same_bits(scan, threads, options):
    fitted = []
    for number in (1, 3, 16)[: 2 if options else 3]:
        threads(number)
        fitted.append(result_bits(hd.fit(scan, hd.STATIC, **GIVEN, **options)))
    assert fitted == fitted[:1] * len(fitted)


def test_a_fit_has_no_more_threads_than_tiles_and_says_how_many(scan, threads):
    threads(16)
    plan = hd.plan(scan, hd.STATIC)
    assert (plan.workers.threads, plan.workers.local) == (6, True)
    assert "in this process on 6 threads" in str(plan)


def test_workers_are_started_for_data_that_do_not_fit_in_memory(scan, monkeypatch):
    monkeypatch.setattr(plans, "IN_PROCESS_PAIRS", 0)
    assert not hd.plan(scan, hd.STATIC).workers.to_start
    assert hd.plan(scan, hd.STATIC, memory="stream").workers.to_start
    monkeypatch.setattr(plans, "RESIDENT_SHARE", 1e-9)
    assert hd.plan(scan, hd.STATIC).workers.to_start


@pytest.mark.long
def test_an_interruption_ends_the_pass_and_its_threads(tmp_path, threads, monkeypatch):
    threads(2)
    scan = store(measured(CREEP, 1600, [0.0], dt=0.1), tmp_path)  # 10 tiles
    read, plain = [], tasks.block

    def slowly(*given):
        read.append(given)
        time.sleep(0.3)
        return plain(*given)

    def interrupt(event):
        if isinstance(event, hd.events.TilesDone):
            raise KeyboardInterrupt

    monkeypatch.setattr(tasks, "block", slowly)
    monkeypatch.setattr(fit_observer, "EVENT_INTERVAL", -1)
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        hd.fit(scan, hd.STATIC, **GIVEN, callbacks=[interrupt])
    assert set(threading.enumerate()) <= before
    assert len(read) < 10


def test_what_a_task_raises_reaches_the_caller(scan, threads, monkeypatch):
    threads(4)

    def fail(*_):
        raise OptionError("of a task")

    monkeypatch.setattr(tasks, "block", fail)
    with pytest.raises(OptionError, match="of a task"):
        hd.fit(scan, hd.STATIC, **GIVEN)


def test_large_data_do_not_stay_in_memory_after_a_fit(scan, monkeypatch):
    hd.fit(scan, hd.STATIC, **GIVEN)
    assert block_cache.BLOCKS  # few data are fitted again without reading
    monkeypatch.setattr(block_cache, "_LARGE", 1000)
    hd.fit(scan, hd.STATIC, **GIVEN)
    assert not block_cache.BLOCKS


@pytest.mark.long
def test_fits_at_the_same_time_have_the_bits_of_each_alone(scan, threads):
    threads(2)
    alone, made = result_bits(hd.fit(scan, hd.STATIC, **GIVEN)), []

    def fit():
        made.append(result_bits(hd.fit(scan, hd.STATIC, **GIVEN)))

    for done in [in_thread(fit) for _ in range(3)]:
        done.result()
    assert made == [alone] * 3


MEMORY = """
import re
from pathlib import Path
import homodyne_dask as hd
from homodyne_dask.cluster import workers
workers.cores = workers.jax_threads = lambda: 8
scan = hd.open_dataset("scan_c2.zarr")
plan = hd.plan(scan, "laminar_flow", gap="200 um")
hd.fit(scan, "laminar_flow", gap="200 um")
(peak,) = re.findall(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
print(plan.workers.threads, int(peak) * 1024, plan.memory_per_worker)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.long
def test_a_fit_stays_within_the_memory_of_its_plan(tmp_path):
    store(measured(FLOW, 1600, angles(12), dt=0.1), tmp_path, "scan_c2")
    ran = subprocess.run(
        [sys.executable, "-c", MEMORY], cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    assert ran.returncode == 0, ran.stderr
    threads, used, planned = map(int, ran.stdout.split())
    assert threads == 8
    assert 0.4 * planned < used <= planned
