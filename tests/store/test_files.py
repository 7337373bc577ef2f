"""Files are replaced whole or not at all, and chunks decode to what was encoded."""

import errno
import os
import struct
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import google_crc32c
import numpy as np
import pytest

from homodyne_dask.store import files
from homodyne_dask.store.chunks import CHECKSUM_BYTES, decode_chunk, encode_chunk
from homodyne_dask.store.files import partial_files, replacing, write_atomic


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
    chunk, into = encode_chunk(values), np.empty_like(values)
    body, checksum = chunk.content[:-CHECKSUM_BYTES], chunk.content[-CHECKSUM_BYTES:]
    assert chunk.checksum == int.from_bytes(checksum, "little")
    decode_chunk(body, checksum, into, chunk.checksum)
    assert into.tobytes() == values.tobytes()
    with pytest.raises(ValueError, match="its checksum is wrong"):
        decode_chunk(body, b"\0\0\0\0", into)
    with pytest.raises(ValueError, match="has 16,384 bytes instead of 4,096"):
        decode_chunk(body, checksum, into[:16])
    with pytest.raises(ValueError, match="it is not the chunk that was ingested there"):
        decode_chunk(body, checksum, into, chunk.checksum ^ 1)


def header(**changes):
    """Sixteen bytes of blosc's header and four of data, of a chunk of 64 x 64 float32."""
    said = {"format": 2, "lz4": 1, "flags": 0x21, "itemsize": 4, "size": 1 << 14, "block": 1 << 14}
    said |= {"encoded": 20} | changes
    return struct.pack("<4B3I", *said.values()) + bytes(4)


HEADERS = {
    "kept as it is, of all bytes": header(flags=0x22, encoded=16 + (1 << 14)),
    "fewer bytes than said": header(encoded=300),
    "more bytes than said": header(encoded=19),
    "another format": header(format=3),
    "another compressor": header(flags=0x81),
    "another compressor's format": header(lz4=7),
    "values of no byte": header(itemsize=0),
    "blocks of no byte": header(block=0),
    "blocks larger than all": header(block=1 << 15),
    "no whole header": header()[:15],
    "nothing": b"",
}


@pytest.mark.parametrize("word", HEADERS)
def test_a_header_that_blosc_would_believe_is_refused_before(word):
    """With a right checksum; blosc reads what lies in memory behind the bytes it is given."""
    into = np.full((64, 64), 7, np.float32)
    checksum = google_crc32c.value(HEADERS[word]).to_bytes(4, "little")
    with pytest.raises(ValueError, match=r"its header|not in the format|fewer than a header"):
        decode_chunk(HEADERS[word], checksum, into)
    assert (into == 7).all()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [errno.EINVAL, errno.EBADF, errno.EACCES, errno.EIO])
def test_a_folder_that_cannot_be_synced_is_passed_over_and_a_file_is_not(
    tmp_path, monkeypatch, number
):
    """SMB and shared folders of virtual machines answer EINVAL, others EBADF or EACCES; EIO is a failure."""

    def fsync(handle):
        if Path(f"/proc/self/fd/{handle}").is_dir() or refused:
            raise OSError(number, "words of the system")

    monkeypatch.setattr(os, "fsync", fsync)
    refused = False
    with pytest.raises(OSError, match="system") if number == errno.EIO else nullcontext():
        write_atomic(tmp_path / "a.json", "1")
    refused = True
    with pytest.raises(OSError, match="words of the system"):
        write_atomic(tmp_path / "a.json", "2")
    assert (tmp_path / "a.json").read_text() == "1"


@pytest.mark.parametrize(
    ("free", "says"), [(10**9, "number of files is used up"), (10, "disk is full")]
)
def test_a_quota_is_told_from_a_full_disk(tmp_path, monkeypatch, free, says):
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    assert says in files.no_room(OSError(errno.ENOSPC, "No space left"), tmp_path / "a")
    assert "space" not in files.no_room(OSError(errno.EROFS, "Read-only file system"), tmp_path)


def test_links_in_a_path_stay(tmp_path, monkeypatch):
    """On a node they may lead elsewhere, or be no links."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert files.absolute(tmp_path / "link" / "a.zarr") == tmp_path / "link" / "a.zarr"
    monkeypatch.chdir(tmp_path / "link")
    monkeypatch.setenv("PWD", str(tmp_path / "link"))
    assert files.absolute(Path("a.zarr")) == tmp_path / "link" / "a.zarr"
    monkeypatch.setenv("PWD", "/")  # it is that of a shell elsewhere
    assert files.absolute(Path("a.zarr")) == tmp_path / "real" / "a.zarr"
