"""Kernels compile once, with the options of XLA that it knows, and load what another process compiled."""

import hashlib
import hmac
import os
import pickle
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from homodyne_dask.kernels import cache_folder, compiled
from homodyne_dask.kernels.cache_folder import FOLDER, cache_state, user_cache_folder
from homodyne_dask.kernels.compiled import Kernel, kernel
from homodyne_dask.kernels.devices import float64_on_cpu
from homodyne_dask.store import processes

X = np.linspace(0, 3, 40).reshape(8, 5)
MADE_UP = "xla_cpu_made_up_option"


def moments(x, scale):
    """A program of several fusions."""
    y = jnp.exp(-scale * x) * jnp.cos(x)
    return y @ y.T, y.sum()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    folder = tmp_path / "around" / "cache"
    monkeypatch.setenv(FOLDER, str(folder))
    return folder


def computed(function=moments, *args, options=None) -> tuple[bytes, int]:
    """The bits of a new Kernel, and how often it was compiled."""
    new = Kernel(function, options=options)
    with float64_on_cpu():
        values = new(*(args or (X, np.float64(0.7))))
    return b"".join(np.asarray(v).tobytes() for v in jax.tree.leaves(values)), new.compilations()


def entries(folder):
    return sorted(folder.glob("*.executable"))


def test_the_second_kernel_is_loaded_and_has_the_bits_of_the_first(folder):
    compiled, one = computed()
    loaded, none = computed()
    assert (one, none, len(entries(folder))) == (1, 0, 1)
    assert loaded == compiled
    assert folder.stat().st_mode & 0o777 == 0o700
    assert cache_state() == (folder, 1, entries(folder)[0].stat().st_size, "")


def test_switched_off_every_kernel_is_compiled_to_the_same_bits(folder, monkeypatch):
    kept, _ = computed()
    monkeypatch.setenv(FOLDER, "off")
    assert computed() == (kept, 1)
    assert cache_state().unused


def test_another_process_loads_what_this_one_compiled(folder):
    kept, _ = computed()
    script = "from tests.kernels.test_executable_cache import computed; print(computed())"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.stdout.strip() == str((kept, 0)), ran.stderr


