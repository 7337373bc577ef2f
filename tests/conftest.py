"""What all tests share."""

import pytest

from homodyne_dask import blocks, dataset


@pytest.fixture(autouse=True)
def _nothing_remembered():
    """No test sees blocks or stores that another one opened."""
    yield
    blocks.forget()
    dataset.opened.cache_clear()
