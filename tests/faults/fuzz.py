"""A program that reads damaged files one after another: `python -m tests.faults.fuzz KIND NUMBER SEED`.

It runs in its working folder. The file under test lies there while it is read, so what ends or hangs
this program is kept; every file that was got over adds a byte to `done`.
"""

import random
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from homodyne_dask.cli.fit_config import read_config, template
from homodyne_dask.errors import HomodyneDaskError
from homodyne_dask.request.ingest_options import IngestOptions
from ingest.readers.detect import open_source
from tests.ingest_files import nexus, noisy, simulated

INTERESTING = [0, 1, 0x7F, 0x80, 0xFE, 0xFF, *b'[]{}:",\\-!&*']
Change = tuple[int, int, bytes]
Read = Callable[[bytes], None]
"""Read a damaged content."""

interesting = st.sampled_from(INTERESTING).map(lambda byte: bytes([byte]))
changes = st.lists(
    st.tuples(st.integers(0, 1 << 20), st.integers(0, 3), st.one_of(interesting, st.binary(max_size=8))),
    min_size=1, max_size=6,
)  # fmt: skip
"""Place, how many bytes are taken away there, and what comes instead."""


def damaged(whole: bytes, several: list[Change], length_kept: bool) -> bytes:
    """Return bytes with some of them replaced, or taken away and added to."""
    found = bytearray(whole)
    for place, taken, put in several:
        at = place % max(len(found), 1)
        found[at : at + (len(put) if length_kept else taken)] = put
    return bytes(found)


def small_nexus(path: Path) -> Path:
    """A small NXxpcs file with attributes of variable length."""
    return nexus(path, np.stack([noisy(12, k) for k in range(3)]))


def of_hdf5(make: Callable[[Path], Path]) -> tuple[list[bytes], Read]:
    def read(content: bytes) -> None:
        path = Path("current.hdf")
        path.write_bytes(content)
        source = open_source(path, IngestOptions())
        for where in source.matrices:
            source.reader(path, where)

    return [make(Path("whole.hdf")).read_bytes()], read


def of_config() -> tuple[list[bytes], Read]:
    every = template().replace("\n# ", "\n").encode()
    short = b"data: [a.zarr]\nmodel: laminar_flow\nphi: [[-30, 30], [150, 210]]\nfixed: {D0: 1e4}\n"

    def read(content: bytes) -> None:
        path = Path("current.yaml")
        path.write_bytes(content)
        config = read_config(path)
        config.selection(), config.values(), config.plan_options()

    return [every, short], read


SMALL = {"n": 12, "bins": 2, "overwrite": True}
KINDS: dict[str, Callable[[], tuple[list[bytes], Read]]] = {
    "aps-u": lambda: of_hdf5(lambda path: simulated(path, **SMALL)),
    "legacy": lambda: of_hdf5(lambda path: simulated(path, "aps-legacy", **SMALL)),
    "nexus": lambda: of_hdf5(small_nexus),
    "config": of_config,
}
"""What makes the whole contents and the reader of a kind of file."""


def main(kind: str, number: int, start: int) -> None:
    """Read so many damaged files; whatever is not said as a mistake of the file is kept in `found`."""
    contents, read = KINDS[kind]()
    random.seed(start)

    @seed(start)
    @settings(
        max_examples=number,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(contents), changes)
    def tried(whole: bytes, several: list[Change]) -> None:
        content = damaged(whole, several, length_kept=kind != "config")
        try:
            read(content)
        except HomodyneDaskError:
            pass
        except Exception:
            with Path("found").open("a") as file:
                file.write(f"{content!r}\n{traceback.format_exc()}\n")
        with Path("done").open("ab") as file:
            file.write(b".")

    tried()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
