"""With a GPU all is computed on the CPU; JAX starts beside a broken plugin; compiled kernels are kept."""

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray
from jax.experimental.compilation_cache import compilation_cache

import homodyne_dask as hd
from homodyne_dask.errors import PlanError
from homodyne_dask.kernels import devices, gpus
from homodyne_dask.kernels import devices as cache_folder
from homodyne_dask.kernels.compiled import Kernel, kernel
from homodyne_dask.kernels.devices import (
    FOLDER,
    float64_beside,
    float64_on_cpu,
    keep_compiled_programs,
    user_cache_folder,
)
from homodyne_dask.kernels.gpus import MEMORY_SHARES, Gpus, cuda_missing, first_gpu, gpus_of_machine
from homodyne_dask.machine import cores_and_cgroup_limits
from tests.applications import public
from tests.synthetic import FLOW, measured, store


@pytest.fixture
def gpu():
    """JAX computes on a GPU, which is not here: what is not placed on the CPU ends with an error."""
    before = jax.config.jax_default_device
    jax.config.update("jax_default_device", "gpu")
    yield
    jax.config.update("jax_default_device", before)


def test_what_is_not_placed_would_go_to_the_gpu(gpu):
    with pytest.raises(RuntimeError, match="gpu"):
        jnp.zeros(3) + 1
    with float64_on_cpu():
        assert {d.platform for d in (jnp.zeros(3) + 1).devices()} == {"cpu"}


def test_fits_in_this_process_are_on_the_cpu(gpu, tmp_path):
    """Initial values, passes and c2 of the transport models, and fits of residuals."""
    scan = store(measured(FLOW, 24, [0.0, 40.0]), tmp_path)
    assert hd.fit(scan, hd.STATIC, fixed={"alpha": 0, "D_offset": 0}).passes
    c2 = hd.predict(hd.LAMINAR_FLOW, FLOW, scan.time, q=scan.q, phi=scan.phi, gap="200 um")
    assert np.isfinite(c2[:, 0, 1]).all()
    points = xarray.Dataset({"x": ("i", np.arange(5.0)), "y": ("i", 2 * np.arange(5.0))})
    assert public("curve_fit")(lambda x, a: a * x, points).popt[0] == pytest.approx(2)


def test_two_blocks_are_under_way_on_a_device():
    block, entered = jax.device_put(np.zeros(1), jax.devices("cpu")[0]), threading.Event()

    def third():
        with float64_beside(block):
            entered.set()

    with float64_beside(block):
        with float64_beside(block):
            other = threading.Thread(target=third)
            other.start()
            assert not entered.wait(0.1)
        assert entered.wait(10)
    other.join()


PLUGIN = """
import os, json
from pathlib import Path
def initialize():
    seen = {name: os.environ.get(name) for name in ("XLA_PYTHON_CLIENT_PREALLOCATE",)}
    import jax
    seen["platforms"] = jax.config.jax_platforms
    Path(os.environ["SEEN"]).write_text(json.dumps(seen))
    raise RuntimeError("no driver was found\\nand more")
"""
SCRIPTS = {
    "in a user's program": "",
    "in ours": """
from homodyne_dask.cli import main
try:
    main(["--version"])
except SystemExit:
    pass
""",
}


def run(script: str, folder: Path, **variables: str) -> tuple[str, dict]:
    """Run a script beside the plugin; return what it prints and what the plugin saw."""
    plugin = folder / "jax_plugins" / "xla_cuda99"
    plugin.mkdir(parents=True)
    (plugin / "__init__.py").write_text(PLUGIN)
    environment = {name: value for name, value in os.environ.items() if "JAX" not in name}
    path = os.pathsep.join([str(folder), *sys.path])
    environment |= {"PYTHONPATH": path, "SEEN": str(folder / "seen")} | variables
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr == ""
    return done.stdout, json.loads((folder / "seen").read_text())


