"""The code that this process runs, its digest and versions, and the command that starts another of it."""

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

    Python puts the working folder first on the path of a program that is started with -m or -c: a file
    json.py or dask.py that lies there, of a stranger's data perhaps, would be run.
    """
    return [sys.executable, "-P", *words]


def digest_of_sources() -> str:
    """Return the digest of the sources of homodyne_dask and ingest as they are on disk: 16 hex digits.

    That of a version would be the same for all copies of a repository between two releases.
    """
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    files = (
        file for package in ("homodyne_dask", "ingest") for file in (root / package).rglob("*.py")
    )
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
