"""What is installed: every module, every file the program reads, every page of the guide."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILT_FROM = (
    "pyproject.toml",
    "setup.py",
    "README.md",
    "LICENSE",
    "homodyne_dask",
    "ingest",
    "docs",
)
BUILD = "import setuptools.build_meta as b; b.build_wheel('..')"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "tree").mkdir()
    for name in BUILT_FROM:
        (folder / "tree" / name).symlink_to(ROOT / name)
    subprocess.run(
        [sys.executable, "-c", BUILD],
        cwd=folder / "tree",
        check=True,
        capture_output=True,
        timeout=100,
    )
    (file,) = folder.glob("*.whl")
    return zipfile.ZipFile(file)


def test_a_wheel_holds_every_file_of_the_packages_and_every_page(wheel):
    listed = ["git", "ls-files", "--", "homodyne_dask", "ingest", "docs/*.md"]
    tracked = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True)
    expected = {
        f"homodyne_dask/{name}" if name.startswith("docs/") else name
        for name in tracked.stdout.splitlines()
        if (ROOT / name).exists()
    }
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == expected


def test_pages_are_read_from_the_wheel_alone(wheel, tmp_path):
    wheel.extractall(tmp_path)
    program = "import homodyne_dask as hd; print(hd.__file__); print(hd.guide.page('errors'))"
    path = {"PYTHONPATH": str(tmp_path), "PATH": ""}
    ran = subprocess.run(
        [sys.executable, "-c", program], env=path, cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    where, _, printed = ran.stdout.partition("\n")
    assert where.startswith(str(tmp_path))
    assert printed == (ROOT / "docs" / "errors.md").read_text()
