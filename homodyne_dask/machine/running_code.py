"""The code that this process runs, and the command that starts another of it."""

import hashlib
import sys
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""The same as -P in the environment of a job, whatever command starts its Python."""
OUR_CODE = "code of homodyne-dask"
"""How `code_digest` is called beside the versions of packages."""


def python_command(*words: str) -> list[str]:
    """Return the command of this Python with arguments; its own child processes get -P, too.

    Without -P, a json.py or dask.py in the working folder, of a stranger's data perhaps, would be run.
    """
    return [sys.executable, "-P", *words]


def digest_of_sources() -> str:
    """Return the digest of the sources of homodyne_dask and ingest as they are on disk: 16 hex digits."""
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    files = [*(root / "homodyne_dask").rglob("*.py"), *(root / "ingest").rglob("*.py")]
    for file in sorted(map(str, files)):
        content = Path(file).read_bytes()
        digest.update(f"{file.removeprefix(str(root))} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


@cache
def code_digest() -> str:
    """Return the digest of the code that this process runs: of the sources when it was first asked for."""
    return digest_of_sources()


@cache
def version_of(package: str) -> str:
    """Return the version of an installed package; workers that start in this process change sys.path."""
    return next(iter(distributions(name=package, path=[*sys.path]))).version
