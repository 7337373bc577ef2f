"""A path by URL: what the program uses of `pathlib.Path`, for objects of S3, Google, Azure and web servers.

The URL is all that is kept, printed, written and sent to workers. Each process makes its own connection,
with the credentials of its environment or of the provider's files. Nothing here prints what a server
answers, in which credentials may be.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from errno import ENOENT
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from homodyne_dask.errors import ObjectStoreError, OptionError, require_package, shown

if TYPE_CHECKING:
    from obstore.store import ObjectStore, S3Credential

BUCKETS, WEB = ("s3", "gs", "az"), ("https", "http")
"""Schemes of stores that are read and written, and of those that are only read."""
FORMS = "s3://bucket/path, gs://bucket/path, az://container/path, https://host/path or file:///path"


@dataclass(frozen=True)
class UrlPath:
    """The URL of an object, or of all objects below a common prefix; `url_path` makes and checks it."""

    root: str
    """s3://bucket or https://host."""
    key: str
    """Names below it, with / between, decoded."""

    def __str__(self) -> str:
        key = quote(self.key) if self.root.startswith(WEB) else self.key
        return f"{self.root}/{key}".rstrip("/")

    def joinpath(self, *names: Any) -> "UrlPath":
        return UrlPath(self.root, "/".join(filter(None, (self.key, *map(str, names)))))

    __truediv__ = joinpath

    def __rtruediv__(self, folder: Any) -> "UrlPath":
        """Return the URL itself, which is relative to no folder."""
        return self

    def is_absolute(self) -> bool:
        return True

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]


def is_url(value: object) -> bool:
    return isinstance(value, UrlPath) or (isinstance(value, str) and "://" in value)


def url_path(what: str, url: str) -> UrlPath | str:
    """Return a URL, or the path of file:///folder/name; OptionError for others, and for credentials in it."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        raise OptionError(f"{what} = {shown(url)} is not a URL: give {FORMS}") from None
    bare = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    if parts.scheme == "file" and host in (None, "localhost") and parts.path:
        return unquote(parts.path)
    if any(("@" in parts.netloc, parts.query, parts.fragment)):
        raise OptionError(
            f"{what} = {shown(bare)} contains a user, a password or a signature (@, ?, #), but URLs "
            f"are stored in results and logs: give the URL without these, and credentials in the environment"
        )
    if not host or not _is_readable(parts.scheme, host):
        raise OptionError(f"{what} = {shown(bare)} cannot be used: give {FORMS}")
    # keys of buckets are what they look like: only web servers decode %20
    decoded = unquote if parts.scheme in WEB else str
    names = [decoded(name) for name in parts.path.split("/") if name]
    if not url.isprintable() or any(map(_leads_elsewhere, names)):
        raise OptionError(
            f"{what} = {shown(bare)} cannot be used: give a URL without backslashes, control "
            "characters, and the segments . and .."
        )
    return UrlPath(f"{parts.scheme}://{parts.netloc}", "/".join(names))


def _is_readable(scheme: str, host: str) -> bool:
    """Return whether it is a scheme of stores; without encryption only on this machine."""
    on_this_machine = host in ("localhost", "127.0.0.1", "::1")
    return scheme in BUCKETS + WEB and (scheme != "http" or on_this_machine)


def _leads_elsewhere(segment: str) -> bool:
    return segment in (".", "..") or bool(set(segment) & {*"/\\"})


BACKOFF = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=15), "base": 2}
RETRIES: Any = {"max_retries": 12, "retry_timeout": timedelta(seconds=90), "backoff": BACKOFF}
"""Of requests, by obstore, and of reads of files."""
CLIENT = {"connect_timeout": timedelta(seconds=10), "timeout": timedelta(seconds=60)}
_SERVERS = {
    "s3": ("AWS_ALLOW_HTTP", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_ALLOW_HTTP", "GOOGLE_BASE_URL"),
    "az": ("AZURE_ALLOW_HTTP", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
"""Variables: one allows servers without encryption, the others name one that is not the provider's own."""
_IDENTITY = {
    "gs": ("googleapis.com", "google.internal", "169.254.169.254"),
    "az": ("microsoftonline.com", "microsoftonline.us", "chinacloudapi.cn", "169.254.169.254"),
}
"""Servers, with those below their names, that obstore asks for tokens; variables name others."""
_AZURE_IDENTITY = ("AZURE_AUTHORITY_HOST", "AZURE_AUTHORITY_URL", "AZURE_IDENTITY_ENDPOINT")
_AZURE_IDENTITY += ("IDENTITY_ENDPOINT", "AZURE_MSI_ENDPOINT", "MSI_ENDPOINT")
NOWHERE = "127.0.0.1:0"
"""No server: requests to hosts that were not named go there, for obstore follows redirects with tokens."""
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_NO_KEY = "contains a line break or another character that is not allowed in a key"
_QUOTED = re.compile(r"""["`].*["`]|(?<=command failed): .*""")
"""What a file of credentials or a command that prints them holds."""
_CAUSES = {
    "^UnauthenticatedError": "the credentials are refused",
    "^PermissionDeniedError": "access is refused",
    rf"\b{re.escape(NOWHERE)}\b": "it redirects to another host, which is not contacted: give the URL of "
    "that host",
    r"InvalidCertificate\W+(?:Other\W+OtherError\W+)?(\w+)": r"its certificate is not accepted: \1",
    r"InvalidMessage|InvalidContentType": "the server there does not use TLS",
    r"ConnectionRefused": "the connection is refused",
    r"dns error": "no host has this name",
    r"kind: Timeout|TimedOut": "it does not answer in time",
}
"""The class and the source of an error of obstore, and in words."""
_DETAILS = re.compile(r"status code: (\d+ [A-Za-z ]+\w)|<Code>(\w+)</Code>|(after \d+ retries)")
_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist", re.IGNORECASE)


