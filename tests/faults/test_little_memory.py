"""Too little memory is a sentence with what is needed and what there is, before anything is started."""

import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import h5py
import pytest

from homodyne_dask.cli.exit_status import BAD_INPUT, BUG, error_sentence, print_error
from homodyne_dask.cluster import local, workers
from homodyne_dask.errors import PlanError, SourceError
from homodyne_dask.machine import cores_and_cgroup_limits as limits
from homodyne_dask.sweep.layout import layout
from homodyne_dask.sweep.plan import make_plan
from ingest.readers.hdf5 import read_matrix
from tests.faults.processes import ENVIRONMENT
from tests.ingest_files import simulated
from tests.sweep.plans import scan_to_plan

MB = 1_000_000


def cgroup(folder: Path, **values: int | str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (folder / name.replace("__", ".")).write_text(f"{value}\n")


@pytest.fixture
def inside(tmp_path, monkeypatch):
    """This process in a cgroup whose outer one has 300 MB, of which 100 MB and 40 MB of files are used."""
    monkeypatch.setattr(limits, "CGROUPS", tmp_path)
    text = limits.system_text
    lines = {"/proc/self/cgroup": "5:cpu:/job\n4:memory:/job/step\n0::/job/step\n"}
    monkeypatch.setattr(limits, "system_text", lambda path: lines.get(str(path)) or text(path))
    return tmp_path


STAT = f"inactive_file {40 * MB}\ntotal_inactive_file {20 * MB}"
CGROUPS = {
    "new": ("", "max", "current", "max", 200 * MB),
    "old": ("memory", "limit_in_bytes", "usage_in_bytes", 2**63 - 4096, 180 * MB),
}


@pytest.mark.parametrize("kind", CGROUPS)
def test_the_room_in_a_cgroup_is_that_of_the_narrowest(inside, kind):
    root, limit, used, unlimited, room = CGROUPS[kind]
    inner = {f"memory__{limit}": unlimited, f"memory__{used}": 100 * MB}
    outer = {f"memory__{limit}": 300 * MB, f"memory__{used}": 140 * MB}
    cgroup(inside / root / "job", **outer, memory__stat=STAT)
    cgroup(inside / root / "job/step", **inner, memory__stat=STAT)
    assert workers.available_memory() == room


@pytest.mark.parametrize(
    ("of_new", "of_old", "job", "usable"),
    [
        ("max 100000", "-1", "", 16),
        ("300000 100000", "-1", "", 3),
        ("max 100000", "250000", "", 3),
        ("50000 100000", "-1", "8", 1),
        ("max 100000", "-1", "4", 4),
        ("max 100000", "-1", "64", 16),
        ("max 100000", "-1", "4(x2)", 16),
        ("max 100000", "-1", "0", 16),
    ],
    ids=["none", "v2", "v1, rounded up", "half a core", "SLURM", "SLURM above", "no number", "0"],
)
def test_threads_follow_quotas_the_job_and_the_affinity(
    inside, monkeypatch, of_new, of_old, job, usable
):
    monkeypatch.setattr(limits.os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", job)
    monkeypatch.delenv("NPROC", raising=False)
    cgroup(inside / "job", cpu__max=of_new)
    cgroup(inside / "cpu/job", cpu__cfs_quota_us=of_old, cpu__cfs_period_us=100000)
    assert limits.cores() == limits.jax_threads() == usable
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "8")  # of `sbatch --ntasks 8`
    assert limits.cores() == min(usable, 8)
    monkeypatch.setenv("NSLOTS", "1")
    assert limits.cores() == 1


@pytest.fixture
def small_driver(monkeypatch):
    """A driver that has taken 100 MB."""
    used = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=100 * MB))
    monkeypatch.setattr(workers.psutil, "Process", lambda: used)


@pytest.mark.usefixtures("small_driver")
def test_a_plan_that_does_not_fit_says_what_is_needed_and_what_there_is(monkeypatch):
    monkeypatch.setattr(workers, "available_memory", lambda: 300 * MB)
    cut = layout(scan_to_plan(300, 3))
    here = r"^this process would need 7\d\d MB, but only 300 MB is available here: free memory"
    with pytest.raises(PlanError, match=here):
        make_plan(cut, workers.this_process(), "static", 3, 3)
    with pytest.raises(PlanError, match=r"^a worker would need .* only 0 B is available here"):
        make_plan(cut, workers.local_workers(), "static", 3, 3)


