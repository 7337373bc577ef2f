"""Functions compiled by JAX, once on a machine, with those of the chosen options that its XLA knows."""

from collections.abc import Callable, Mapping
from functools import cache, partial, update_wrapper
from threading import Lock
from types import FunctionType
from typing import Any

import jax
from zict import LRU

from homodyne_dask.kernels.executable_cache import compiled
from homodyne_dask.kernels.jax_start import first_cpu
from homodyne_dask.kernels.loaded_code import made_of
from homodyne_dask.kernels.on_cpu import on_cpu
from homodyne_dask.models.fingerprint import fingerprint, functions_of
from homodyne_dask.models.user_defined import UserDefined

COMPILER_OPTIONS: Mapping[str, str | int] = {
    # one step after the other, in one thread: in other orders XLA hands the steps of a loop to its
    # pool, where each core that is not needed waits for them at full speed
    "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
    "xla_cpu_prefer_vector_width": 512,
}
"""Without them a kernel is slower, and may differ in the last bits."""
ACCELERATOR_OPTIONS: Mapping[str, str | int | bool] = {
    "xla_gpu_deterministic_ops": True,
    # else the algorithm of a product of matrices is the one that was fastest in a trial
    "xla_gpu_autotune_level": 0,
    # the other compiler of products, which without a trial takes a slow algorithm, or none
    "xla_gpu_enable_triton_gemm": False,
}
"""Without them a kernel on another device than the CPU would give other bits from run to run."""
MAX_EXECUTABLES = 256
"""Most executables of one function that a process keeps."""
_LOCK = Lock()
_TRACED: set[str] = set()
"""Digests of models that JAX may trace, or has traced, with the values they have now."""
_FINGERPRINTS: LRU[int, tuple[FunctionType, str]] = LRU(1000, {})
"""Of users' functions when a model of theirs was last traced, by identity."""


class Kernel:
    """A function that JAX compiles for each shape of its arguments, or that is loaded from the disk.

    What is compiled for an accelerator is not kept on disk.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        static: tuple[str, ...] = (),
        options: Mapping[str, str | int] | None = None,
    ) -> None:
        """Take a function, the names of its static arguments, and options in place of the kernels'."""
        self.function, self.static, self.options = function, static, options
        self._executables: LRU[Any, Callable[..., Any]] = LRU(MAX_EXECUTABLES, {})
        self._lock, self._compilations = Lock(), 0
        update_wrapper(self, function)

    def __call__(self, *args: Any, **static: Any) -> Any:
        """Call the compiled function; keywords are its static arguments."""
        leaves, structure = jax.tree.flatten(args)
        given = tuple(static[name] for name in self.static)
        key = structure, tuple(map(_sort, leaves)), given, jax.config.jax_default_device
        executable = self._executables.get(key)
        return (executable or self._made(key, args, static))(*args)

    def compilations(self) -> int:
        """Return how many times this process has compiled the function."""
        return self._compilations

    def _made(self, key: Any, args: Any, static: Mapping[str, Any]) -> Callable[..., Any]:
        with self._lock:  # two threads would compile twice
            executable = self._executables.get(key)
            if executable is None:
                here = True
                if _on_accelerator():
                    executable = self.lowered_for_accelerator(args, static).compile()
                else:
                    program = partial(self._lowered, *args, **static)
                    known_by = made_of(self.function, args, static)
                    executable, here = compiled(program, known_by, self._wanted_options())
                self._compilations += here
                self._executables[key] = executable
            return executable

    def _wanted_options(self) -> Mapping[str, str | int]:
        return COMPILER_OPTIONS if self.options is None else self.options

    def lowered_for_accelerator(
        self, args: Any, static: Mapping[str, Any], platforms: tuple[str, ...] | None = None
    ) -> jax.stages.Lowered:
        """Return the program for an accelerator, to be compiled; by default for that of this thread."""
        with jax.default_matmul_precision("highest"):  # else in a format of 11 bits
            traced = self._jitted(ACCELERATOR_OPTIONS).trace(*args, **static)
            return traced.lower(lowering_platforms=platforms)

    def _lowered(self, *args: Any, **static: Any) -> jax.stages.Lowered:
        options = known_options() if self.options is None else self.options
        return self._jitted(options).lower(*args, **static)

    def _jitted(self, options: Mapping[str, str | int]) -> Any:
        return jax.jit(
            self.function,
            static_argnames=self.static,
            compiler_options=dict(options),
            # of two programs that differ in the arguments they use, both texts must tell that
            keep_unused=True,
        )


def _on_accelerator() -> bool:
    """Return whether this thread computes on another device than the first CPU of JAX."""
    device = jax.config.jax_default_device
    return isinstance(device, jax.Device) and device != first_cpu()


def _sort(leaf: Any) -> Any:
    """Return what a function is compiled for, of one argument: shape and type."""
    return getattr(leaf, "shape", None), getattr(leaf, "dtype", type(leaf))


def kernel(*static: str) -> Callable[[Callable[..., Any]], Kernel]:
    """Return a decorator that makes a function a Kernel; static: arguments it is compiled anew for."""
    return partial(Kernel, static=static)


def plain_kernel(*static: str) -> Callable[[Callable[..., Any]], Kernel]:
    """Return a decorator like `kernel`, for functions of few values: compiled without options."""
    return partial(Kernel, static=static, options={})


@cache
def known_options() -> dict[str, str | int]:
    """Return those of COMPILER_OPTIONS that XLA takes, tried once in a process."""
    if _refusal(COMPILER_OPTIONS) is None:
        return dict(COMPILER_OPTIONS)
    return {k: v for k, v in COMPILER_OPTIONS.items() if _refusal({k: v}) is None}


def unknown_options() -> dict[str, str]:
    """Return the options that XLA refuses, each with its reason; kernels are compiled without them."""
    refused = [name for name in COMPILER_OPTIONS if name not in known_options()]
    return {name: _refusal({name: COMPILER_OPTIONS[name]}) or "" for name in refused}


def _refusal(options: Mapping[str, str | int]) -> str | None:
    """Return why XLA does not take these options, in its words; None where it does.

    Raises JaxRuntimeError where the trial fails for another reason: a process that dropped an
    option for it would give other bits than the rest.
    """
    probe = jax.jit(lambda x: x, compiler_options=dict(options))
    try:
        with on_cpu():
            probe.lower(jax.ShapeDtypeStruct((), bool)).compile()
    except jax.errors.JaxRuntimeError as e:
        if not str(e).startswith("INVALID_ARGUMENT"):
            raise
        return str(e).splitlines()[0]
    return None


def forget_changed_functions(model: UserDefined) -> None:
    """Let JAX forget what it has traced where a function of the model has changed since.

    Kernels are compiled anew for a model of another digest, but JAX keeps what it traced of functions
    inside: of loops (`lax.scan`), and of what a user compiled.
    """
    if model.digest in _TRACED:
        return
    now = [(function, fingerprint(function)) for function in functions_of(*model.functions)]
    with _LOCK:
        before = [_FINGERPRINTS.get(id(function), (function, hash)) for function, hash in now]
        if before != now:
            jax.clear_caches()
            _TRACED.clear()
        _FINGERPRINTS.update({id(function): (function, hash) for function, hash in now})
        _TRACED.add(model.digest)
