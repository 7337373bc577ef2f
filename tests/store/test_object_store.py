"""Stores by URL: the same bits as from disk, and one sentence for what goes wrong on the way."""

from pathlib import Path

import pytest

import homodyne_dask as hd
from homodyne_dask.errors import ObjectStoreError, OptionError, StoreError
from tests import object_server
from tests.object_server import BUCKET, uploaded
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
