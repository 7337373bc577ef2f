"""The TLS key of a cluster, and connections to a scheduler that others started.

Clients and schedulers execute each other's code: whoever can connect has the rights of the user who
started the other. So beyond this machine both sides must have the key of the cluster.
"""

import asyncio
import json
import logging
import os
import socket
import sys
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from distributed import Client, Security
from distributed.comm.core import connect as connection

from homodyne_dask.cluster._dask_internals import lost_connections_not_logged
from homodyne_dask.errors import (
    ClusterError,
    first_cause,
    require_package,
    require_type,
    why_unreadable,
)
from homodyne_dask.machine.allocator_and_threads import in_thread
from homodyne_dask.machine.private_folder import make_private
from homodyne_dask.store.files import path_of, read_regular_file

LOG = logging.getLogger(__name__)
CERTIFICATE, KEY = "certificate.pem", "key.pem"
MAX_BYTES = 1_000_000


def make_key(folder: Path) -> Security:
    """Write a new key and its certificate to a folder only the user may enter (0700, files 0600)."""
    require_package("the key of a cluster", "cryptography", "slurm")
    make_private(folder)
    if folder.stat().st_mode & 0o077:
        raise ClusterError(
            f"others can access {folder}, but the key of a cluster needs a private "
            f"folder: give another one, or run `chmod 700` on it"
        )
    remove_key(folder)  # what a killed program left
    pem = Security.temporary().get_tls_config_for_role("worker")
    for name, text in ((CERTIFICATE, pem["cert"]), (KEY, pem["key"])):
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
    certificate, key = str(folder / CERTIFICATE), str(folder / KEY)
    roles = [f"tls_{role}" for role in ("client", "scheduler", "worker")]
    files = {f"{role}_cert": certificate for role in roles} | {f"{role}_key": key for role in roles}
    return Security(require_encryption=True, tls_ca_file=certificate, **files)


def remove_key(folder: Path) -> None:
    for name in (CERTIFICATE, KEY):
        (folder / name).unlink(missing_ok=True)


@contextmanager
def new_key(folder: Path) -> Iterator[Security]:
    """Make a key for the length of a `with`; a folder that was made for it goes with it."""
    is_new = not folder.exists()
    try:
        yield make_key(folder)
    finally:
        remove_key(folder)
        with suppress(OSError):  # others have put something there, or removed it
            if is_new:
                folder.rmdir()


CONNECT_TIMEOUT = 10.0
MAX_FILE_BYTES = 100_000_000
UNENCRYPTED = "none"


@contextmanager
def connect(address: str, key: str | Path | None = None) -> Iterator[Client]:
    """Connect to a running scheduler for the duration of a `with` block; yields its client.

    address: tls://host:8786, or tcp://127.0.0.1:8786 on this machine. key: the folder of the
    cluster's key, made by `homodyne-dask key`; 'none' allows tcp:// to other machines.
    Raises ClusterError if the scheduler does not answer, or if the key is missing or readable by others.

    >>> with hd.local_cluster(processes=1, threads=1) as ours, hd.connect(ours.scheduler.address) as client:
    ...     client.status
    'running'
    """
    require_type("address", address, str, "the address of a scheduler, such as 'tls://host:8786'")
    if key is not None:
        path_of("key", key)
    security = _security(address, key)
    began = monotonic()
    try:
        greeting = partial(asyncio.run, _greet(address, security or Security()))
        in_thread(greeting, daemon=True).result()
        client = Client(address, timeout=CONNECT_TIMEOUT, security=security)
    except (OSError, ValueError, TypeError, RuntimeError) as e:
        check = "that it is running and that this machine can reach it"
        if security:
            check = f"that it is running, that this machine can reach it, and that {key} is its key"
        raise ClusterError(
            f"no scheduler answers at {address} within {monotonic() - began:.0f} s ({first_cause(e)}): check "
            f"{check}"
        ) from e
    with lost_connections_not_logged(), closing_logged(client):
        yield client


