"""What all tests share."""

import pytest

from homodyne_dask.store import scan as dataset
from homodyne_dask.sweep import block_cache

LONG = (
    "tests/test_style.py", "tests/test_readme.py", "tests/test_packaging.py", "tests/faults/",
    "tests/browser/", "tests/cluster/", "tests/sweep/test_same_bits.py", "tests/benchmarks/",
)  # fmt: skip
"""Files of few long tests. They begin, so that no process is left alone with one at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files of long tests first; otherwise the order stays."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


@pytest.fixture(autouse=True)
def _nothing_remembered():
    """No test sees blocks or stores that another one opened."""
    yield
    block_cache.forget()
    dataset.open_selection.cache_clear()
