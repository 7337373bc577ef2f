"""All uses of undocumented parts of JAX.

Each function names the public call that would replace it, the versions it was seen in, and what
happens where it is missing.
"""

from collections.abc import Callable
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
