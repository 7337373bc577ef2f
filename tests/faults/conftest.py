"""What tests of faults share."""

import pytest

from tests.synthetic import started_as_given


@pytest.fixture(scope="module")
def many_passes():
    """Fits start at the poor initial values that they are given."""
    with started_as_given():
        yield
