"""Functions compiled by JAX, once on a machine, with those of the chosen options that its XLA knows.

What one process compiled, the next one loads from a folder of the user. An entry is machine code. Its name is
a hash of all that it was made from: the program, by what it is made of or by its text; the options, the
versions, JAX's settings, the processor and the number of threads; its bits are those of a new compilation.
Whatever goes wrong there costs a compilation and nothing else.

JAX makes the same program of the same code, values and arguments. The code is what this process has loaded,
with the values that it reads now, such as constants of modules; the files count, too, for what a module does
while it is imported. Of libraries the versions count.

JAX's own cache of compilations knows a program by its text alone, so that each process traces all of them:
a small fit takes 0.3 to 0.5 s more, of 1.3 to 2 s. Its entries are the same for any number of threads, which
may change bits, it loads from folders that others may write to, and it is switched on for a whole process.
"""

import hashlib
import logging
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial, update_wrapper
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from types import FunctionType, ModuleType
from typing import Any

import jax
from jax.experimental.serialize_executable import deserialize_and_load, serialize
from zict import LRU

from homodyne_dask.kernels._jax_internals import jax_settings, trace_context
from homodyne_dask.kernels.cache_folder import read_entry, write_entry
from homodyne_dask.kernels.devices import first_cpu, on_cpu
from homodyne_dask.models.fingerprint import fingerprint, functions_of, of_this_package, walked
from homodyne_dask.models.user_defined import UserDefined
from homodyne_dask.store.processes import jax_threads, processor

_IRRELEVANT = ("jax_platforms", "jax_cpu_enable_async_dispatch", "jax_enable_x64")
"""Settings of JAX that change no executable: a program says which numbers it has."""
_REFUSED = b""
"""Content of an entry that XLA does not load on the processor it was made on."""
LOG = logging.getLogger(__name__)
VERSIONS = (sys.version, *map(version, ("jax", "jaxlib", "numpy", "ml_dtypes", "opt_einsum")))
"""Of all that traces and compiles."""
_LIBRARIES = {"jax", "numpy", "jaxtyping", *sys.stdlib_module_names}
"""Whose parts may count by name; what jaxtyping has is in no program."""
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


def compiled(
    program: Callable[[], jax.stages.Lowered], known_by: str | None, options: Mapping[str, Any]
) -> tuple[jax.stages.Compiled, bool]:
    """Return the executable of a program, and whether it was compiled here and now.

    known_by: what tells the program from others without tracing it; None where only its text does.
    """
    program = cache(program)
    key = _key(known_by or _text(program()), options)
    content = read_entry(key) if key else None
    if key and content:
        try:
            return _loaded(content), False
        except Exception as e:  # of XLA, or of an entry made otherwise
            LOG.info("an executable was not loaded: %s: %s", type(e).__name__, e)
            write_entry(key, _REFUSED)
    executable = program().compile()
    # an executable that calls Python or a library holds what is true in one process only
    if key and content is None and "custom_call" not in program().as_text():
        try:
            write_entry(key, pickle.dumps(serialize(executable)))
        except Exception as e:  # what it holds cannot leave the process
            LOG.info("an executable was not kept: %s: %s", type(e).__name__, e)
    return executable, True


def _loaded(content: bytes) -> jax.stages.Compiled:
    return deserialize_and_load(
        *pickle.loads(content), execution_devices=[first_cpu()], backend="cpu"
    )


def _key(program: str, options: Mapping[str, Any]) -> str | None:
    """Return the name of a program's entry; None where the processor or JAX's settings are unknown."""
    cpu, settings = processor(), jax_settings()
    if cpu is None or settings is None:
        return None
    settings = {name: value for name, value in settings.items() if name not in _IRRELEVANT}
    made_of = (
        program, sorted(options.items()), VERSIONS, sorted(settings.items()),
        os.environ.get("XLA_FLAGS"), cpu, jax_threads(),
    )  # fmt: skip
    return hashlib.sha256(repr(made_of).encode()).hexdigest()


def _text(lowered: jax.stages.Lowered) -> str:
    return repr((lowered.as_text(), str(lowered.args_info), str(lowered.out_info)))


def made_of(function: Callable[..., Any], args: Any, static: Mapping[str, Any]) -> str | None:
    """Return what tells the program of a function from all others; None where only its text can.

    That is so where a user's functions are in it, where a function of another library than JAX and
    NumPy is called, and where the state of an object or of JAX is unknown.
    """
    context = trace_context()
    if context is None or any(isinstance(value, UserDefined) for value in static.values()):
        return None
    leaves, structure = jax.tree.flatten(args)
    walk = walked([function, dict(static), *_classes(structure)], lambda m: not of_this_package(m))
    names = {part.__module__ for part in walk.named} | {m.__name__ for m in walk.modules}
    if None in names:  # of a function that was made outside of any module
        return None
    files = [_file_hash(sys.modules.get(name)) for name in sorted(names)]
    if walk.opaque or walk.libraries - _LIBRARIES or None in files:
        return None
    shapes = [repr(jax.typeof(leaf)) for leaf in leaves]
    return repr((walk.hash.hexdigest(), files, str(structure), shapes, context))


def _classes(structure: Any) -> list[type]:
    """Return the classes of which an argument, or a part of it, is an instance."""
    node = structure.node_data()
    inside = [one for child in structure.children() for one in _classes(child)]
    return inside if node is None else [node[0], *inside]


@cache
def _file_hash(module: ModuleType | None) -> str | None:
    """Return the hash of the file of a module of this package, read once; None of any other module."""
    if module is None or not of_this_package(module) or module.__file__ is None:
        return None
    try:
        return hashlib.sha256(Path(module.__file__).read_bytes()).hexdigest()
    except OSError:
        return None


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
        compiled_for = tuple(
            (getattr(leaf, "shape", None), getattr(leaf, "dtype", type(leaf))) for leaf in leaves
        )
        key = structure, compiled_for, given, jax.config.jax_default_device
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
                    options = COMPILER_OPTIONS if self.options is None else self.options
                    executable, here = compiled(program, known_by, options)
                self._compilations += here
                self._executables[key] = executable
            return executable

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
