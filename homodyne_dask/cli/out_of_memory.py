"""Too little memory: known before libraries are loaded, and recognized in their errors."""

import errno
import resource

import click

from homodyne_dask.errors import HomodyneDaskError, PlanError

LEAST_ADDRESSES = 450_000_000
"""Bytes of address space below which libraries cannot be loaded, and end the process."""
WORDS = (
    "RESOURCE_EXHAUSTED",  # XLA
    "Cannot allocate memory",
    "failed to map segment",  # of a shared library
    "can't start new thread",
    "bad_alloc",
)
"""What libraries say that found no memory."""


def check_address_space() -> None:
    """Raise PlanError where the address space is limited to less than the libraries take."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < LEAST_ADDRESSES:
        raise PlanError(
            f"the address space is limited to {limit // 10**6} MB (ulimit -v), less than the "
            f"{LEAST_ADDRESSES // 10**6} MB of the libraries: raise the limit"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error, or what it came from, is that no memory or no thread was to be had."""
    if isinstance(error, HomodyneDaskError | click.ClickException):
        return False
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    if any(words in str(error) for words in WORDS):
        return True
    return error.__cause__ is not None and is_out_of_memory(error.__cause__)
