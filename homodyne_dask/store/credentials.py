"""The server and the credentials of a provider, as the environment and its files name them."""

import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from homodyne_dask.errors import OptionError, require_package

if TYPE_CHECKING:
    from obstore.store import S3Credential

_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
"""Variables that name a server which is not the provider's own."""
_IDENTITY = {
    "s3": (),
    "gs": ("googleapis.com", "google.internal", "169.254.169.254"),
    "az": ("microsoftonline.com", "microsoftonline.us", "chinacloudapi.cn", "169.254.169.254"),
}
"""Servers, with those below their names, that obstore asks for tokens."""
_IDENTITY_ADDRESSES = (
    "AZURE_AUTHORITY_HOST", "AZURE_AUTHORITY_URL", "AZURE_IDENTITY_ENDPOINT", "IDENTITY_ENDPOINT",
    "AZURE_MSI_ENDPOINT", "MSI_ENDPOINT",
)  # fmt: skip
"""Variables that name others."""
_ALLOW_PLAIN = {"s3": "AWS_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}
"""Variables that allow an address without encryption, of a server on one's own network."""
_ACCOUNT = "AZURE_STORAGE_ACCOUNT_NAME"
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
NO_KEY = "contains a line break or another character that is not allowed in a key"
_LIFETIME = timedelta(minutes=10)
"""After which keys are asked for again: botocore renews those that are valid for less than this."""


def settings(scheme: str) -> tuple[dict[str, Any], bool, tuple[str, ...]]:
    """Return what obstore does not read itself, and whether addresses without encryption are allowed.

    Then the hosts that are asked, where a variable or a profile names a server; else none.
    scheme: s3, gs or az. Raises OptionError for a variable that names no server or holds no key,
    PackageError without botocore.
    """
    variable = _ALLOW_PLAIN[scheme]
    plain = os.environ.get(variable, "").lower() in ("true", "1", "on", "yes", "y")
    found: dict[str, Any] = {}
    if scheme == "az":  # without an account obstore cannot even print a store
        if not os.environ.get(_ACCOUNT):
            raise OptionError(f"az:// needs the name of an account: set {_ACCOUNT}")
        found = {"account_name": os.environ[_ACCOUNT]}
    if scheme == "s3" and not os.environ.get("AWS_ACCESS_KEY_ID"):
        found = _of_amazon()
    for name in _KEYS if scheme == "s3" else ():
        _check_key(name, os.environ.get(name, ""))
    named = {name: os.environ[name] for name in _ENDPOINTS[scheme] if name in os.environ}
    if "endpoint" in found:
        named["endpoint_url of the profile"] = found["endpoint"]
    for name, address in named.items():
        _check_address(name, address, plain, variable)
    if not named:
        return found, plain, ()
    identity = [os.environ.get(name, "") for name in _IDENTITY_ADDRESSES if scheme == "az"]
    hosts = [urlsplit(address).hostname for address in (*named.values(), *identity)]
    return found, plain, (*filter(None, hosts), *_IDENTITY[scheme])


def _check_address(name: str, address: str, plain: bool, variable: str) -> None:
    """Refuse what is not an address, which ends obstore, or is not to be used; it may hold a password."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.netloc or "@" in parts.netloc:
        raise OptionError(
            f"{name} is not the address of a server: give https://host or http://host"
        )
    if parts.scheme == "http" and not plain:
        raise OptionError(
            f"{name} is an unencrypted address: give https://host, or set {variable}=true for a server "
            f"on your own network"
        )


def _check_key(name: str, value: str) -> None:
    """Refuse what is in no header of a request, which ends obstore."""
    if not value.isascii() or not value.isprintable():
        raise OptionError(f"{name} {NO_KEY}")


def _of_amazon() -> dict[str, Any]:
    """Return the credentials, region and server of a profile of ~/.aws, or of the machine's role."""
    require_package("s3:// without keys in the environment", "botocore", "objectstore")
    from botocore.exceptions import BotoCoreError

    keys = AmazonCredentials()
    found: dict[str, Any] = {"credential_provider": keys}
    try:
        region = keys.session.get_config_variable("region")
        endpoint = keys.session.get_scoped_config().get("endpoint_url")
    except BotoCoreError:  # of a file or a profile; the first request meets the same, and says so
        return found
    if region and "AWS_REGION" not in os.environ:
        found["region"] = region
    if endpoint and not any(name in os.environ for name in _ENDPOINTS["s3"]):
        found["endpoint"] = endpoint
    return found


class AmazonCredentials:
    """Keys for S3 as Amazon's own library finds them where none are in the environment.

    In order: a profile of ~/.aws with its keys, role, SSO or process, a container, the role of the machine.
    obstore calls it again and again. Another process, to which it is sent, finds its own.
    """

    def __init__(self) -> None:
        import botocore.session

        self.session = botocore.session.Session()

    def __call__(self) -> "S3Credential":
        """Return the keys; NoCredentialsError, or another of botocore's, where it finds none.

        OptionError for what is not a key.
        """
        from botocore.exceptions import NoCredentialsError

        found = self.session.get_credentials()
        if found is None:
            raise NoCredentialsError
        keys = found.get_frozen_credentials()
        for name, value in zip(_KEYS, keys[:3], strict=True):
            _check_key(f"{name.lower()} of the profile", value or "")
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token,
            "expires_at": datetime.now(UTC) + _LIFETIME,
        }

    def __reduce__(self) -> tuple[type, tuple[()]]:
        """Return how another process makes its own."""
        return AmazonCredentials, ()
