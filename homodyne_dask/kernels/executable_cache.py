"""What one process compiled, the next one loads: executables of kernels in a folder of the user.

An entry is machine code. Its name is a hash of all that it was made from: the program that JAX traced,
the options, JAX's version and settings, the processor and the number of threads; its bits are those of
a new compilation. Whatever goes wrong here costs a compilation and nothing else.
"""

import hashlib
import logging
import os
import pickle
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import jax
from jax.experimental.serialize_executable import deserialize_and_load, serialize

from homodyne_dask.kernels._jax_internals import jax_settings
from homodyne_dask.kernels.cache_folder import read_entry, write_entry
from homodyne_dask.kernels.processors import jax_threads, processor

_VERSIONS = (version("jax"), version("jaxlib"))
_IRRELEVANT = ("jax_platforms", "jax_cpu_enable_async_dispatch", "jax_enable_x64")
"""Settings of JAX that change no executable: a program says which numbers it has."""
_REFUSED = b""
"""Content of an entry that XLA does not load on the processor it was made on."""
LOG = logging.getLogger(__name__)


def compiled(
    lowered: jax.stages.Lowered, options: Mapping[str, Any]
) -> tuple[jax.stages.Compiled, bool]:
    """Return the executable of a program, and whether it was compiled here and now."""
    key = _key(lowered, options)
    if key is None:
        return lowered.compile(), True
    content = read_entry(key)
    if content:
        try:
            return _loaded(content), False
        except Exception as e:  # of XLA, or of an entry made otherwise
            LOG.info("an executable was not loaded: %s: %s", type(e).__name__, e)
            write_entry(key, _REFUSED)
    executable = lowered.compile()
    if content is None:
        try:
            write_entry(key, pickle.dumps(serialize(executable)))
        except Exception as e:  # what it holds cannot leave the process
            LOG.info("an executable was not kept: %s: %s", type(e).__name__, e)
    return executable, True


def _loaded(content: bytes) -> jax.stages.Compiled:
    (device, *_) = jax.local_devices(backend="cpu")
    return deserialize_and_load(*pickle.loads(content), execution_devices=[device], backend="cpu")


def _key(lowered: jax.stages.Lowered, options: Mapping[str, Any]) -> str | None:
    """Return the name of a program's entry; None where it must not have one.

    Programs that call back into Python or into a library hold what is true in one process only.
    """
    program, cpu, settings = lowered.as_text(), processor(), jax_settings()
    if cpu is None or settings is None or "custom_call" in program:
        return None
    settings = {name: value for name, value in settings.items() if name not in _IRRELEVANT}
    made_of = (
        program, str(lowered.args_info), str(lowered.out_info), sorted(options.items()),
        _VERSIONS, sorted(settings.items()), os.environ.get("XLA_FLAGS"), cpu, jax_threads(),
    )  # fmt: skip
    return hashlib.sha256(repr(made_of).encode()).hexdigest()