@lru_cache(maxsize=64)
def connection(root: str, prefix: str = "") -> "ObjectStore":
    """Return this process's connection to a bucket or a host, of names below `prefix`."""
    scheme = root.partition(":")[0]
    with object_errors(UrlPath(root, prefix)):
        from obstore.store import HTTPStore, from_url

        plain, settings, servers = scheme == "http", {}, {"": root}
        if scheme not in WEB:
            plain, settings, servers = _provider_settings(scheme)
        client: Any = CLIENT | {"allow_http": plain}
        if servers:  # else the provider's own; no host but these, and those of tokens, is asked
            of_tokens = [os.environ.get(name, "") for name in _AZURE_IDENTITY if scheme == "az"]
            addresses = map(urlsplit, (*servers.values(), *of_tokens))
            hosts = [address.hostname for address in addresses if address.hostname]
            proxied = {"http", "https", "all"} & {*getproxies()}  # a proxy of the user stays
            if not proxied or all(proxy_bypass(host) for host in hosts):
                excluded = ",".join([*hosts, *_IDENTITY.get(scheme, ())])
                client |= {"proxy_url": f"http://{NOWHERE}", "proxy_excludes": excluded}
        connect: Any = HTTPStore.from_url if scheme in WEB else from_url
        # obstore decodes the names of a prefix, but not those of objects
        address = f"{root}/{quote(prefix)}"
        return connect(address, client_options=client, retry_config=RETRIES, **settings)


def _provider_settings(scheme: str) -> tuple[bool, dict[str, Any], dict[str, str]]:
    """Return whether addresses may be without encryption, what obstore does not read itself, and servers."""
    allows_plain, *variables = _SERVERS[scheme]
    plain = os.environ.get(allows_plain, "").lower() in ("true", "1", "on", "yes", "y")
    settings: dict[str, Any] = {}
    if scheme == "az" and not os.environ.get("AZURE_STORAGE_ACCOUNT_NAME"):
        raise OptionError("az:// needs the name of an account: set AZURE_STORAGE_ACCOUNT_NAME")
    servers = {name: os.environ[name] for name in variables if name in os.environ}
    if scheme == "s3":
        _check_keys({name: os.environ.get(name, "") for name in _KEYS})
        if not os.environ.get("AWS_ACCESS_KEY_ID"):
            settings = _settings_of_profile(servers)
    for name, address in servers.items():
        _check_server(name, address, "" if plain else allows_plain)
    return plain, settings, servers


def _check_server(name: str, address: str, allows_plain: str) -> None:
    """allows_plain: the variable with which addresses may be without encryption; '' where they may."""
    parts = urlsplit(address)
    # the address may hold a password: sentences name the variable alone
    if parts.scheme not in WEB or not parts.netloc or "@" in parts.netloc:
        raise OptionError(
            f"{name} is not the address of a server: give https://host or http://host"
        )
    if parts.scheme == "http" and allows_plain:
        raise OptionError(
            f"{name} is an unencrypted address: give https://host, or set {allows_plain}=true for a server "
            f"on your own network"
        )


def _check_keys(keys: dict[str, str]) -> None:
    for name, value in keys.items():
        if value and not (value.isascii() and value.isprintable()):  # obstore would panic
            raise OptionError(f"{name} {_NO_KEY}")


