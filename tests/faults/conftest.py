"""A file system that becomes full, and a small fit to write there."""

import io
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import homodyne_dask as hd
from homodyne_dask.results.views.figures import fit_figures as plots
from homodyne_dask.results.views.figures.style import TITLES
from homodyne_dask.store.files import write_file
from tests.results.made_results import scan_of
from tests.synthetic import CREEP, started_as_given


@pytest.fixture(scope="module")
def many_passes():
    """Fits start at the poor initial values that they are given."""
    with started_as_given():
        yield


PIXELS = np.frombuffer(os.urandom(3 * 50 * 60), np.uint8).reshape(50, 60, 3)
with io.BytesIO() as png:
    Image.fromarray(PIXELS).save(png, format="png")
    PICTURE = png.getvalue()


@pytest.fixture(scope="module")
def mounted(tmp_path_factory) -> Iterator[Path]:
    """A file system of 1 MB."""
    place = tmp_path_factory.mktemp("disk")
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", place], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.fixture
def disk(mounted) -> Path:
    """It, empty."""
    for path in mounted.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return mounted


@pytest.fixture
def one_picture(monkeypatch):
    """Drawing takes long: one picture of random bytes."""

    def save_all(view, folder):
        path = folder / f"{next(iter(TITLES))}.png"
        write_file(path, PICTURE)
        return [path]

    monkeypatch.setattr(plots, "save_all", save_all)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    scan = scan_of(tmp_path_factory.mktemp("scan"), CREEP, n=40)
    return hd.fit(scan, hd.STATIC), scan


def leave_free(disk: Path, free: int | None) -> None:
    """Leave so many bytes of the disk free; None: all that is not needed by its files."""
    filler = disk / "filler"
    filler.unlink(missing_ok=True)
    if free is not None:
        filler.write_bytes(b"x" * (shutil.disk_usage(disk).free - free))


def file_contents(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def full_at_each_file(disk: Path, write, most: int, step: int) -> set[str]:
    """Run `write` with more and more room until it succeeds; return the names of the files that had none."""
    refused = set()
    for free in range(0, most, step):
        leave_free(disk, free)
        try:
            write()
        except OSError as e:
            refused.add(Path(e.filename).name)
            continue
        return refused
    raise AssertionError("never enough room")


def unchanged(folder: Path, before: dict[str, bytes], write) -> None:
    try:
        write()
    except OSError:
        assert file_contents(folder) == before
        raise
