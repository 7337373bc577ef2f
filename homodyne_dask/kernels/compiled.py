"""Functions that JAX compiles with our options, once in a process for each shape of their arguments.

What another process compiled is loaded (see `devices`): a function is traced again, not compiled.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial, update_wrapper
from threading import Lock
from types import FunctionType
from typing import Any

import jax
from zict import LRU

from homodyne_dask.kernels.backend_interface import COMPILATIONS
from homodyne_dask.kernels.devices import LOADS, first_cpu
from homodyne_dask.models.fingerprint import Reading, fingerprint
from homodyne_dask.models.user_defined import UserDefined

COMPILER_OPTIONS: Mapping[str, str | int | bool] = {
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
_AFTER_CHANGES = jax.make_user_context(0)
"""The number of changes after which JAX traces: it uses no trace of another number."""
_LOCK = Lock()
_CHANGED: list[str] = []
"""Digests of the models of which a function was seen to have changed."""
_TRACED: set[str] = set()
"""Digests of the models that JAX traces, or has traced, since the last change."""
_FINGERPRINTS: LRU[int, tuple[FunctionType, str]] = LRU(1000, {})
"""Of users' functions when a model of theirs was last traced, by identity."""


class Kernel:
    """A function that JAX compiles for each shape of its arguments."""

    def __init__(
        self,
        function: Callable[..., Any],
        static: tuple[str, ...] = (),
        options: Mapping[str, str | int | bool] = COMPILER_OPTIONS,
        counted: str = "",
    ) -> None:
        self.function, self.static, self.options = function, static, options
        self.counted = counted
        self._executables: LRU[Any, Callable[..., Any]] = LRU(MAX_EXECUTABLES, {})
        self._lock = Lock()
        self.compilations = 0
        """How many times this process has compiled the function; what it loaded does not count."""
        update_wrapper(self, function)

    def __call__(self, *args: Any, **static: Any) -> Any:
        leaves, structure = jax.tree.flatten(args)
        shapes = tuple((getattr(v, "shape", None), getattr(v, "dtype", type(v))) for v in leaves)
        static_values = tuple(static[name] for name in self.static)
        key = structure, shapes, static_values, jax.config.jax_default_device
        executable = self._executables.get(key)
        return (executable or self._made(key, args, static))(*args)

    def _made(self, key: Any, args: Any, static: Mapping[str, Any]) -> Callable[..., Any]:
        with self._lock:  # two threads would compile twice
            executable = self._executables.get(key)
            if executable is None:
                device = jax.config.jax_default_device
                models = (getattr(value, "model", value) for value in static.values())
                with traced_for(*(model for model in models if isinstance(model, UserDefined))):
                    if isinstance(device, jax.Device) and device != first_cpu():
                        program = self.lowered_for_accelerator(args, static)
                    else:
                        program = self._jitted(self.options).lower(*args, **static)
                loads = LOADS.count  # what JAX loads from its folder is no compilation
                executable = program.compile()
                with _LOCK:
                    self.compilations += LOADS.count == loads
                    COMPILATIONS[self.counted] += LOADS.count == loads
                self._executables[key] = executable
            return executable

    def lowered_for_accelerator(
        self, args: Any, static: Mapping[str, Any], platforms: tuple[str, ...] | None = None
    ) -> jax.stages.Lowered:
        with jax.default_matmul_precision("highest"):  # else in a format of 11 bits
            traced = self._jitted(ACCELERATOR_OPTIONS).trace(*args, **static)
            return traced.lower(lowering_platforms=platforms)

    def _jitted(self, options: Mapping[str, str | int | bool]) -> Any:
        return jax.jit(self.function, static_argnames=self.static, compiler_options=dict(options))


def kernel(*static: str, counted: str = "gram") -> Callable[[Callable[..., Any]], Kernel]:
    return partial(Kernel, static=static, counted=counted)


def plain_kernel(*static: str) -> Callable[[Callable[..., Any]], Kernel]:
    return partial(Kernel, static=static, options={})


def traced_for(*models: UserDefined) -> AbstractContextManager[object]:
    """Return a context in which JAX uses no trace of the models' functions as they were before.

    Kernels are compiled anew for a model of another digest, but JAX keeps what it traced of functions
    inside: of loops (`lax.scan`), and of what a user compiled.
    """
    with _LOCK:
        for model in models:
            if model.digest not in _TRACED:
                fingerprints = {
                    id(f): (f, fingerprint(f)) for f in Reading(*model.functions).functions
                }
                if any(_FINGERPRINTS.get(key, seen) != seen for key, seen in fingerprints.items()):
                    _CHANGED.append(model.digest)
                    _TRACED.clear()
                _FINGERPRINTS.update(fingerprints)
                _TRACED.add(model.digest)
        return _AFTER_CHANGES(len(_CHANGED))
