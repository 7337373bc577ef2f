"""Stores by URL: the bits of the disk, a sentence for what goes wrong, credentials never kept or said."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import zarr

import homodyne_dask as hd
from homodyne_dask.cluster import connect as tls
from homodyne_dask.errors import ObjectStoreError, OptionError, StoreError
from homodyne_dask.fitting.events import on_pass
from homodyne_dask.store import chunks as byte_range
from homodyne_dask.store import object_stores as objects
from homodyne_dask.store.files import zarr_store
from homodyne_dask.store.object_stores import UrlPath, url_path
from homodyne_dask.store.scan import Chunk, open_selection
from homodyne_dask.sweep.blocks import BlockSource, Place, prefetched
from homodyne_dask.sweep.layout import layout
from tests import object_server
from tests.object_server import BUCKET, KEY, SECRET, uploaded
from tests.result_bits import result_bits
from tests.synthetic import CREEP, fit_here, measured, module_scan, store

pytestmark = pytest.mark.usefixtures("server")

GIVEN = {"initial": {"D0": 9000.0, "alpha": 0.0}, "fixed": {"D_offset": 1000.0}, "max_passes": 3}
disk = module_scan(lambda: measured(CREEP, 80, (0.0, 45.0), dt=0.1))
"""2 angles of 80 frames on disk."""


@pytest.fixture(scope="module")
def url(disk, server):
    return uploaded(Path(disk.path), "A0001_c2.zarr")


@pytest.mark.long
def test_a_fit_of_a_store_by_url_has_the_same_bits(disk, url):
    there = hd.open_dataset(url)
    assert there.path == url
    assert there.digest == disk.digest
    results = [fit_here(scan, hd.STATIC, **GIVEN) for scan in (disk, there)]
    assert result_bits(results[0]) == result_bits(results[1])
    assert results[1].provenance.inputs["store_path"] == url


REFUSED = {
    "credentials": ("s3://me:secret@bucket/a", r"'s3://bucket/a' contains a user"),
    "a signature": ("https://host/a?sig=secret", r"'https://host/a' contains a user"),
    "unencrypted": ("http://host/a", "'http://host/a' cannot be used: give s3://"),
    "another scheme": ("ftp://host/a", "'ftp://host/a' cannot be used: give s3://"),
    "no bucket": ("s3:///a", "'s3:///a' cannot be used: give s3://"),
    "dots": ("s3://bucket/../a", r"cannot be used: give a URL without .* segments \. and"),
    "encoded dots": ("https://host/%2e%2E/a", r"cannot be used: give a URL without .* \. and"),
    "a line": ("s3://bucket/a\nb", "cannot be used: give a URL without .* control characters"),
    "a file elsewhere": ("file://host/a", "cannot be used: give .* or file:///path"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_url_with_secrets_or_of_another_form_is_refused_without_quoting_them(case):
    url, sentence = REFUSED[case]
    with pytest.raises(OptionError, match=sentence) as raised:
        hd.open_dataset(url)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("name", ["100% a+b", "a%20b", "größe µ/x"])
def test_names_of_objects_stand_as_they_are_for_zarr_as_well(name):
    path = url_path("store", f"s3://{BUCKET}/named {name}/a.zarr")
    zarr.create_group(zarr_store(path), attributes={"name": name})
    assert json.loads(objects.read(path / "zarr.json", 1000))["attributes"] == {"name": name}
    assert url_path("again", str(path)) == path


def test_names_in_addresses_of_web_servers_are_encoded():
    path = url_path("store", "https://host/a%20b/größe%25")
    assert path.key == "a b/größe%"
    assert str(path) == "https://host/a%20b/gr%C3%B6%C3%9Fe%25"
    assert url_path("again", str(path)) == path


def test_a_url_of_a_file_is_its_path(disk):
    assert hd.open_dataset(f"file://{disk.path}").path == disk.path


def test_an_empty_place_and_a_missing_bucket_are_told_apart():
    with pytest.raises(StoreError, match=rf"s3://{BUCKET}/none is not a Zarr store"):
        hd.open_dataset(f"s3://{BUCKET}/none")
    with pytest.raises(ObjectStoreError, match=r"s3://nowhere/a.*its bucket does not exist"):
        hd.open_dataset("s3://nowhere/a")


@pytest.mark.long
def test_requests_that_fail_or_are_slow_are_repeated_and_change_no_bit(disk, url, server):
    with object_server.faulty(server) as seen:
        there = hd.open_dataset(url)
        results = [fit_here(scan, hd.STATIC, **GIVEN) for scan in (disk, there)]
    assert len(seen) > 40
    assert result_bits(results[0]) == result_bits(results[1])


def test_a_bucket_that_goes_during_a_fit_is_named(disk, server):
    object_server.make_bucket(server, "short-lived")
    scan = hd.open_dataset(uploaded(Path(disk.path), "a.zarr", "short-lived"))

    def delete(*_: object) -> None:
        for path in objects.below(url_path("bucket", "s3://short-lived")):
            objects.remove(path)
        object_server.ask("DELETE", f"{server}/short-lived")

    with pytest.raises(ObjectStoreError, match=r"s3://short-lived/a.zarr/c2.*its bucket does not"):
        hd.fit(scan, hd.STATIC, **GIVEN, memory="stream", callbacks=[on_pass(delete)])


@pytest.mark.parametrize("scheme", ["http", "s3", "s3 of a profile", "gs", "az"])
def test_a_redirect_to_another_host_is_refused_and_nothing_is_sent_there(
    scheme, monkeypatch, tmp_path
):
    monkeypatch.setitem(objects.RETRIES, "max_retries", 1)
    with object_server.redirected("127.0.0.2") as (address, seen):
        given, url = named_server(scheme, address, tmp_path, monkeypatch)
        with (
            object_server.named(given),
            pytest.raises(ObjectStoreError, match="it redirects to another host, which is not"),
        ):
            hd.open_dataset(url)
    assert not seen


def named_server(scheme, address, folder, monkeypatch) -> tuple[dict[str, str], str]:
    if scheme == "gs":
        given = {"GOOGLE_BASE_URL": address, "GOOGLE_ALLOW_HTTP": "true"}
        return given | {"GOOGLE_SKIP_SIGNATURE": "true"}, "gs://bucket/a"
    if scheme == "az":
        given = {"AZURE_STORAGE_ACCOUNT_NAME": "me", "AZURE_STORAGE_ENDPOINT": address}
        signature = {"AZURE_STORAGE_SAS_KEY": "sv=1&sig=secret"}
        return given | signature | {"AZURE_ALLOW_HTTP": "true"}, "az://container/a"
    given = {"AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
    if scheme == "s3 of a profile":
        for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name, raising=False)
        lines = ["[profile other]", f"endpoint_url = {address}", "aws_access_key_id = k"]
        lines += ["aws_secret_access_key = s", "aws_session_token = secret"]
        (folder / "config").write_text("\n".join(lines))
        (folder / "none").touch()
        files = {
            "AWS_CONFIG_FILE": folder / "config",
            "AWS_SHARED_CREDENTIALS_FILE": folder / "none",
        }
        named = {name: str(path) for name, path in files.items()} | {"AWS_PROFILE": "other"}
        return given | named, "s3://bucket/a"
    keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "secret"}
    url = "s3://bucket/a" if scheme == "s3" else f"{address}/a"
    return given | keys | {"AWS_ENDPOINT_URL": address}, url


def test_a_redirect_on_the_same_host_is_followed():
    with (
        object_server.redirected("127.0.0.1") as (address, seen),
        pytest.raises(StoreError, match="is not a Zarr store"),
    ):
        hd.open_dataset(f"{address}/here/a")
    assert seen[0].startswith("/a/zarr.json")


def test_why_no_answer_is_one_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(objects.RETRIES, "max_retries", 1)
    tls.make_key(tmp_path / "key")
    handler = object_server.Recording
    with (
        object_server.answering(handler, "127.0.0.1", tmp_path / "key") as encrypted,
        object_server.answering(handler, "127.0.0.1") as plain,
    ):
        for host, cause in {
            f"https://{encrypted}": "its certificate is not accepted: [A-Z]",
            f"http://{encrypted}": "",
            f"https://{plain}": "the server there does not use TLS",
            "https://no.host.invalid": "no host has this name",
            f"http://127.0.0.1:{object_server.free_port()}": "the connection is refused",
        }.items():
            with pytest.raises(ObjectStoreError, match=rf"cannot be used \({cause}.*after 1 ret"):
                hd.open_dataset(f"{host}/a")


def chunk_url(url: str, *place: int) -> UrlPath:
    return url_path("chunk", url).joinpath("c2", "c", *place)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "it is not the chunk that was ingested there"), (b"", "it has 0 bytes, fewer than")],
)
def test_an_object_that_changed_after_the_store_was_opened_is_seen(disk, content, reason):
    url = uploaded(Path(disk.path), "changed.zarr")
    scan = hd.open_dataset(url)
    other = objects.read(chunk_url(url, 1, 0, 0), 10**7)
    objects.write(chunk_url(url, 0, 0, 0), other if content is None else content)
    with pytest.raises(StoreError, match=reason) as raised:
        hd.fit(scan, hd.STATIC, **GIVEN)
    assert str(raised.value).startswith(f"{url}: chunk (0, 0) of the bin labelled 1 cannot be read")


@pytest.fixture(scope="module")
def another(tmp_path_factory):
    made = measured(CREEP, 80, (0.0, 45.0), dt=0.1, seed=1)
    return Path(store(made, tmp_path_factory.mktemp("another")).path)


@pytest.mark.long
def test_a_store_that_is_exchanged_during_a_fit_is_refused_by_name(disk, another):
    url = uploaded(Path(disk.path), "exchanged.zarr")
    scan = hd.open_dataset(url)
    uploaded(another, "exchanged.zarr")
    open_selection.cache_clear()  # as in a worker that starts now
    with pytest.raises(StoreError, match=f"{url}.*cuts/c2 differs from what was ingested"):
        hd.fit(scan, hd.STATIC, **GIVEN, memory="stream")
    with pytest.raises(StoreError, match=f"{url} changed while it was being read: start"):
        open_selection(scan.selection)


def test_what_a_pass_that_failed_has_fetched_is_not_used_later(disk):
    url = uploaded(Path(disk.path), "mended.zarr")
    scan, last = hd.open_dataset(url), chunk_url(url, 1, 0, 0)
    content = objects.read(last, 10**7)
    objects.remove(last)
    with pytest.raises(StoreError, match="it is missing") as raised:
        fit_here(scan, hd.STATIC, **GIVEN)
    objects.write(last, content)
    assert raised.tb  # which keeps all that was going on, as that of a notebook does
    scan.read_chunk(Chunk(1, 1, 0, 0), np.empty((128, 128), np.float32))


def test_an_object_that_was_cut_is_damage_not_an_error_of_the_network():
    path = url_path("object", f"s3://{BUCKET}/cut")
    objects.write(path, b"0123456789")
    assert objects.read_range(path, 2, 3) == b"234"
    for first in (8, 20):
        with pytest.raises(ValueError, match=f"it has fewer than {first + 5} bytes"):
            objects.read_range(path, first, 5)


def test_a_thread_holds_no_more_than_a_plan_counts(tmp_path):
    frames = measured(CREEP, 600, (0.0,), dt=0.1)
    large = store(frames, tmp_path)
    url = uploaded(Path(large.path), "large_c2.zarr")
    cuts = [layout(scan) for scan in (large, hd.open_dataset(url))]
    source = BlockSource(hd.open_dataset(url).selection, cuts[1].side, 1, 1)
    held = []
    with prefetched(source, [Place((0,), tile) for tile in cuts[1].tiles]) as turns:
        for _ in turns:
            under_way = byte_range._AHEAD.requests.values()
            held.append(sum(len(request.result()) for request in under_way if request))
    files = [path.stat().st_size for path in Path(large.path, "c2/c").rglob("*") if path.is_file()]
    assert max(held) == sum(files) > max(files)
    assert cuts[1].working_bytes(3) - cuts[0].working_bytes(3) > max(held)


@pytest.mark.slow
def test_workers_fetch_from_a_url_the_bits_of_the_disk(disk, url):
    with hd.local_cluster(processes=2, threads=1) as client:
        there = hd.fit(url, hd.STATIC, **GIVEN, client=client, memory="stream")
    assert result_bits(fit_here(disk, hd.STATIC, **GIVEN)) == result_bits(there)


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


def test_a_line_break_in_a_key_of_a_profile_is_one_sentence(
    url, profile, server, tmp_path, monkeypatch
):
    keys = {"Version": 1, "AccessKeyId": KEY, "SecretAccessKey": SECRET, "SessionToken": "a\nb"}
    (tmp_path / "keys").write_text(json.dumps(keys))
    process = f"credential_process = cat {tmp_path / 'keys'}"
    (tmp_path / "config").write_text(f"[profile beam]\nregion = us-east-1\n{process}\n")
    (tmp_path / "credentials").write_text("")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    with pytest.raises(ObjectStoreError, match="a key of the profile contains a line") as said:
        hd.open_dataset(url)
    assert not any(secret in str(said.value) for secret in (SECRET, KEY))


NO_KEYS = {
    "no profile": ({}, r"NoCredentialsError: no keys were found .* role"),
    "another": ({"AWS_PROFILE": "another"}, r"ProfileNotFound: no keys were found .* role"),
    "public": ({"AWS_SKIP_SIGNATURE": "true"}, "access is refused, 403 Forbidden"),  # by moto
}


@pytest.mark.parametrize("case", NO_KEYS)
def test_where_there_are_no_keys_none_are_made_up(url, profile, server, monkeypatch, case):
    named, said = NO_KEYS[case]
    monkeypatch.delenv("AWS_PROFILE")
    for name, value in (named | {"AWS_ENDPOINT_URL": server}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ObjectStoreError, match=rf"\({said}\): check"):
        hd.open_dataset(url)


IN_VAIN = {
    "no scheme": ("AWS_ENDPOINT_URL", "127.0.0.1:9", "is not the address of a server"),
    "a password": ("AWS_ENDPOINT_URL", "https://me:secret@host", "is not the address of a server"),
    "plain": ("AWS_ENDPOINT_URL", "http://[::1]:9", "unencrypted address: give https://host, or"),
    "a line": ("AWS_SESSION_TOKEN", "secret\n", "contains a line break or another"),
    "no account": ("AZURE_STORAGE_ACCOUNT_NAME", "", "az:// needs .* set AZURE_STORAGE_ACCOUNT"),
    "no keys": ("GOOGLE_SERVICE_ACCOUNT_KEY", '"secret"', "Unable to decode service account"),
}


@pytest.mark.parametrize("case", IN_VAIN)
def test_a_variable_that_cannot_be_used_is_named_and_not_quoted(monkeypatch, case):
    name, value, said = IN_VAIN[case]
    objects.connection.cache_clear()
    monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    scheme = {"AWS": "s3", "AZU": "az", "GOO": "gs"}[name[:3]]
    with pytest.raises((OptionError, ObjectStoreError), match=said) as raised:
        hd.open_dataset(f"{scheme}://{BUCKET}/a")
    assert "secret" not in str(raised.value)
    assert name in str(raised.value) or scheme == "gs"
    objects.connection.cache_clear()


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
