"""JSON files of results: with a checksum of their content, read unchanged or not at all."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from homodyne_dask.errors import SourceError, one_line, why_unreadable
from homodyne_dask.store.files import path_of, read_regular_file, write_atomic

CHECKSUM = "sha256"
"""Key of the checksum: of all other keys and values, sorted, without spaces."""
MAX_BYTES = 2_000_000_000
"""Bytes of the largest file that is read."""


def write_with_checksum(values: Mapping[str, object], path: str | Path) -> None:
    """Write plain values and their checksum, atomically; NaN is a ValueError.

    Raises OptionError for what is not a path.
    """
    whole = dict(values) | {CHECKSUM: _digest(values)}
    text = json.dumps(whole, indent=1, allow_nan=False) + "\n"
    write_atomic(path_of("path", path), text)


def read_with_checksum(
    path: Path,
    form: str,
    version: int,
    remedy: str,
    *,
    required: bool = False,
    max_bytes: int = MAX_BYTES,
) -> dict[str, Any]:
    """Return the values of a file of that format and version, without the checksum.

    Files from which the checksum was removed by hand are read, unless it is required. remedy: what to give
    instead, the end of the sentence. Raises SourceError.
    """
    try:
        read = json.loads(read_regular_file(path, max_bytes))
    except OSError as e:
        raise SourceError(f"{path} cannot be read: {why_unreadable(e)}; {remedy}") from e
    except (ValueError, RecursionError) as e:
        raise SourceError(
            f"{path} is damaged or is not JSON ({why_unreadable(e)}): {remedy}"
        ) from e
    if not isinstance(read, dict) or read.get("format") != form:
        raise SourceError(f"{path} is not a {form}: {remedy}")
    checksum = read.pop(CHECKSUM, None)
    if (required or checksum is not None) and checksum != _digest(read):
        again = f"fit again, or remove its last entry, {CHECKSUM}, to read it as it is"
        raise SourceError(
            f"{path} was changed after it was written (its checksum does not match): "
            f"{remedy if required else again}"
        )
    if read.get("format_version") != version:
        raise SourceError(
            f"{path} has format version {read.get('format_version')}, but this program reads {version}: "
            f"fit again"
        )
    return read


@contextmanager
def missing_values(path: Path) -> Iterator[None]:
    """Turn errors from values that are missing or of another kind into a SourceError."""
    try:
        yield
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
        StopIteration,
        RecursionError,
    ) as e:
        raise SourceError(
            f"{path} lacks values of a result, or has unexpected ones "
            f"({type(e).__name__}: {one_line(str(e))[:100]}): fit again"
        ) from e


def is_plain_name(name: object) -> bool:
    """Return whether a name read from a file is that of something in a folder, and leads nowhere else."""
    return isinstance(name, str) and name not in ("", ".", "..") and not {*"/\0"} & {*name}


def _digest(values: Mapping[str, object]) -> str:
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
