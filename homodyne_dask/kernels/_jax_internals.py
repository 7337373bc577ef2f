"""All uses of undocumented parts of JAX.

Each function names the public call that would replace it, the versions it was seen in, and what
happens where it is missing.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any


def compilations_of(compiled: Callable[..., Any]) -> int | None:
    """Return how many times this process has compiled a function made by `jax.jit`.

    Private: `_cache_size()` of what `jax.jit` returns, seen in jax 0.12.0; JAX has no public
    count of the entries of a function's cache. Where it is missing None is returned, and
    a result then has no number of compilations.
    """
    try:
        size: Callable[[], int] = compiled._cache_size  # pyright: ignore[reportFunctionMemberAccess]
    except AttributeError:
        return None
    return size()


def checked_indices() -> AbstractContextManager[Any]:
    """Return a context in which JAX raises IndexError for a constant index that is out of range.

    Private: `jax._src.config.check_static_indices`, seen in jax 0.12.0; the public way, the flag
    `jax_check_static_indices`, holds for the whole process. Where it is missing such an index takes
    the last value, as is usual in JAX.
    """
    try:
        from jax._src.config import check_static_indices
    except ImportError:
        return nullcontext()
    return check_static_indices(True)
