"""A path by URL: what the program uses of `pathlib.Path`, for objects of S3, Google, Azure and web servers.

The URL is all that is kept, printed, written and sent to workers. Each process makes its own connection,
with the credentials of its environment or of the provider's files. Reading and writing of objects is in
`objects.py`.
"""

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from homodyne_dask.errors import OptionError, shown

BUCKETS, WEB = ("s3", "gs", "az"), ("https", "http")
"""Schemes of stores that are read and written, and of those that are only read."""
_FORMS = (
    "s3://bucket/path, gs://bucket/path, az://container/path, https://host/path or file:///path"
)


@dataclass(frozen=True)
class UrlPath:
    """The URL of an object, or of all objects below a common prefix; `url_path` makes and checks it.

    root: s3://bucket or https://host. key: names below it, with / between; '' for the bucket itself. In the
    URL of a web server names are percent-encoded, in those of buckets they stand as they are.
    """

    root: str
    key: str

    def __str__(self) -> str:
        key = quote(self.key) if self.root.startswith(WEB) else self.key
        return f"{self.root}/{key}".rstrip("/")

    def __truediv__(self, name: Any) -> "UrlPath":
        return self.joinpath(name)

    def __rtruediv__(self, folder: Any) -> "UrlPath":
        """Return the URL itself, which is relative to no folder, as an absolute path is not."""
        return self

    def joinpath(self, *names: Any) -> "UrlPath":
        """Return the URL of something below this one."""
        return UrlPath(self.root, "/".join(filter(None, (self.key, *map(str, names)))))

    @property
    def name(self) -> str:
        """The last name of the URL."""
        return self.key.rpartition("/")[2]

    def is_absolute(self) -> bool:
        """Return True."""
        return True

    def relative_to(self, above: "UrlPath") -> str:
        """Return the names below another URL."""
        return self.key.removeprefix(above.key).strip("/")


def is_url(given: object) -> bool:
    """Return whether something is a URL, or text in the form of one."""
    return isinstance(given, UrlPath) or (isinstance(given, str) and "://" in given)


def url_path(what: str, url: str) -> UrlPath | str:
    """Return a URL, checked, or the path of a file:///folder/name.

    What stands in a URL is printed, and written into results. Raises OptionError for another scheme, no
    bucket, or credentials in it.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        raise OptionError(f"{what} = {shown(url)} is not a URL: give {_FORMS}") from None
    bare = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    if parts.scheme == "file" and host in (None, "localhost") and parts.path:
        return unquote(parts.path)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise OptionError(
            f"{what} = {shown(bare)} contains a user, a password or a signature (@, ?, #), but URLs "
            f"are stored in results and logs: give the URL without these, and credentials in the environment"
        )
    encrypted = parts.scheme != "http" or host in ("localhost", "127.0.0.1", "::1")
    if parts.scheme not in BUCKETS + WEB or not host or not encrypted:
        raise OptionError(f"{what} = {shown(bare)} cannot be used: give {_FORMS}")
    return UrlPath(f"{parts.scheme}://{parts.netloc}", "/".join(_names_in(what, url, bare)))


def _names_in(what: str, url: str, bare: str) -> list[str]:
    parts = urlsplit(url)
    names = [name for name in parts.path.split("/") if name]
    if parts.scheme in WEB:
        names = [*map(unquote, names)]
    if not url.isprintable() or any(name in (".", "..") or set(name) & {*"/\\"} for name in names):
        raise OptionError(
            f"{what} = {shown(bare)} cannot be used: give a URL without backslashes, control characters, and "
            f"the segments . and .."
        )
    return names
