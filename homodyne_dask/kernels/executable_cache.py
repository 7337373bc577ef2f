"""What one process compiled, the next one loads: executables of kernels in a folder of the user.

An entry is machine code. Its name is a hash of all that it was made from: the program, by what it is made
of or by its text; the options, the versions, JAX's settings, the processor and the number of threads; its
bits are those of a new compilation. Whatever goes wrong here costs a compilation and nothing else.
"""

import hashlib
import logging
import os
import pickle
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import jax
from jax.experimental.serialize_executable import deserialize_and_load, serialize

from homodyne_dask.kernels._jax_internals import jax_settings
from homodyne_dask.kernels.cache_folder import read_entry, write_entry
from homodyne_dask.kernels.jax_start import first_cpu
from homodyne_dask.kernels.loaded_code import VERSIONS
from homodyne_dask.kernels.processors import jax_threads, processor

_IRRELEVANT = ("jax_platforms", "jax_cpu_enable_async_dispatch", "jax_enable_x64")
"""Settings of JAX that change no executable: a program says which numbers it has."""
_REFUSED = b""
"""Content of an entry that XLA does not load on the processor it was made on."""
LOG = logging.getLogger(__name__)


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
    if key and content is None and _may_be_kept(program()):
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


def _may_be_kept(lowered: jax.stages.Lowered) -> bool:
    """Return whether a program calls neither Python nor a library: such an executable holds what is
    true in one process only."""
    return "custom_call" not in lowered.as_text()
