"""Kernels compile once, with the options of XLA that it knows; what is private in JAX may be missing."""

from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

from homodyne_dask.kernels import cache_folder, compiled
from homodyne_dask.kernels.compiled import Kernel

MADE_UP = "xla_cpu_made_up_option"


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
    monkeypatch.setenv(cache_folder.FOLDER, "off")
    kernel = Kernel(double)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(kernel, np.arange(4, dtype=np.float32)))
    assert [float(x) for x in found] == [0, 2, 4, 6]
    assert kernel.compilations() == 1
