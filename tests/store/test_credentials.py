"""Credentials of stores by URL: of the environment or the provider's files, never kept, sent or said."""

import json
import pickle
from pathlib import Path

import pytest

import homodyne_dask as hd
from homodyne_dask.errors import ObjectStoreError, OptionError
from homodyne_dask.store import objects
from homodyne_dask.store.url_path import url_path
from tests import object_server
from tests.object_server import KEY, SECRET, uploaded
from tests.synthetic import CREEP, measured, store

pytestmark = pytest.mark.usefixtures("server")

GIVEN = {"initial": {"D0": 9000.0, "alpha": 0.0}, "fixed": {"D_offset": 1000.0}, "max_passes": 3}


@pytest.fixture(scope="module")
def url(tmp_path_factory, server):
    made = measured(CREEP, 40, (0.0, 45.0), dt=0.1)
    return uploaded(Path(store(made, tmp_path_factory.mktemp("disk")).path), "A0001_c2.zarr")


@pytest.mark.long
def test_wrong_credentials_are_one_sentence_without_them(url, server, capfd):
    objects.connection.cache_clear()
    object_server.ask("POST", f"{server}/moto-api/reset-auth", b"0")
    try:
        with pytest.raises(ObjectStoreError) as raised:
            hd.open_dataset(url)
    finally:
        object_server.ask("POST", f"{server}/moto-api/reset-auth", b"inf")
    said = str(raised.value)
    assert said.startswith(
        f"{url}/zarr.json cannot be used (access is refused, 403 Forbidden, InvalidA"
    )
    assert len(said.splitlines()) == 1
    assert not any(secret in said for secret in (SECRET, KEY))


@pytest.fixture
def profile(server, tmp_path, monkeypatch):
    """A profile with the keys and the server, and none of them in the environment."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "ENDPOINT_URL", "REGION"):
        monkeypatch.delenv(f"AWS_{name}")
    for name, text in (("credentials", ""), ("config", "profile ")):
        kept = tmp_path / name
        keys = f"aws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
        place = f"region = us-east-1\nendpoint_url = {server}\n"
        kept.write_text(f"[{text}beam]\n{keys if name == 'credentials' else place}")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_PROFILE", "beam")
    objects.connection.cache_clear()
    yield "beam"
    objects.connection.cache_clear()


def test_keys_region_and_server_are_those_of_a_profile(url, profile):
    assert hd.open_dataset(url).dataset["c2"].shape == (2, 40, 40)


def test_a_line_break_in_a_key_of_a_profile_is_one_sentence(
    url, profile, server, tmp_path, monkeypatch
):
    keys = {"Version": 1, "AccessKeyId": KEY, "SecretAccessKey": SECRET, "SessionToken": "a\nb"}
    (tmp_path / "keys").write_text(json.dumps(keys))
    process = f"credential_process = cat {tmp_path / 'keys'}"
    (tmp_path / "config").write_text(f"[profile beam]\nregion = us-east-1\n{process}\n")
    (tmp_path / "credentials").write_text("")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    with pytest.raises(
        ObjectStoreError, match="a key of the profile contains a line break"
    ) as said:
        hd.open_dataset(url)
    assert not any(secret in str(said.value) for secret in (SECRET, KEY))


@pytest.mark.parametrize("name", [None, "another"])
def test_a_profile_that_is_not_there_is_one_sentence(url, profile, server, monkeypatch, name):
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    if name:
        monkeypatch.setenv("AWS_PROFILE", name)
    else:
        monkeypatch.delenv("AWS_PROFILE")
    error = "ProfileNotFound" if name else "NoCredentialsError"
    with pytest.raises(ObjectStoreError, match=rf"\({error}: no keys were found .* role\): check"):
        hd.open_dataset(url)


def test_for_public_data_no_keys_are_looked_for(url, profile, server, monkeypatch):
    monkeypatch.delenv("AWS_PROFILE")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    with pytest.raises(ObjectStoreError, match=r"\(access is refused, 403 Forbidden\)"):  # by moto
        hd.open_dataset(url)


IN_VAIN = {
    "no scheme": ("ENDPOINT_URL", "127.0.0.1:9", "is not the address of a server"),
    "a password": ("ENDPOINT_URL", "https://me:secret@host", "is not the address of a server"),
    "plain": ("ENDPOINT_URL", "http://[::1]:9", "unencrypted address: give https://host, or"),
    "a line": ("SESSION_TOKEN", "secret\n", "contains a line break or another"),
}


@pytest.mark.parametrize("case", IN_VAIN)
def test_a_variable_that_cannot_be_used_is_named_and_not_quoted(url, monkeypatch, case):
    name, value, said = IN_VAIN[case]
    objects.connection.cache_clear()
    monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(OptionError, match=f"^AWS_{name} .*{said}") as raised:
        hd.open_dataset(url)
    assert "secret" not in str(raised.value)
    objects.connection.cache_clear()


def test_azure_needs_the_name_of_an_account(monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(OptionError, match=r"az:// needs .* set AZURE_STORAGE_ACCOUNT_NAME"):
        hd.open_dataset("az://container/a")


def test_a_file_of_keys_that_cannot_be_read_is_not_quoted(monkeypatch):
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", '"secret"')
    with pytest.raises(ObjectStoreError, match="Unable to decode service account") as raised:
        hd.open_dataset("gs://bucket/a")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("keys", ["environment", "profile"])
def test_nothing_that_is_kept_or_sent_holds_credentials(url, tmp_path, keys, request):
    if keys == "profile":
        request.getfixturevalue("profile")
    scan = hd.open_dataset(url)
    assert scan.dataset["c2"][0, 0, 1:3].values.shape == (2,)  # Zarr has its own connection
    kept = tmp_path / "kept" / "checkpoint.json"
    kept.parent.mkdir()
    result = hd.fit(scan, hd.STATIC, **GIVEN, checkpoint=kept)
    result.to_json(kept.with_name("result.json"))
    sent = [pickle.dumps(one) for one in (scan, scan.selection, url_path("store", url))]
    assert pickle.loads(sent[0]).dataset["c2"].equals(scan.dataset["c2"])
    sent += [file.read_bytes() for file in kept.parent.iterdir()]
    assert len(sent) >= 5
    assert not [one for one in sent if SECRET.encode() in one or KEY.encode() in one]
