"""Objects of a store by URL, read and written through obstore, which repeats requests that fail.

An error is one sentence with the URL and the cause: `ObjectStoreError`. Only an object that is missing is
a FileNotFoundError, as a file is. Nothing here prints what a server answers, in which credentials may be.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from errno import ENOENT
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

from homodyne_dask.errors import ObjectStoreError, OptionError, require_package
from homodyne_dask.store.credentials import NO_KEY, settings
from homodyne_dask.store.url_path import WEB, UrlPath

if TYPE_CHECKING:
    from obstore.store import ObjectStore

BACKOFF = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=15), "base": 2}
RETRIES: Any = {"max_retries": 12, "retry_timeout": timedelta(seconds=90), "backoff": BACKOFF}
"""Of requests, by obstore; `files.py:patiently` reads files so."""
CLIENT = {"connect_timeout": timedelta(seconds=10), "timeout": timedelta(seconds=60)}
"""Of one request."""
NOWHERE = "127.0.0.1:0"
"""Where no server can be: requests to hosts that were not named are sent there, for obstore follows every
redirect, with the token of a session in it."""
_QUOTED = re.compile(r"""["`].*["`]|(?<=command failed): .*""")
"""What a file of credentials or a command that prints them holds."""
_CONNECTION = {
    rf"\b{re.escape(NOWHERE)}\b": "it redirects to another host, which is not contacted: give the URL of "
    "that host",
    r"InvalidCertificate\W+(?:Other\W+OtherError\W+)?(\w+)": "its certificate is not accepted: {}",
    r"InvalidMessage|InvalidContentType": "the server there does not use TLS",
    r"ConnectionRefused": "the connection is refused",
    r"dns error": "no host has this name",
    r"kind: Timeout|TimedOut": "it does not answer in time",
    r"IncompleteMessage|ConnectionReset": "it closes the connection without an answer",
    r"NetworkUnreachable|HostUnreachable": "there is no network connection to it",
}
"""What obstore says of requests that got no answer, and in words."""
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist", re.IGNORECASE)


@lru_cache(maxsize=64)
def connection(root: str, prefix: str = "") -> "ObjectStore":
    """Return this process's connection to a bucket or a host, of names below `prefix`.

    Raises ObjectStoreError where credentials are unusable, OptionError for a variable of the environment
    that names no server, PackageError without obstore.
    """
    url = str(UrlPath(root, prefix))
    scheme = root.partition(":")[0]
    with object_errors(url):
        from obstore.store import HTTPStore, from_url

        found, plain, hosts = {}, scheme == "http", (urlsplit(root).hostname or "",)
        if scheme not in WEB:
            found, plain, hosts = settings(scheme)
        client: Any = CLIENT | {"allow_http": plain}
        proxies = {"http", "https", "all"} & {*getproxies()}  # one through which we ask must stay
        if hosts and all(not proxies or proxy_bypass(host) for host in hosts):
            client |= {"proxy_url": f"http://{NOWHERE}", "proxy_excludes": ",".join(hosts)}
        connect: Any = HTTPStore.from_url if scheme in WEB else from_url
        # obstore decodes the names of a prefix, but not those of objects
        address = f"{root}/{quote(prefix)}"
        return connect(address, client_options=client, retry_config=RETRIES, **found)


@contextmanager
def object_errors(url: object) -> Iterator[None]:
    """Raise ObjectStoreError for what obstore raises, in one sentence that names the URL.

    FileNotFoundError for a missing object, which names it alone. Raises PackageError without obstore.
    """
    require_package("a store by URL", "obstore", "objectstore")
    from obstore.exceptions import BaseError

    try:
        yield
    except FileNotFoundError as e:
        if _NO_BUCKET.search(str(e)):
            raise ObjectStoreError(_sentence(url, "its bucket does not exist")) from None
        raise FileNotFoundError(ENOENT, os.strerror(ENOENT), str(url)) from None
    except BaseError as e:
        raise ObjectStoreError(_sentence(url, _cause(e))) from None


def _sentence(url: object, cause: str) -> str:
    return f"{url} cannot be used ({cause}): check the URL, the network and the credentials"


def _cause(error: Exception) -> str:
    """Return in words why a request failed."""
    from obstore import exceptions

    text, _, source = str(error).partition("\n\nDebug source")
    if _NO_BUCKET.search(text):
        return "its bucket does not exist"
    if NO_KEY in text:
        return f"a key of the profile {NO_KEY}"
    if no_keys := re.search(r"External AWS credential provider: (\w+)", text):
        return f"{no_keys[1]}: no keys were found in the environment, a profile or a role"
    status = re.search(r"status code: (\d+ [A-Za-z ]+)", text)
    code, spent = re.search(r"<Code>(\w+)</Code>", text), re.search(r"after (\d+) retries", text)
    if isinstance(error, exceptions.UnauthenticatedError):
        cause = "the credentials are refused"
    elif isinstance(error, exceptions.PermissionDeniedError):
        cause = "access is refused"
    elif status or code:
        cause = "the server refuses"
    else:
        said, inner = text.partition("\n")[0].rpartition(" - ")[2], source.partition("inner:")[2]
        found = ((words, re.search(form, inner)) for form, words in _CONNECTION.items())
        known = (words.format(*why.groups()) for words, why in found if why)
        cause = next(known, _QUOTED.sub("", said))
    details = [status[1].strip() if status else "", code[1] if code else ""]
    details += [f"after {spent[1]} retries" if spent else ""]
    return ", ".join(filter(None, [cause, *details]))


def read(path: UrlPath, max_bytes: int) -> bytes:
    """Return an object; ValueError for one of more than `max_bytes`, FileNotFoundError for none."""
    with object_errors(path):
        found = connection(path.root).get(path.key)
        if (held := found.meta["size"]) > max_bytes:
            raise ValueError(f"it has {held:,} bytes, but at most {max_bytes:,} are allowed")
        return found.bytes().to_bytes()


def read_range(path: UrlPath, first: int, count: int) -> memoryview:
    """Return `count` bytes of an object from `first` on, not copied; ValueError where it has fewer."""
    from obstore.exceptions import BaseError

    with object_errors(path):
        try:
            found: Any = connection(path.root).get_range(path.key, start=first, length=count)
        except BaseError as e:
            if "416 Range Not Satisfiable" not in str(e):
                raise
            found = b""
    if len(found) != count:
        raise ValueError(f"it has fewer than {first + count:,} bytes")
    return memoryview(found)


def write(path: UrlPath, content: bytes, mode: Any = "overwrite") -> bool:
    """Write an object whole: readers see the previous one, or none, until it is complete.

    mode: "overwrite", "create", or the `version` of the object to replace. Return False where there is one
    already, or where it is no longer that one.
    """
    from obstore.exceptions import AlreadyExistsError, PreconditionError

    refused: Any = (AlreadyExistsError,) if mode == "create" else ()
    if isinstance(mode, dict):
        refused = (PreconditionError, FileNotFoundError)
    _require_writable(path)
    with object_errors(path):
        try:
            connection(path.root).put(path.key, content, mode=mode)  # type: ignore[arg-type]
        except refused:
            return False
    return True


def version(path: UrlPath) -> dict[str, str] | None:
    """Return what tells an object from those that were written in its place; None where there is none."""
    with suppress(FileNotFoundError), object_errors(path):
        found: Any = connection(path.root).get(path.key).meta
        return {name: found[name] for name in ("e_tag", "version") if found[name] is not None}


def remove(path: UrlPath) -> None:
    """Remove an object, if it is there."""
    _require_writable(path)
    with suppress(FileNotFoundError), object_errors(path):
        connection(path.root).delete(path.key)


def below(path: UrlPath) -> Iterator[UrlPath]:
    """Yield all objects below a URL, by name; OptionError for a web server, which lists none."""
    _require_writable(path)
    with object_errors(path):
        for batch in connection(path.root).list(f"{path.key}/" if path.key else None):
            for found in batch:
                yield UrlPath(path.root, found["path"])


def directly_below(path: UrlPath) -> list[UrlPath]:
    """Return the objects directly below a URL, and the prefixes that others share."""
    with object_errors(path):
        found = connection(path.root).list_with_delimiter(f"{path.key}/" if path.key else None)
    keys = [*found["common_prefixes"], *(one["path"] for one in found["objects"])]
    return [UrlPath(path.root, key.strip("/")) for key in keys]


def _require_writable(path: UrlPath) -> None:
    """Raise OptionError for a web server, which is only read."""
    if path.root.startswith("http"):
        raise OptionError(f"{path} cannot be written: give s3://, gs://, az:// or a folder")