DAMAGES = {
    "a flipped bit": lambda content: content[:5000] + bytes([content[5000] ^ 1]) + content[5001:],
    "half written": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "of zeros, after a crash": lambda content: bytes(len(content)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_not_loaded_and_is_made_anew(folder, damage):
    kept, _ = computed()
    (entry,) = entries(folder)
    entry.write_bytes(DAMAGES[damage](entry.read_bytes()))
    assert computed() == (kept, 1)
    assert computed() == (kept, 0)


def test_an_entry_that_xla_does_not_load_is_tried_once(folder, monkeypatch):
    kept, _ = computed()
    (entry,) = entries(folder)
    compiled.write_entry(entry.stem, pickle.dumps((b"no executable", None, None)))
    assert computed() == (kept, 1)
    monkeypatch.setattr(compiled, "_loaded", lambda _: pytest.fail("tried again"))
    assert computed() == (kept, 1)


def test_a_process_killed_while_it_writes_leaves_nothing_that_is_loaded(folder):
    kept, _ = computed()
    (entry,) = entries(folder)
    partial = entry.with_name(f"{entry.stem}.12ab{cache_folder._PARTIAL}")
    entry.rename(partial)
    assert computed() == (kept, 1)
    os.utime(partial, (time.time() - 7200,) * 2)
    entries(folder)[0].unlink()
    computed()
    assert not partial.exists()


def not_a_folder(folder):
    folder.parent.mkdir()
    folder.write_text("a file")


def of_another_user(folder, monkeypatch):
    folder.mkdir(mode=0o700, parents=True)
    monkeypatch.setattr(cache_folder.os, "geteuid", lambda: os.getuid() + 1)


def that_others_write_to(folder):
    folder.mkdir(parents=True)
    folder.chmod(0o770)


def a_link(folder):
    folder.parent.mkdir()
    (folder.parent / "there").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "there")


FOLDERS = {
    "a file": lambda folder, _: not_a_folder(folder),
    "of another user": of_another_user,
    "that others may write to": lambda folder, _: that_others_write_to(folder),
    "a link": lambda folder, _: a_link(folder),
}


@pytest.mark.parametrize("what", FOLDERS)
def test_a_folder_that_cannot_be_trusted_is_not_used(folder, monkeypatch, what):
    FOLDERS[what](folder, monkeypatch)
    first, second = computed(), computed()
    assert first == second
    assert first[1] == 1
    assert cache_state().unused
    assert not [*folder.parent.rglob("*.executable")]


class Planted:
    """An object whose pickle makes a file where it is loaded."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


HEADS = {
    "a checksum": lambda content: hashlib.sha256(content).digest(),
    "the tag of another key": lambda content: hmac.digest(bytes(32), content, "sha256"),
    "no tag": lambda content: b"",
}


@pytest.mark.parametrize("head", HEADS)
def test_what_others_left_in_a_folder_is_never_loaded_even_when_it_is_the_users_alone_again(
    folder, tmp_path, head
):
    kept, _ = computed()
    (entry,) = entries(folder)
    folder.chmod(0o777)
    content = pickle.dumps(Planted(tmp_path / "it ran"))
    entry.unlink()
    entry.write_bytes(HEADS[head](content) + content)
    entry.chmod(0o600)
    assert computed() == (kept, 1)
    folder.chmod(0o700)
    assert computed() == (kept, 1)
    assert not (tmp_path / "it ran").exists()
    assert computed() == (kept, 0)  # made anew


@pytest.mark.parametrize("mode", [0o606, 0o660, 0o644])
@pytest.mark.parametrize("which", ["entry", "key"])
def test_an_entry_or_a_key_that_others_may_read_or_change_is_not_used(folder, mode, which):
    kept, _ = computed()
    (entry,) = entries(folder)
    key = folder.with_name("cache.key")
    assert key.stat().st_mode & 0o777 == 0o600
    (entry if which == "entry" else key).chmod(mode)
    assert computed() == (kept, 1)
    if which == "key":
        assert f"the file {key} belongs to another user, or other users can" in cache_state().unused


def test_an_entry_under_the_name_of_another_is_not_loaded(folder):
    computed(lambda x: x * 2.0, X)
    (first,) = entries(folder)
    computed(lambda x: x * 3.0, X)
    (second,) = set(entries(folder)) - {first}
    shutil.copy(first, second)
    assert computed(lambda x: x * 3.0, X) == ((X * 3.0).tobytes(), 1)


def test_a_folder_copied_from_others_without_their_key_is_not_loaded(folder, monkeypatch):
    kept, _ = computed()
    shutil.copytree(folder, folder.with_name("copy"))
    monkeypatch.setenv(FOLDER, str(folder.with_name("copy")))
    assert computed() == (kept, 1)


def test_a_key_that_is_cut_short_is_named(folder):
    computed()
    folder.with_name("cache.key").write_bytes(b"short")
    assert "cache.key is damaged: remove it" in cache_state().unused
    assert computed()[1] == 1


def test_a_disk_that_is_full_stops_nothing(folder, monkeypatch):
    kept, _ = computed()
    (entry,) = entries(folder)
    entry.unlink()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_folder.os, "rename", full)
    assert computed() == (kept, 1)
    assert not [*folder.iterdir()]


def test_what_was_used_least_recently_is_removed(folder, monkeypatch):
    def of(number):
        return computed(lambda x: x * number, X)[1]

    of(3.0)
    (first,) = entries(folder)
    of(2.0)
    (second,) = set(entries(folder)) - {first}
    for n, entry in enumerate((first, second)):
        os.utime(entry, (n, n))
    assert of(3.0) == 0  # used last
    monkeypatch.setattr(cache_folder, "MAX_BYTES", int(2.5 * first.stat().st_size))
    of(4.0)
    assert first in entries(folder)
    assert second not in entries(folder)


def test_programs_that_differ_only_in_the_argument_they_use_are_not_confused(folder):
    def first(x, y):
        return 2 * x

    def second(x, y):
        return 2 * y

    second.__name__ = second.__qualname__ = "first"
    assert computed(first, X, X + 1)[0] == (2 * X).tobytes()
    assert computed(second, X, X + 1) == ((2 * X + 2).tobytes(), 1)


def test_a_program_that_calls_python_is_not_kept(folder):
    def called(x):
        return jax.pure_callback(
            lambda x: np.asarray(x) + 1, jax.ShapeDtypeStruct((8, 5), x.dtype), x
        )

    assert computed(called, X) == ((X + 1).tobytes(), 1)
    assert computed(called, X)[1] == 1
    assert not entries(folder)


CHANGES = {
    "flags of XLA": lambda patch: patch.setenv("XLA_FLAGS", "--xla_dump_to=none"),
    "threads": lambda patch: patch.setenv("NPROC", "3"),
    "processor": lambda patch: patch.setattr(compiled, "processor", lambda: "flags: sse2"),
    "version": lambda patch: patch.setattr(compiled, "VERSIONS", ("0", "0")),
    "settings of JAX": lambda patch: patch.setattr(
        compiled, "jax_settings", lambda: {"jax_optimization_level": "O0"}
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_entry_is_of_one_machine_and_its_settings(folder, monkeypatch, change):
    computed()
    CHANGES[change](monkeypatch)
    assert computed()[1] == 1
    assert len(entries(folder)) == 2


def test_an_entry_is_of_its_compiler_options(folder):
    computed()
    assert computed(options={})[1] == 1


@pytest.mark.parametrize("unknown", ["processor", "jax_settings"])
def test_where_the_machine_is_unknown_nothing_is_kept(folder, monkeypatch, unknown):
    monkeypatch.setattr(compiled, unknown, lambda: None)
    assert computed()[1] == 1
    assert not folder.exists()


def test_a_processor_is_known_by_its_instructions(monkeypatch, tmp_path):
    text = "processor : {}\nmodel name : Made up\ncpu MHz : {}\nflags : fpu {}\n\nprocessor : 9\n"
    known = []
    for words in [(0, 1000, "avx2"), (1, 2000, "avx2"), (0, 1000, "avx2 avx512f")]:
        (tmp_path / "cpuinfo").write_text(text.format(*words))
        monkeypatch.setattr(processes, "_CPU_INFO", tmp_path / "cpuinfo")
        processes.processor.cache_clear()
        known.append(processes.processor())
    monkeypatch.setattr(processes, "_CPU_INFO", tmp_path / "none")
    processes.processor.cache_clear()
    known.append(processes.processor())
    processes.processor.cache_clear()
    assert known[0] == known[1] != known[2]
    assert known[3] is None


def test_the_folder_is_that_of_the_user(monkeypatch, tmp_path):
    monkeypatch.delenv(FOLDER)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache_folder() == tmp_path / "homodyne-dask"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # not to be used, says the standard
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert user_cache_folder() == tmp_path / "home" / ".cache" / "homodyne-dask"


def test_the_settings_of_jax_stay(folder):
    before = dict(jax.config.values)
    computed()
    computed()
    assert dict(jax.config.values) == before


def test_shapes_types_and_static_arguments_are_compiled_apart(folder):
    @kernel("power")
    def powers(x, factor, *, power):
        return factor * x**power

    def both(*args, power=2):
        with float64_on_cpu():
            return np.asarray(powers(*args, power=power))

    assert both(X, 2.0).dtype == np.float64
    assert both(X.astype(np.float32), 2.0).dtype == np.float32
    assert both(X.astype(np.float32), np.float64(2)).dtype == np.float64
    np.testing.assert_allclose(both(X[:2], 2.0, power=3), 2 * X[:2] ** 3)
    assert powers.compilations() == 4
    both(X, 2.5)
    assert powers.compilations() == 4


@pytest.fixture
def one_option_is_unknown(monkeypatch):
    options = dict(compiled.COMPILER_OPTIONS) | {MADE_UP: True}
    monkeypatch.setattr(compiled, "COMPILER_OPTIONS", options)
    compiled.known_options.cache_clear()
    yield
    compiled.known_options.cache_clear()


def double(x):
    """Twice x."""
    return 2 * x


def test_this_jaxlib_takes_every_option():
    assert compiled.known_options() == compiled.COMPILER_OPTIONS
    assert not compiled.unknown_options()


def test_a_kernel_is_compiled_without_an_option_that_xla_does_not_know(one_option_is_unknown):
    assert Kernel(double)(np.float32(3)) == 6
    assert MADE_UP not in compiled.known_options()
    assert len(compiled.known_options()) == len(compiled.COMPILER_OPTIONS) - 1


def test_an_option_that_kernels_are_compiled_without_is_named_with_the_reason(
    one_option_is_unknown,
):
    ((name, reason),) = compiled.unknown_options().items()
    assert name == MADE_UP
    assert MADE_UP in reason


def test_a_trial_that_fails_for_another_reason_drops_no_option(monkeypatch):
    def fails(*args, **kwargs):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")

    monkeypatch.setattr(compiled.jax, "jit", fails)
    compiled.known_options.cache_clear()
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        compiled.known_options()


def test_options_are_tried_once(monkeypatch, one_option_is_unknown):
    compiled.known_options()
    monkeypatch.setattr(compiled, "_refusal", lambda _: pytest.fail("tried again"))
    assert Kernel(double)(np.float32(3)) == 6


def test_threads_share_one_compilation(monkeypatch):
    monkeypatch.setenv(FOLDER, "off")
    kernel = Kernel(double)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(kernel, np.arange(4, dtype=np.float32)))
    assert [float(x) for x in found] == [0, 2, 4, 6]
    assert kernel.compilations() == 1