def read_scheduler_file(file: Path) -> dict[str, Any]:
    try:
        written = json.loads(read_regular_file(file, MAX_FILE_BYTES))
        written["address"].partition("://")
        return written
    except OSError as e:
        raise ClusterError(
            f"{file} cannot be read ({why_unreadable(e)}): check that the scheduler is running; "
            f"`homodyne-dask cluster start` starts one"
        ) from e
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as e:
        raise ClusterError(
            f"{file} is not the file of a scheduler ({why_unreadable(e)}): give one that `homodyne-dask "
            f"cluster start` or `dask scheduler --scheduler-file` has written"
        ) from e


@contextmanager
def connect_by_file(file: Path, key: str | Path | None = None) -> Iterator[Client]:
    """Connect to the scheduler of a file for a `with`; key: by default beside the file."""
    address = read_scheduler_file(file)["address"]
    with connect(address, key or (file.parent if address.startswith("tls:") else None)) as client:
        yield client


async def _greet(address: str, security: Security) -> None:
    """Open and close a connection; a Client waits for ever for the greeting of what is no scheduler."""
    try:
        async with asyncio.timeout(2 * CONNECT_TIMEOUT):
            arguments = security.get_connection_args("client")
            await (await connection(address, timeout=CONNECT_TIMEOUT, **arguments)).close()
    except (OSError, ValueError, TypeError, RuntimeError) as e:
        if any(isinstance(error, TimeoutError) for error in (e, e.__cause__)):
            raise TimeoutError("nothing was said in time") from None
        raise
    except Exception:  # whatever the first bytes of another program are read as
        raise ValueError("it is another program's") from None


def _security(address: str, key: str | Path | None) -> Security | None:
    unencrypted = str(key) == UNENCRYPTED
    if address.startswith("tls://"):
        if key is None or unencrypted:
            raise ClusterError(
                f"connections to {address} are encrypted: give the folder that contains the key with --key"
            )
        return load_key(Path(key))
    if unencrypted or on_this_machine(address):
        return None
    raise ClusterError(
        f"the connection to {address} over the network would not be encrypted: start the scheduler and the "
        f"workers with a key (`homodyne-dask key`), or give --key none if nobody else is on that network"
    )


def dashboard_of(client: Client) -> str:
    """Return the address of a scheduler's dashboard; '' where it has none, or where none can be named."""
    try:
        scheduler = client.scheduler_info(n_workers=0)
        return str(client.dashboard_link) if "dashboard" in scheduler["services"] else ""
    except LookupError as e:
        LOG.warning(
            "distributed.dashboard.link of Dask's configuration names %s, which is not set", e
        )
        return ""


def on_this_machine(address: str) -> bool:
    """Return whether an address is one of the loopback; one without a network, as inproc://, is."""
    host = urlsplit(address if "://" in address else f"tcp://{address}").hostname
    if address.startswith("inproc://") or not host:
        return True
    try:
        return ip_address(socket.gethostbyname(host)).is_loopback
    except (OSError, ValueError):
        return False


@contextmanager
def failures_logged(failure: str) -> Iterator[None]:
    """Log what is raised inside a `with`, instead of raising it: the end of a cluster costs no result."""
    try:
        yield
    # the computation is done: whatever a scheduler that has ended, or another version, raises
    except (Exception, CancelledError) as e:
        LOG.warning("%s: %s: %s", failure, type(e).__name__, e)


@contextmanager
def closing_logged[T](resource: AbstractContextManager[T]) -> Iterator[T]:
    """Enter a client, cluster or report for a `with`; a failure to close it is logged, not raised."""
    entered = resource.__enter__()
    try:
        yield entered
    finally:
        raised = sys.exc_info()
        with failures_logged(f"{type(resource).__name__} did not close"):
            resource.__exit__(*raised)


def with_timeout[**P, T](
    seconds: float, call: Callable[P, T], *arguments: P.args, **options: P.kwargs
) -> T:
    return in_thread(partial(call, *arguments, **options), daemon=True).result(seconds)
