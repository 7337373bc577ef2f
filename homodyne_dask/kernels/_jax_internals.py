"""All uses of undocumented parts of JAX.

Each function names the public call that would replace it, the versions it was seen in, and what
happens where it is missing.
"""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from homodyne_dask.errors import PlanError
from homodyne_dask.machine.cores_and_cgroup_limits import system_text

_FORKED: list[int] = []
"""The process from which this one was forked when JAX had started there."""
_FAILURES: list[str] = []
"""Of plugins, of which one of the threads that start JAX at once hears."""


@contextmanager
def failures_of_plugins() -> Iterator[list[str]]:
    """Keep to itself, for the length of a `with`, what JAX logs of a plugin that cannot be used.

    Yields the reasons, as they are heard of. Private: the name of the logger and the first words of its
    message, as in jax 0.11.2 and 0.12.0; there is no public way to ask. Elsewhere JAX logs a traceback.
    """

    def heard(record: logging.LogRecord) -> bool:
        if not str(record.msg).startswith("Jax plugin configuration error"):
            return True
        error = record.exc_info[1] if record.exc_info else None
        _FAILURES.append(str(error or record.getMessage()).partition("\n")[0])
        return False

    logger = logging.getLogger("jax._src.xla_bridge")
    logger.addFilter(heard)
    try:
        yield _FAILURES
    finally:
        logger.removeFilter(heard)


def require_not_forked() -> None:
    """Raise PlanError where this process was forked from one that had started JAX: its threads stay there."""
    if _FORKED:
        raise PlanError(
            "this process was forked from one in which JAX had started, and would wait for its threads for "
            "ever: start processes with multiprocessing.get_context('spawn')"
        )


def _after_fork() -> None:
    """Note whether JAX has started. Private: `xla_bridge._backends`; else the child waits without end."""
    if getattr(sys.modules.get("jax._src.xla_bridge"), "_backends", None):
        _FORKED.append(os.getppid())


def _without_threads() -> bool:
    """Return whether this process has no thread of JAX, which has some from its start on.

    Private: they are called tf_XLAEigen and the like in jax 0.11.2 and 0.12.0; there is no public way.
    """
    names = [system_text(task / "comm") for task in Path("/proc/self/task").glob("*")]
    return bool(names) and not any(name.startswith("tf_") for name in names)


os.register_at_fork(after_in_child=_after_fork)
if _without_threads():  # it was forked before it loaded this module
    _after_fork()


def checked_indices() -> AbstractContextManager[object]:
    """Return a context in which JAX raises IndexError for a constant index that is out of range.

    Private: `jax._src.config.check_static_indices`, seen in jax 0.11.2 and 0.12.0; the public way, the flag
    `jax_check_static_indices`, holds for the whole process. Where it is missing such an index takes
    the last value, as is usual in JAX.
    """
    try:
        from jax._src.config import check_static_indices
    except ImportError:
        return nullcontext()
    return check_static_indices(True)
