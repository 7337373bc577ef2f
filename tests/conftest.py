"""What all tests share."""

import os
import shutil
import sys
import tempfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from homodyne_dask.kernels.devices import FOLDER
from homodyne_dask.store import scan as dataset
from homodyne_dask.sweep import blocks as block_cache

LONG = (
    "tests/test_style.py", "tests/test_readme.py", "tests/test_packaging.py", "tests/faults/",
    "tests/browser/", "tests/cluster/", "tests/sweep/test_same_bits.py", "tests/benchmarks/",
)  # fmt: skip
"""Files of few long tests. They begin, so that no process is left alone with one at the end."""


def pytest_configure(config: pytest.Config) -> None:
    """All processes of a run share executables in a folder of the run; the user's is not touched."""
    if not hasattr(config, "workerinput"):  # the processes of xdist have this one's variable
        os.environ[FOLDER] = tempfile.mkdtemp(prefix="homodyne-dask-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ[FOLDER], ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files of long tests first.

    Of a parametrized test that is long the first case is not, but for `long(whole=True)`.
    """
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))
    begun = set()
    for item in items:
        name = item.nodeid.split("[")[0]
        if "[" in item.nodeid and name not in begun:
            item.own_markers = [
                mark for mark in item.own_markers if mark.name != "long" or "whole" in mark.kwargs
            ]
        begun.add(name)


@pytest.fixture(scope="module")
def server():
    """The address of a server of S3 with one bucket, which the environment names."""
    from tests import object_server

    with object_server.s3_server() as address:
        yield address


@pytest.fixture
def hostile_folder(tmp_path, monkeypatch) -> Path:
    """The working folder, full of programs; afterwards none of them was run."""
    marker = tmp_path / "was_run.txt"
    folder = tmp_path / "working"
    folder.mkdir()
    program = f"open({str(marker)!r}, 'a').write(__name__ + ' ')\nraise ImportError(__name__)\n"
    installed = filter(str.isidentifier, packages_distributions())
    ours = {"homodyne_dask", "ingest", "sitecustomize", "usercustomize"}
    for name in {*ours, *sys.stdlib_module_names, *installed}:  # all that a process could import
        (folder / f"{name}.py").write_text(program)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield folder
    assert not marker.exists(), marker.read_text()


@pytest.fixture
def no_pictures(monkeypatch):
    """Draw no figures, which take longest."""
    from homodyne_dask.results.views import fit_figures as plots

    monkeypatch.setattr(plots, "save_all", lambda *_: [])


@pytest.fixture(autouse=True)
def _nothing_remembered():
    """No test sees blocks or stores that another one opened."""
    yield
    block_cache.forget()
    dataset.open_selection.cache_clear()


@pytest.fixture
def noise_not_of_speckle(monkeypatch):
    """Fits of few bins have no standard errors."""
    why = property(lambda _: "not-normal")
    monkeypatch.setattr("homodyne_dask.assessment.speckle_errors.SpeckleErrors.objection", why)
