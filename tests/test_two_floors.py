"""The library stands without its applications: it knows them by entry points and lazy public names only."""

import ast
import os
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.documents import ROOT

WHOLE = ("apps", "benchmarks", "browser", "deploy", "examples", "site", "wheel")
"""Folders of tests of more than the library."""
PRODUCT = ("packaging", "public_api", "readme", "structure", "style", "two_floors")
"""Tests of pages, lists and style that name applications."""
COMMANDS = [
    point.name
    for point in entry_points()
    if point.group.startswith("homodyne_dask.commands.") and ".apps." in point.value
]


def imported(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def test_no_module_of_the_library_imports_an_application_in_a_function_or_for_a_type():
    files = [*(ROOT / "homodyne_dask").rglob("*.py"), *(ROOT / "ingest").rglob("*.py")]
    applications = ROOT / "homodyne_dask" / "apps"
    up = {
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files
        if not file.is_relative_to(applications)
        for name in imported(file)
        if name.startswith("homodyne_dask.apps")
    }
    assert up == set()


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    """A copy of the checkout without the applications and their tests."""
    copy = tmp_path_factory.mktemp("library")
    left_out = shutil.ignore_patterns("__pycache__", "apps")
    for name in ("homodyne_dask", "ingest", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=left_out)
    for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "Makefile"):
        shutil.copy(ROOT / name, copy)
    for name in ("docs", "deploy"):
        (copy / name).symlink_to(ROOT / name)
    return copy


def in_copy(library: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(library)}
    return subprocess.run(
        [sys.executable, *words], cwd=library, env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("command", COMMANDS[:1])
def test_a_missing_command_is_told_in_a_sentence(library, command):
    refused = in_copy(library, "-m", "homodyne_dask.cli", command)
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"error: the command '{command}' needs the application ")
    assert refused.stderr.endswith("which is not installed\n")
    assert refused.stderr.count("\n") == 1


def test_a_public_name_of_a_missing_application_is_told_in_a_sentence(library):
    refused = in_copy(library, "-c", "import homodyne_dask as hd; hd.posterior")
    sentence = (
        "homodyne_dask.posterior needs the application homodyne_dask.apps.posterior, which is not"
    )
    assert refused.stderr.splitlines()[-1].partition(": ")[2] == f"{sentence} installed"


@pytest.mark.long(whole=True)
@pytest.mark.parametrize("command", COMMANDS[1:])
def test_every_missing_command_is_told_in_a_sentence(library, command):
    test_a_missing_command_is_told_in_a_sentence(library, command)


@pytest.mark.long(whole=True)
def test_the_help_and_a_fit_need_no_application(library):
    assert in_copy(library, "-m", "homodyne_dask.cli", "--help").returncode == 0
    command = "-m", "homodyne_dask.cli"
    for words in ("simulate A.hdf --scenario brownian --angles 2 --frames 60", "ingest A.hdf"):
        done = in_copy(library, *command, *words.split())
        assert done.returncode == 0, done.stderr
    fitted = in_copy(library, *command, "fit", "A_c2.zarr", "--model", "brownian")
    assert fitted.returncode in (0, 3), fitted.stderr
    assert (library / "A_fit").is_dir()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_tests_of_the_library_pass_without_the_applications(library):
    skipped = [f"--ignore=tests/{name}" for name in WHOLE] + [
        f"--ignore=tests/test_{name}.py" for name in PRODUCT
    ]
    quick = ["-m", "not slow and not long", "-n", "2", "--dist", "loadfile"]
    ran = in_copy(library, "-m", "pytest", "tests", "-q", *quick, *skipped)
    assert ran.returncode == 0, ran.stdout[-10_000:]
