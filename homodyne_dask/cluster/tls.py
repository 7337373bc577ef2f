"""TLS key of a cluster: only users who can read it may connect."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from distributed import Security

from homodyne_dask.errors import ClusterError, require_package, why_unreadable
from homodyne_dask.store.files import read_regular_file
from homodyne_dask.store.private_folder import make_private

CERTIFICATE, KEY = "certificate.pem", "key.pem"
MAX_BYTES = 1_000_000
"""Bytes of the largest file of a key."""


def make_key(folder: Path) -> Security:
    """Write a new key and its certificate to a folder only the user may enter (0700, files 0600).

    Raises ClusterError for a folder that others may enter.
    """
    require_package("the key of a cluster", "cryptography", "slurm")
    make_private(folder)
    if folder.stat().st_mode & 0o077:
        raise ClusterError(
            f"others can access {folder}, but the key of a cluster needs a private "
            f"folder: give another one, or run `chmod 700` on it"
        )
    remove_key(folder)  # what a killed program left
    made = Security.temporary().get_tls_config_for_role("worker")
    for name, text in ((CERTIFICATE, made["cert"]), (KEY, made["key"])):
        handle = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(text)
    return load_key(folder)


def load_key(folder: Path) -> Security:
    """Return the TLS settings with the key in a folder; ClusterError if nobody or others can read it."""
    for file in (folder / CERTIFICATE, folder / KEY):
        try:
            read_regular_file(file, MAX_BYTES)
        except (OSError, ValueError) as e:
            raise ClusterError(
                f"the key of the cluster cannot be read ({file}: {why_unreadable(e)}): only the user "
                f"who started the cluster can use it"
            ) from e
    if (mode := (folder / KEY).stat().st_mode & 0o777) & 0o077:
        raise ClusterError(
            f"{folder / KEY} has mode {mode:04o}, so others can read the key: make a new "
            f"one in a private folder with `homodyne-dask key`"
        )
    return key_at(folder)


def key_at(folder: Path) -> Security:
    """Return the TLS settings with the key that is, or will be, in a folder."""
    certificate, key = str(folder / CERTIFICATE), str(folder / KEY)
    files = {"tls_ca_file": certificate}
    for role in ("client", "scheduler", "worker"):
        files |= {f"tls_{role}_cert": certificate, f"tls_{role}_key": key}
    return Security(require_encryption=True, **files)


def remove_key(folder: Path) -> None:
    """Delete a key and its certificate."""
    for name in (CERTIFICATE, KEY):
        (folder / name).unlink(missing_ok=True)


@contextmanager
def new_key(folder: Path) -> Iterator[Security]:
    """Make a key for the length of a `with`; a folder that was made for it goes with it."""
    made = not folder.exists()
    try:
        yield make_key(folder)
    finally:
        remove_key(folder)
        with suppress(OSError):  # others have put something there, or removed it
            if made:
                folder.rmdir()
