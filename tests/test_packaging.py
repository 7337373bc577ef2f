"""What is distributed: a wheel with every file that it reads; words that describe the project; the paper."""

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from tests.documents import ROOT

BUILD = "import sys, hatchling.build as b; getattr(b, sys.argv[1])(sys.argv[2])"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
CODEMETA = json.loads((ROOT / "codemeta.json").read_text())
RECIPE: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "conda" / "recipe.yaml").read_text())
CONDA = {"dask": "dask-core", "matplotlib": "matplotlib-base"}
"""Names that conda-forge gives to packages of Python."""
PAPER = ROOT / "paper"
TEXT = (PAPER / "paper.md").read_text().split("---\n", 2)[2]


def printed(command: list, cwd: Path = ROOT, **environment: str) -> str:
    variables = os.environ | environment
    ran = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def build(what: str, source: Path, into: Path) -> Path:
    """Build a wheel or a source distribution of the project in a folder, as pip does."""
    printed([sys.executable, "-c", BUILD, f"build_{what}", str(into)], source)
    (made,) = into.iterdir()
    return made


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build("sdist", ROOT, folder)) as archive:
        archive.extractall(folder, filter="data")
    (content,) = (path for path in folder.iterdir() if path.is_dir())
    return content


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory) -> zipfile.ZipFile:
    return zipfile.ZipFile(build("wheel", source, tmp_path_factory.mktemp("wheel")))


def tracked(*paths: str) -> set[str]:
    listed = printed(["git", "ls-files", "--", *paths]).splitlines()
    return {name for name in listed if (ROOT / name).exists()}


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
    words = [sys.executable, "-c", program]
    where, _, page = printed(words, tmp_path, PYTHONPATH=str(tmp_path)).partition("\n")
    assert where.startswith(str(tmp_path))
    assert page == (ROOT / "docs" / "errors.md").read_text()


@pytest.mark.parametrize(
    "version", [CITATION["version"], CODEMETA["version"], RECIPE["context"]["version"]]
)
def test_the_version_is_that_of_pyproject(version):
    assert version == PROJECT["version"]


def test_the_conda_package_needs_the_packages_of_the_core():
    core = [Requirement(line) for line in PROJECT["dependencies"]]
    wanted = {CONDA.get(one.name, one.name): str(one.specifier) for one in core}
    python, *run = (line.split(maxsplit=1) for line in RECIPE["requirements"]["run"])
    assert python == ["python", ">=${{ python_min }}"]
    assert f">={RECIPE['context']['python_min']}" == PROJECT["requires-python"]
    same = {name: set(specifier.split(",")) for name, specifier in run}
    assert same == {name: set(specifier.split(",")) for name, specifier in wanted.items()}
    (program,) = PROJECT["scripts"].items()
    assert RECIPE["build"]["python"]["entry_points"] == [" = ".join(program)]


def test_pip_on_an_older_python_finds_no_package_missing_before_it_says_which_python_is_needed():
    """Those whose oldest accepted release needs Python 3.12 itself."""
    of_old = {"python_version": "3.11"}
    needed = [
        one
        for line in PROJECT["dependencies"]
        if (one := Requirement(line)).marker is None or one.marker.evaluate(of_old)
    ]
    assert not {"jax", "jaxlib", "zarr", "numcodecs", "xarray"} & {one.name for one in needed}


def test_every_reference_is_cited_and_every_citation_is_there():
    listed = re.findall(r"^@\w+\{(\w+),", (PAPER / "paper.bib").read_text(), re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(re.findall(r"@([A-Za-z]+\d{4})", TEXT)) == set(listed)


def test_figures_are_there_and_the_table_is_that_of_the_script():
    assert all((PAPER / name).is_file() for name in re.findall(r"\]\(([^)]+)\)", TEXT))
    example = (PAPER / "figures" / "example.md").read_text()
    assert example.split("\n\n")[0] in TEXT
    pairs, passes = re.findall(r"^(\d+) pairs, (\d) passes", example, re.MULTILINE)[0]
    assert f"{int(pairs):,} pairs" in TEXT
    assert passes == "5"
    assert "five passes" in TEXT


def test_a_release_has_one_version_a_tag_checksums_and_metadata(tmp_path):
    clone, dist = tmp_path / "clone", tmp_path / "clone" / "dist"
    who = {f"GIT_{role}_NAME": "A" for role in ("AUTHOR", "COMMITTER")}
    who |= {name.replace("NAME", "EMAIL"): "a@example.org" for name in who}

    def release(version: str) -> subprocess.CompletedProcess[str]:
        builds = "import sys, hatchling.build as b; b.build_wheel(sys.argv[1]); b.build_sdist(sys.argv[1])"
        command = ["deploy/release.sh", version, sys.executable, "-c", builds]
        return subprocess.run(
            command, cwd=clone, capture_output=True, text=True, env=os.environ | who
        )

    printed(["git", "clone", "-q", "--no-tags", ROOT, clone])
    assert "give one such as 1.0.0" in release("1.0").stderr
    assert "CHANGELOG.md has no section '## 9.0.0" in release("9.0.0").stderr
    changes, head = clone / "CHANGELOG.md", printed(["git", "rev-parse", "HEAD"], clone)
    dated = release("1.0.0")
    assert dated.returncode == 0, dated.stderr
    assert printed(["git", "rev-parse", "HEAD", "v1.0.0^{}"], clone) == 2 * head
    published = json.loads((dist / ".zenodo.json").read_text())["publication_date"]
    assert f"\n## 1.0.0, {published}\n" in changes.read_text()
    changes.write_text(f"{changes.read_text()}\n## 1.0.1, in preparation\n")
    printed(["git", "commit", "-qam", "What is new"], clone)
    made = release("1.0.1")
    assert made.returncode == 0, made.stderr
    assert printed(["git", "describe", "--exact-match"], clone) == "v1.0.1\n"
    assert printed(["git", "status", "--porcelain"], clone) == ""
    named = printed(["git", "grep", "-l", "-F", "1.0.1", "--", ":!tests", ":!docs"], clone).split()
    of_version = "CHANGELOG.md CITATION.cff codemeta.json deploy/conda/recipe.yaml paper/paper.md"
    assert named == [*of_version.split(), "pyproject.toml"]
    printed(["sha256sum", "--check", "--quiet", "SHA256SUMS"], dist)
    assert "homodyne_dask-1.0.1-py3-none-any.whl" in (dist / "SHA256SUMS").read_text()
    metadata = json.loads((dist / ".zenodo.json").read_text())
    assert (metadata["version"], metadata["license"]) == ("1.0.1", "BSD-3-Clause")
    assert "the tag v1.0.1 exists" in release("1.0.1").stderr
