"""Stores by URL: the same bits as from disk, and one sentence for what goes wrong on the way."""

import pickle
from pathlib import Path

import pytest

import homodyne_dask as hd
from homodyne_dask.errors import ObjectStoreError, OptionError, StoreError
from homodyne_dask.store import byte_range, objects
from homodyne_dask.store.url_path import UrlPath, url_path
from homodyne_dask.sweep.block_cache import in_turn
from homodyne_dask.sweep.blocks import BlockSource, Place
from homodyne_dask.sweep.plan import layout
from tests import object_server
from tests.object_server import BUCKET, KEY, SECRET, uploaded
from tests.synthetic import fit_here, measured, store

GIVEN = {"initial": {"D0": 9000.0, "alpha": 0.0}, "fixed": {"D_offset": 1000.0}, "max_passes": 3}


@pytest.fixture(scope="module", autouse=True)
def server():
    with object_server.s3_server() as address:
        yield address


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    """2 angles of 80 frames on disk."""
    return store(
        measured([20000.0, -0.4, 1000.0], 80, (0.0, 45.0), dt=0.1), tmp_path_factory.mktemp("disk")
    )


@pytest.fixture(scope="module")
def url(disk, server):
    return uploaded(Path(disk.path), "A0001_c2.zarr")


def same_bits(one, other) -> bool:
    numbers = [result.parameters[["value", "stderr"]].to_array().values for result in (one, other)]
    return numbers[0].tobytes() == numbers[1].tobytes() and one.chisqr == other.chisqr


def test_a_fit_of_a_store_by_url_has_the_same_bits(disk, url):
    there = hd.open_dataset(url)
    assert there.path == url
    assert there.digest == disk.digest
    results = [fit_here(scan, hd.STATIC, **GIVEN) for scan in (disk, there)]
    assert same_bits(*results)
    assert results[1].inputs["store_path"] == url


