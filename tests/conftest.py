"""What all tests share."""

import pytest

from homodyne_dask.store import scan as dataset
from homodyne_dask.sweep import block_cache


@pytest.fixture(autouse=True)
def _nothing_remembered():
    """No test sees blocks or stores that another one opened."""
    yield
    block_cache.forget()
    dataset.open_selection.cache_clear()
