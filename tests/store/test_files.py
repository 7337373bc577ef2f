"""Files are replaced whole or not at all, and chunks decode to what was encoded."""

import os

import numpy as np
import pytest

from homodyne_dask.store.chunk_codec import CHECKSUM_BYTES, decode_chunk, encode_chunk
from homodyne_dask.store.files import partial_files, replacing, write_atomic


@pytest.mark.parametrize("content", ["σ = 0.1\n", b"\x00\xff"])
def test_a_file_is_written_and_replaced(tmp_path, content):
    path = tmp_path / "a.json"
    write_atomic(path, "before")
    write_atomic(path, content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("durable", [False, True])
def test_an_exception_leaves_the_file_as_it_was_and_nothing_beside_it(tmp_path, durable):
    path = tmp_path / "a.json"
    path.write_text("before")

    def interrupted():
        with replacing(path, durable=durable) as partial:
            partial.write_text("half")
            raise OSError("disk is full")

    with pytest.raises(OSError, match="disk is full"):
        interrupted()
    assert path.read_text() == "before"
    assert [*tmp_path.iterdir()] == [path]


def test_a_durable_file_and_its_name_are_synced_and_another_is_not(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_ino))
    with replacing(tmp_path / "a", durable=False) as partial:
        partial.write_text("chunk")
    assert not synced
    write_atomic(tmp_path / "b", "metadata")
    assert synced == [(tmp_path / "b").stat().st_ino, tmp_path.stat().st_ino]


def test_what_a_killed_process_left_is_found_by_the_name_of_its_file(tmp_path):
    path = tmp_path / "a[1].json"
    for name in ("a[1].json.77.partial", "a1.json.77.partial", "a[1].json", "a[1].json.previous"):
        (tmp_path / name).touch()
    assert [file.name for file in partial_files(path)] == ["a[1].json.77.partial"]
    assert partial_files(tmp_path / "missing" / "a.json") == []


def test_a_chunk_decodes_to_what_was_encoded():
    values = np.random.default_rng(0).normal(1, 0.1, (64, 64)).astype(np.float32)
    content, into = encode_chunk(values), np.empty_like(values)
    decode_chunk(content[:-CHECKSUM_BYTES], content[-CHECKSUM_BYTES:], into)
    assert into.tobytes() == values.tobytes()
    with pytest.raises(ValueError, match="its checksum is wrong"):
        decode_chunk(content[:-CHECKSUM_BYTES], b"\0\0\0\0", into)
    with pytest.raises(ValueError, match="holds 16384 bytes where 4096 belong"):
        decode_chunk(content[:-CHECKSUM_BYTES], content[-CHECKSUM_BYTES:], into[:16])
