"""What is distributed: a wheel, made from the source distribution, with every file that it reads."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.documents import ROOT

BUILD = "import sys, hatchling.build as b; getattr(b, sys.argv[1])(sys.argv[2])"


def build(what: str, source: Path, into: Path) -> Path:
    """Build a wheel or a source distribution of the project in a folder, as pip does."""
    command = [sys.executable, "-c", BUILD, f"build_{what}", str(into)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=100)
    (made,) = into.iterdir()
    return made


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """The content of the source distribution."""
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build("sdist", ROOT, folder)) as archive:
        archive.extractall(folder, filter="data")
    (content,) = (path for path in folder.iterdir() if path.is_dir())
    return content


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory) -> zipfile.ZipFile:
    return zipfile.ZipFile(build("wheel", source, tmp_path_factory.mktemp("wheel")))


def tracked(*paths: str) -> set[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--", *paths], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}


def pages() -> set[str]:
    """The pages that `explain` prints, and their list; the site of these pages has more."""
    return tracked(":(glob)docs/*.md") - {"docs/index.md"}


def test_a_wheel_holds_every_file_of_the_packages_and_every_page(wheel):
    guide = {f"homodyne_dask/{name}" for name in pages()}
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == tracked("homodyne_dask", "ingest") | guide
    assert {"homodyne_dask/py.typed", "ingest/py.typed"} <= held


def test_a_source_distribution_holds_what_a_wheel_is_made_of_and_no_tests(source):
    held = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    needed = tracked("homodyne_dask", "ingest") | pages()
    beside = {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO", ".gitignore"}
    assert held == needed | beside | {"CHANGELOG.md", "CITATION.cff", "codemeta.json"}


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