def _settings_of_profile(servers: dict[str, str]) -> dict[str, Any]:
    """Return what a profile or the machine's role gives; its server becomes one of `servers`, if none is."""
    require_package("s3:// without keys in the environment", "botocore", "objectstore")
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session

    settings: dict[str, Any] = {"credential_provider": amazon_keys}
    with suppress(BotoCoreError):  # the first request meets the same, and says so
        session = Session()
        if (region := session.get_config_variable("region")) and "AWS_REGION" not in os.environ:
            settings["region"] = region
        if (server := session.get_scoped_config().get("endpoint_url")) and not servers:
            settings["endpoint"] = servers["endpoint_url of the profile"] = server
    return settings


def amazon_keys() -> "S3Credential":
    """Return keys as Amazon's own library finds them; obstore asks again and again, in each process."""
    from botocore.exceptions import NoCredentialsError
    from botocore.session import Session

    credentials = Session().get_credentials()
    if credentials is None:
        raise NoCredentialsError
    names = ("access_key_id", "secret_access_key", "token")
    keys: Any = dict(zip(names, credentials.get_frozen_credentials()[:3], strict=True))
    _check_keys(keys)
    # after this obstore asks again: botocore renews keys that are valid for less
    return keys | {"expires_at": datetime.now(UTC) + timedelta(minutes=10)}


@contextmanager
def object_errors(url: UrlPath) -> Iterator[None]:
    """Raise ObjectStoreError for what obstore raises, FileNotFoundError for a missing object alone."""
    require_package("a store by URL", "obstore", "objectstore")
    from obstore.exceptions import BaseError

    try:
        yield
    except (FileNotFoundError, BaseError) as e:
        if isinstance(e, FileNotFoundError) and not _NO_BUCKET.search(str(e)):
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT), str(url)) from None
        raise ObjectStoreError(
            f"{url} cannot be used ({_cause(e)}): check the URL, the network and the credentials"
        ) from None


def _cause(error: Exception) -> str:
    text, _, source = str(error).partition("\n\nDebug source")
    if _NO_BUCKET.search(text):
        return "its bucket does not exist"
    if _NO_KEY in text:
        return f"a key of the profile {_NO_KEY}"
    if no_keys := re.search(r"External AWS credential provider: (\w+)", text):
        return f"{no_keys[1]}: no keys were found in the environment, a profile or a role"
    description = f"{type(error).__name__} {source.partition('inner:')[2]}"
    matches = ((re.search(form, description), words) for form, words in _CAUSES.items())
    causes = (match.expand(words) for match, words in matches if match)
    other = _QUOTED.sub("", text.partition("\n")[0].rpartition(" - ")[2])
    cause = next(causes, "the server refuses" if "status code" in text else other)
    return ", ".join([cause, *(word for words in _DETAILS.findall(text) for word in words if word)])


def read(path: UrlPath, max_bytes: int) -> bytes:
    """Return an object; ValueError for one of more than `max_bytes`, FileNotFoundError for none."""
    with object_errors(path):
        answer = connection(path.root).get(path.key)
        if (count := answer.meta["size"]) > max_bytes:
            raise ValueError(f"it has {count:,} bytes, but at most {max_bytes:,} are allowed")
        return answer.bytes().to_bytes()


def read_range(path: UrlPath, first: int, count: int) -> memoryview:
    """Return `count` bytes of an object from `first` on, not copied; ValueError where it has fewer."""
    from obstore.exceptions import BaseError

    with object_errors(path):
        try:
            content = connection(path.root).get_range(path.key, start=first, length=count)
        except BaseError as e:
            if "416 Range Not Satisfiable" not in str(e):
                raise
            content = b""
    if len(content) != count:
        raise ValueError(f"it has fewer than {first + count:,} bytes")
    return memoryview(content)


def write(path: UrlPath, content: bytes, create: bool = False) -> bool:
    """Write an object whole; with `create`, return False where there is one already."""
    from obstore.exceptions import AlreadyExistsError

    with object_errors(path), suppress(AlreadyExistsError):
        _bucket(path).put(path.key, content, mode="create" if create else "overwrite")
        return True
    return False


def remove(path: UrlPath) -> None:
    with suppress(FileNotFoundError), object_errors(path):
        _bucket(path).delete(path.key)


def below(path: UrlPath) -> Iterator[UrlPath]:
    """Yield all objects below a URL, by name; OptionError for a web server, which lists none."""
    with object_errors(path):
        for batch in _bucket(path).list(f"{path.key}/" if path.key else None):
            for listed in batch:
                yield UrlPath(path.root, listed["path"])


def _bucket(path: UrlPath) -> "ObjectStore":
    if path.root.startswith(WEB):
        raise OptionError(f"{path} cannot be written: give s3://, gs://, az:// or a folder")
    return connection(path.root)
