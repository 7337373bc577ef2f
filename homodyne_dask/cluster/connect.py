"""A connection to a scheduler that others started, encrypted wherever it leaves this machine.

Clients and schedulers execute each other's code: whoever can connect has the rights of the user who
started the other. So beyond this machine both sides must have the key of the cluster.
"""

import asyncio
import json
import logging
import socket
import sys
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from distributed import Client, Security
from distributed.comm.core import connect as connection

from homodyne_dask.cluster import tls
from homodyne_dask.cluster._dask_internals import lost_connections_not_logged
from homodyne_dask.errors import ClusterError, first_cause, require_type, why_unreadable
from homodyne_dask.machine.allocator_and_threads import in_thread
from homodyne_dask.store.files import path_of, read_regular_file

LOG = logging.getLogger(__name__)
CONNECT_TIMEOUT = 10.0
"""Seconds to wait for a scheduler."""
MAX_FILE_BYTES = 100_000_000
"""Bytes of the largest file of a scheduler, which lists its workers."""
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
        in_thread(
            lambda: asyncio.run(_greet(address, security or Security())), daemon=True
        ).result()
        client = Client(address, timeout=CONNECT_TIMEOUT, security=security)
    except (OSError, ValueError, TypeError, RuntimeError) as e:
        raise ClusterError(
            f"no scheduler answers at {address} within {monotonic() - began:.0f} s ({first_cause(e)}): check "
            f"that it is running{',' if security else ' and'} that this machine can reach it"
            + (f", and that {key} is its key" if security else "")
        ) from e
    with lost_connections_not_logged(), closing_logged(client):
        yield client


def read_scheduler_file(file: Path) -> dict[str, Any]:
    """Return what the file of a scheduler says, as Dask writes it; raises ClusterError for another file."""
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
    """Connect to the scheduler of a file for the duration of a `with` block; its key is beside the file.

    key: another folder, or 'none', as of `connect`. Raises ClusterError as that does.
    """
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
        if any(isinstance(of, TimeoutError) for of in (e, e.__cause__)):
            raise TimeoutError("nothing was said in time") from None
        raise
    except Exception:  # whatever the first bytes of another program are read as
        raise ValueError("it is another program's") from None


def _security(address: str, key: str | Path | None) -> Security | None:
    """Return the TLS settings, None for none; raises ClusterError where encryption is missing."""
    unencrypted = str(key) == UNENCRYPTED
    encrypted = address.startswith("tls://")
    if encrypted and (key is None or unencrypted):
        raise ClusterError(
            f"connections to {address} are encrypted: give the folder that contains the key with --key"
        )
    if not encrypted and not unencrypted and not on_this_machine(address):
        raise ClusterError(
            f"the connection to {address} over the network would not be encrypted: start the scheduler "
            "and the workers with a key (`homodyne-dask key`), or give --key none if nobody else is on that "
            "network"
        )
    if not encrypted:
        return None
    return tls.load_key(Path(str(key)))


def dashboard_of(client: Client) -> str:
    """Return the address of a scheduler's dashboard; '' where it has none, or where none can be named."""
    try:
        known = client.scheduler_info(n_workers=0)
        return str(client.dashboard_link) if "dashboard" in known["services"] else ""
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
def failures_logged(what: str) -> Iterator[None]:
    """Log what is raised inside a `with`, instead of raising it: the end of a cluster costs no result."""
    try:
        yield
    # the computation is done: whatever a scheduler that has ended, or another version, raises
    except (Exception, CancelledError) as e:
        LOG.warning("%s: %s: %s", what, type(e).__name__, e)


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
    """Return what a call returns; raises TimeoutError if that takes longer than some seconds.

    Methods of a client that wait for workers have no time limit of their own.
    """
    return in_thread(partial(call, *arguments, **options), daemon=True).result(seconds)
