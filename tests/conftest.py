"""What all tests share."""

import os
import shutil
import tempfile

import pytest

from homodyne_dask.kernels.cache_folder import FOLDER
from homodyne_dask.store import scan as dataset
from homodyne_dask.sweep import block_cache

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
    """Remove that folder."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ[FOLDER], ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files of long tests first; otherwise the order stays."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


@pytest.fixture(scope="module")
def server():
    """The address of a server of S3 with one bucket, which the environment names."""
    from tests import object_server

    with object_server.s3_server() as address:
        yield address


@pytest.fixture(autouse=True)
def _nothing_remembered():
    """No test sees blocks or stores that another one opened."""
    yield
    block_cache.forget()
    dataset.open_selection.cache_clear()