@pytest.mark.parametrize("where", SCRIPTS)
def test_jax_takes_no_memory_of_gpus_and_says_nothing_of_their_plugin(where, tmp_path):
    script = (
        SCRIPTS[where]
        + """
import os, jax.numpy as jnp
from homodyne_dask.kernels.devices import gpus_here
from homodyne_dask.kernels.devices import float64_on_cpu
with float64_on_cpu():
    assert jnp.zeros(1).dtype == jnp.float64
assert "XLA_PYTHON_CLIENT_PREALLOCATE" not in os.environ
print(gpus_here())
"""
    )
    said, seen = run(script, tmp_path)
    if "has no CUDA" in cuda_missing():  # else there are two plugins
        assert "JAX cannot use a GPU (no driver was found): nvidia-smi shows" in said
    assert seen["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert seen["platforms"] == ("cpu" if where == "in ours" else None)


def driver(memories, cuda=13000, status=0):
    """CUDA's driver of a machine with GPUs of so much memory each, stood in for."""

    def gives(*values):
        def called(into, *arguments):
            into._obj.value = values[arguments[0] if arguments else 0]

        return called

    def name(into, *_):
        into.value = b"NVIDIA H100"

    def uuid(into, device):
        into[:] = [device, *range(15)]

    return SimpleNamespace(
        cuInit=lambda _: status, cuGetErrorString=lambda _, into: gives(b"no device is detected")(into),
        cuDriverGetVersion=gives(cuda), cuDeviceGetCount=gives(len(memories)),
        cuDeviceGet=gives(7, 8), cuDeviceTotalMem_v2=lambda into, n: gives(*memories)(into, n - 7),
        cuDeviceGetName=name, cuDeviceGetUuid_v2=uuid,
    )  # fmt: skip


DRIVERS = {
    "two GPUs": ({}, driver([80_000, 40_000]), Gpus(2, "NVIDIA H100", 30_000)),
    "a share": ({MEMORY_SHARES[0]: "0.5"}, driver([80_000]), Gpus(1, "NVIDIA H100", 40_000)),
    "the old name": ({MEMORY_SHARES[1]: ".9"}, driver([80_000]), Gpus(1, "NVIDIA H100", 72_000)),
    "no share": ({MEMORY_SHARES[0]: "half"}, driver([80_000]), "could not convert"),
    "no GPU": ({}, driver([], status=100), "(cuInit: no device is detected): nvidia-smi shows"),
    "an old driver": ({}, driver([80_000], 12080), "JAX is for CUDA 13, the driver for CUDA 12"),
    "no driver": ({}, None, "(libnone.so: cannot open shared object file"),
    "excluded": ({"JAX_PLATFORMS": "cpu"}, driver([80_000]), "JAX_PLATFORMS=cpu excludes GPUs"),
}


@pytest.mark.parametrize("word", DRIVERS)
def test_the_driver_tells_the_gpus_and_jax_what_it_may_take_of_them(word, monkeypatch):
    variables, cuda, wanted = DRIVERS[word]
    for name in ("JAX_PLATFORMS", *MEMORY_SHARES):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    load = gpus.ctypes.CDLL
    monkeypatch.setattr(gpus, "cuda_plugins", lambda: ["xla_cuda13"])
    monkeypatch.setattr(gpus.ctypes, "CDLL", lambda _: load("libnone.so") if cuda is None else cuda)
    found = gpus_of_machine()
    assert found == wanted if isinstance(wanted, Gpus) else wanted in found


def test_a_gpu_is_known_by_its_identity_and_not_by_its_number(monkeypatch):
    monkeypatch.setattr(gpus.ctypes, "CDLL", {"libcuda.so.1": driver([80_000])}.get)
    assert first_gpu() == "07" + bytes(range(15)).hex()


def test_jax_that_was_started_without_processors_is_one_sentence(monkeypatch):
    def none():
        raise RuntimeError("Unknown backend cpu")

    monkeypatch.setattr(devices, "started", none)
    with pytest.raises(PlanError, match=r"no processor .Unknown backend cpu.: unset JAX_PLAT"):
        devices.first_cpu.__wrapped__()


X = np.linspace(0, 3, 40).reshape(8, 5)


def moments(x, scale):
    """A program of several fusions."""
    y = jnp.exp(-scale * x) * jnp.cos(x)
    return y @ y.T, y.sum()


def begin(given=None):
    """Set the cache up as a process does that begins now; return its folder. given: JAX's own."""
    jax.config.update("jax_compilation_cache_dir", given)
    jax.clear_caches()
    compilation_cache.reset_cache()
    keep_compiled_programs.cache_clear()
    return keep_compiled_programs()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    folder = tmp_path / "around" / "cache"
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    monkeypatch.setenv(FOLDER, str(folder))
    yield folder
    monkeypatch.undo()
    begin()
    for name in names:
        jax.config.update(name, before[name])


def computed(function=moments, *args) -> tuple[bytes, int]:
    """The bits of a new Kernel, and how often it was compiled."""
    jax.clear_caches()
    new = Kernel(function)
    with float64_on_cpu():
        values = new(*(args or (X, np.float64(0.7))))
    return b"".join(np.asarray(v).tobytes() for v in jax.tree.leaves(values)), new.compilations


def entries(folder, name="*"):
    return sorted(folder.glob(f"*/jit_{name}-*"))


@pytest.mark.long
def test_processes_that_begin_at_once_and_later_ones_have_the_same_bits(folder):
    script = "from tests.kernels.test_devices import computed; print(computed())"
    run = [
        subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]  # fmt: skip
    said = [process.communicate(timeout=200) for process in run]
    assert folder.stat().st_mode & 0o777 == 0o700
    begin()
    loaded, compilations = computed()
    assert compilations == 0
    assert {out.strip().rpartition(", ")[0] for out, _ in said} == {str((loaded, 0))[:-4]}, said
    os.environ[FOLDER] = "off"
    assert begin() is None
    assert computed() == (loaded, 1)


DAMAGES = {
    "a flipped bit": lambda content: content[:900] + bytes([content[900] ^ 1]) + content[901:],
    "half written": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_not_used(folder, damage):
    begin()
    kept, _ = computed()
    (entry,) = entries(folder, "moments")
    entry.write_bytes(DAMAGES[damage](entry.read_bytes()))
    os.utime(entry, (1, 1))
    with pytest.warns(UserWarning, match="Error reading persistent compilation cache"):
        assert computed() == (kept, 1)


def made(folder, mode=0o700):
    folder.mkdir(mode=0o700, parents=True)
    folder.chmod(mode)
    return folder


OF_OTHERS = {
    "a file": lambda folder, _: (folder.parent.mkdir(), folder.write_text("a file")),
    "of another user": lambda folder, patch: (
        made(folder), patch.setattr(cache_folder.os, "geteuid", lambda: os.getuid() + 1)
    ),
    "a link": lambda folder, _: folder.symlink_to(made(folder.parent / "there")),
    "that others read": lambda folder, _: made(folder, 0o750),
    "of a disk that is read-only": lambda _, patch: patch.setattr(
        cache_folder.os, "access", lambda *_: False
    ),
    "in a home that cannot be written to": lambda folder, _: folder.parent.write_text("mkdir fails"),
    "of an unknown processor": lambda _, patch: patch.setattr(
        cache_folder, "processor", lambda: None
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", OF_OTHERS)
def test_a_folder_that_is_not_the_users_alone_is_not_used(folder, monkeypatch, what):
    OF_OTHERS[what](folder, monkeypatch)
    assert begin() is None
    assert jax.config.jax_compilation_cache_dir is None
    assert computed() == computed()
    assert not entries(folder)


def test_a_disk_that_is_full_stops_nothing(folder, monkeypatch):
    begin()

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.warns(UserWarning, match="No space left"):
            kept, _ = computed()
    assert computed() == (kept, 1)
    assert computed() == (kept, 0)


def test_the_oldest_entries_are_removed_when_a_process_begins(folder, monkeypatch):
    begin()
    for number in (2.0, 3.0):
        computed(lambda x: x * number, X)  # noqa: B023
    first, second = entries(folder)
    os.utime(first, (1, 1))
    monkeypatch.setattr(cache_folder, "MAX_BYTES", second.stat().st_size)
    begin()
    assert entries(folder) == [second]


def test_a_folder_that_the_user_gave_jax_stays(folder, tmp_path):
    assert begin(str(tmp_path / "mine")) is None
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "mine")
    assert not folder.exists()


CHANGES = {
    "threads": lambda patch: patch.setenv("NPROC", "3"),
    "processor": lambda patch: patch.setattr(cache_folder, "processor", lambda: "flags: sse2"),
    "version": lambda patch: patch.setattr(cache_folder, "VERSIONS", ("0", "0")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_entry_is_of_one_machine_and_its_versions(folder, monkeypatch, change):
    before = begin()
    CHANGES[change](monkeypatch)
    after = begin()
    assert before is not None and after is not None  # noqa: PT018
    assert before != after
    assert before.parent == after.parent


def test_a_processor_is_known_by_its_instructions(monkeypatch, tmp_path):
    text = "processor : {}\nmodel name : Made up\ncpu MHz : {}\nflags : fpu {}\n\nprocessor : 9\n"
    known = []
    for words in [(0, 1000, "avx2"), (1, 2000, "avx2"), (0, 1000, "avx2 avx512f")]:
        (tmp_path / "cpuinfo").write_text(text.format(*words))
        monkeypatch.setattr(cores_and_cgroup_limits, "_CPU_INFO", tmp_path / "cpuinfo")
        cores_and_cgroup_limits.processor.cache_clear()
        known.append(cores_and_cgroup_limits.processor())
    monkeypatch.setattr(cores_and_cgroup_limits, "_CPU_INFO", tmp_path / "none")
    cores_and_cgroup_limits.processor.cache_clear()
    known.append(cores_and_cgroup_limits.processor())
    cores_and_cgroup_limits.processor.cache_clear()
    assert known[0] == known[1] != known[2]
    assert known[3] is None


def test_the_folder_is_that_of_the_user(monkeypatch, tmp_path):
    monkeypatch.delenv(FOLDER)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache_folder() == tmp_path / "homodyne-dask"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # not to be used, says the standard
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert user_cache_folder() == tmp_path / "home" / ".cache" / "homodyne-dask"


def test_a_program_that_calls_python_calls_the_function_of_its_own_process(folder):
    begin()

    def adding(number):
        def called(x):
            return jax.pure_callback(
                lambda x: np.asarray(x) + number, jax.ShapeDtypeStruct((8, 5), x.dtype), x
            )

        return called

    for number in (1.0, 2.0):
        assert computed(adding(number), X)[0] == (X + number).tobytes()


def test_programs_that_differ_only_in_the_argument_they_use_are_not_confused(folder):
    begin()

    def first(x, y):
        return 2 * x

    def second(x, y):
        return 2 * y

    second.__name__ = second.__qualname__ = "first"
    assert computed(first, X, X + 1)[0] == (2 * X).tobytes()
    assert computed(second, X, X + 1)[0] == (2 * X + 2).tobytes()


def test_shapes_types_and_static_arguments_are_compiled_apart(folder):
    @kernel("power")
    def powers(x, factor, *, power):
        return factor * x**power

    def both(*args, power=2):
        with float64_on_cpu():
            return np.asarray(powers(*args, power=power))

    begin()
    assert both(X, 2.0).dtype == np.float64
    assert both(X.astype(np.float32), 2.0).dtype == np.float32
    assert both(X.astype(np.float32), np.float64(2)).dtype == np.float64
    np.testing.assert_allclose(both(X[:2], 2.0, power=3), 2 * X[:2] ** 3)
    assert powers.compilations == 4
    both(X, 2.5)
    assert powers.compilations == 4


def test_threads_share_one_compilation(folder):
    begin()
    kernel = Kernel(lambda x: 2 * x)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(kernel, np.arange(4, dtype=np.float32)))
    assert [float(x) for x in found] == [0, 2, 4, 6]
    assert kernel.compilations == 1


@pytest.mark.long
def test_processors_that_the_environment_excludes_are_named():
    code = "from homodyne_dask.kernels.devices import first_cpu; first_cpu()"
    environment = os.environ | {"JAX_PLATFORMS": "cuda"}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert "unset JAX_PLATFORMS, or let it name cpu" in ran.stderr
    assert "()" not in ran.stderr.splitlines()[-1]