REFUSED = {
    "credentials": ("s3://me:secret@bucket/a", r"'s3://bucket/a' was given with a user"),
    "a signature": ("https://host/a?sig=secret", r"'https://host/a' was given with a user"),
    "unencrypted": ("http://host/a", "'http://host/a' cannot be used: give s3://"),
    "another scheme": ("ftp://host/a", "'ftp://host/a' cannot be used: give s3://"),
    "no bucket": ("s3:///a", "'s3:///a' cannot be used: give s3://"),
    "dots": ("s3://bucket/../a", r"cannot be used: give it without \. and"),
    "a file elsewhere": ("file://host/a", "give file:///path"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_url_with_secrets_or_of_another_form_is_refused_without_quoting_them(case):
    url, sentence = REFUSED[case]
    with pytest.raises(OptionError, match=sentence) as raised:
        hd.open_dataset(url)
    assert "secret" not in str(raised.value)


def test_a_url_of_a_file_is_its_path(disk):
    assert hd.open_dataset(f"file://{disk.path}").path == disk.path


def test_an_empty_place_and_a_missing_bucket_are_told_apart():
    with pytest.raises(StoreError, match=rf"s3://{BUCKET}/none is not a Zarr store"):
        hd.open_dataset(f"s3://{BUCKET}/none")
    with pytest.raises(ObjectStoreError, match=r"s3://nowhere/a.*its bucket does not exist"):
        hd.open_dataset("s3://nowhere/a")


def test_requests_that_fail_or_are_slow_are_repeated_and_change_no_bit(disk, url, server):
    with object_server.faulty(server) as seen:
        there = hd.open_dataset(url)
        results = [fit_here(scan, hd.STATIC, **GIVEN) for scan in (disk, there)]
    assert len(seen) > 40
    assert same_bits(*results)


def test_a_bucket_that_goes_during_a_fit_is_named(disk, server):
    object_server.make_bucket(server, "short-lived")
    scan = hd.open_dataset(uploaded(Path(disk.path), "a.zarr", "short-lived"))

    def delete(*_: object) -> None:
        for path in objects.below(url_path("bucket", "s3://short-lived")):
            objects.remove(path)
        object_server.ask("DELETE", f"{server}/short-lived")

    with pytest.raises(ObjectStoreError, match=r"s3://short-lived/a.zarr/c2.*its bucket does not"):
        hd.fit(scan, hd.STATIC, **GIVEN, memory="stream", progress=delete)


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


def test_a_server_that_does_not_answer_is_a_sentence_after_the_retries(url, monkeypatch):
    monkeypatch.setitem(objects.RETRIES, "max_retries", 2)
    with (
        object_server.environment(f"http://127.0.0.1:{object_server.free_port()}"),
        pytest.raises(ObjectStoreError) as raised,
    ):
        hd.open_dataset(url)
    assert "cannot be used (HTTP error: error sending request, after 2 retries): " in str(
        raised.value
    )


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


def test_keys_region_and_server_are_those_of_a_profile(disk, url, profile):
    there = hd.open_dataset(url)
    assert same_bits(*(fit_here(scan, hd.STATIC, **GIVEN) for scan in (disk, there)))


@pytest.mark.parametrize("name", [None, "another"])
def test_a_profile_that_is_not_there_is_one_sentence(url, profile, server, monkeypatch, name):
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    if name:
        monkeypatch.setenv("AWS_PROFILE", name)
    else:
        monkeypatch.delenv("AWS_PROFILE")
    error = "ProfileNotFound" if name else "NoCredentialsError"
    with pytest.raises(ObjectStoreError, match=rf"\({error}: there are no keys .* role\): look at"):
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
    "plain": ("ENDPOINT_URL", "http://[::1]:9", "encryption: give https://host, or"),
    "a line": ("SESSION_TOKEN", "secret\n", "holds a line break or another"),
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


def chunk_url(url: str, *place: int) -> UrlPath:
    return url_path("chunk", url).joinpath("c2", "c", *place)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "it is not the chunk that was ingested there"), (b"", "it holds 0 bytes, less than")],
)
def test_an_object_that_changed_after_the_store_was_opened_is_seen(disk, content, reason):
    url = uploaded(Path(disk.path), "changed.zarr")
    scan = hd.open_dataset(url)
    other = objects.read(chunk_url(url, 1, 0, 0), 10**7)
    objects.write(chunk_url(url, 0, 0, 0), other if content is None else content)
    with pytest.raises(StoreError, match=reason) as raised:
        hd.fit(scan, hd.STATIC, **GIVEN)
    assert str(raised.value).startswith(f"{url}: chunk (0, 0) of the bin labelled 1 cannot be read")


def test_an_object_that_was_cut_is_damage_not_an_error_of_the_network():
    path = url_path("object", f"s3://{BUCKET}/cut")
    objects.write(path, b"0123456789")
    assert objects.read_range(path, 2, 3) == b"234"
    for first in (8, 20):
        with pytest.raises(OSError, match=f"it has fewer than {first + 5} bytes"):
            objects.read_range(path, first, 5)


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


def test_a_thread_holds_no_more_than_a_plan_counts(tmp_path):
    frames = measured([20000.0, -0.4, 1000.0], 600, (0.0,), dt=0.1)
    large = store(frames, tmp_path)
    url = uploaded(Path(large.path), "large_c2.zarr")
    cuts = [layout(scan) for scan in (large, hd.open_dataset(url))]
    source = BlockSource(hd.open_dataset(url).selection, cuts[1].side, 1, 1)
    held = []
    for _ in in_turn(source, [Place((0,), tile) for tile in cuts[1].tiles]):
        under_way = byte_range._AHEAD.requests.values()
        held.append(sum(len(request.result()) for request in under_way if request))
    files = [path.stat().st_size for path in Path(large.path, "c2/c").rglob("*") if path.is_file()]
    assert max(held) == sum(files) > max(files)
    assert cuts[1].working_bytes(3) - cuts[0].working_bytes(3) > max(held)


@pytest.mark.slow
def test_workers_fetch_from_a_url_the_bits_of_the_disk(disk, url):
    with hd.local_cluster(processes=2, threads=1) as client:
        there = hd.fit(url, hd.STATIC, **GIVEN, client=client, memory="stream")
    assert same_bits(fit_here(disk, hd.STATIC, **GIVEN), there)