@pytest.mark.usefixtures("small_driver")
@pytest.mark.parametrize(("free", "given"), [(40_000, 30_000), (1000, 300)])
def test_workers_leave_room_for_the_driver_and_get_three_quarters_of_much(monkeypatch, free, given):
    monkeypatch.setattr(workers, "available_memory", lambda: free * MB)
    assert workers.memory_for_workers(2) == given * MB


@pytest.mark.parametrize(("free", "given"), [(0, None), (900 * MB, None), (40_000 * MB, 200)])
def test_workers_without_room_are_not_started(monkeypatch, free, given):
    """To Dask a limit of 0 is none, and a worker over its limit is started again without end."""
    monkeypatch.setattr(workers, "available_memory", lambda: free)
    refused = pytest.raises(PlanError, match=r"^a worker would need 200 MB, .* only \d")
    with refused, local.local_cluster(processes=4, memory=given):
        pass


EXHAUSTED = [
    MemoryError(),
    OSError(12, "Cannot allocate memory"),
    RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes"),
    RuntimeError("can't start new thread"),
    ImportError("libx.so: failed to map segment from shared object"),
]


@pytest.mark.parametrize("error", EXHAUSTED, ids=lambda e: type(e).__name__)
def test_memory_that_is_used_up_is_no_bug(error, capsys):
    assert print_error(error) == BAD_INPUT
    assert "the memory available to this process is used up" in capsys.readouterr().err


def test_other_errors_stay_what_they_are():
    damaged = SourceError("A.hdf is damaged")
    damaged.__cause__ = MemoryError()  # a size that was read from it
    assert error_sentence(damaged) == "A.hdf is damaged"
    assert print_error(ValueError("x")) == BUG


run = partial(subprocess.run, env=ENVIRONMENT, capture_output=True, text=True)


TOO_LITTLE = [
    (100, "info", "the address space is limited to 100 MB (ulimit -v)"),
    (440, "info", "the address space is limited to 440 MB (ulimit -v)"),  # for some libraries
    (1000, "simulate", "a simulation would need"),  # for threads of JAX, which ends the process
    (700, "ingest", "an ingest would need"),  # for threads of HDF5, which calls the file damaged
]


@pytest.mark.parametrize(("megabytes", "command", "says"), TOO_LITTLE)
def test_too_little_address_space_is_one_sentence(tmp_path, megabytes, command, says):
    """The limit is set by a shell: this process has threads of JAX."""
    shell = ["sh", "-c", f'ulimit -v {megabytes * MB // 1024 + 1}; exec "$@"', "limited"]
    words = [sys.executable, "-m", "homodyne_dask.cli", command, str(tmp_path / "A.h5")]
    ended = run([*shell, *words])
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"error: {says}")
    assert ended.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_matrix_for_which_there_is_no_memory_is_not_called_damaged(tmp_path, monkeypatch):
    def nothing_free(*_):
        raise MemoryError("Unable to allocate 1.87 MiB")

    file = simulated(tmp_path / "A.hdf", n=12)
    monkeypatch.setattr(h5py.Dataset, "__getitem__", nothing_free)
    with pytest.raises(MemoryError):
        read_matrix(file, "xpcs/twotime/correlation_map/c2_00001")


DECODING = """
import ctypes, resource, threading
import numpy as np
from homodyne_dask.store.chunks import decode_chunk, encode_chunk

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
values = np.random.default_rng(0).normal(size=(512, 512)).astype(np.float32)
chunk = encode_chunk(values).content
body, checksum = chunk[:-4], chunk[-4:]

def decode():
    held = []
    for count in 2 ** np.arange(20, 10, -1):
        while block := libc.malloc(int(count)):
            held.append(block)
    for block in held[-2:]:
        libc.free(block)
    try:
        decode_chunk(body, checksum, values)
    except MemoryError:
        print("no memory")

used = 4096 * int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (used + 100_000_000,) * 2)
thread = threading.Thread(target=decode)
thread.start()
thread.join()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_chunk_for_which_there_is_no_memory_is_not_called_damaged():
    """Blosc crashes where it can allocate nothing."""
    ended = run([sys.executable, "-c", DECODING])
    assert (ended.stdout, ended.stderr) == ("no memory\n", "")
