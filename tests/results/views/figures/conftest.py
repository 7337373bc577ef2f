"""The scans that most pictures are of."""

import pytest

from tests.results.views.figures.made import DIFFUSION, FLOW, scan_of


@pytest.fixture(scope="module")
def flowing(tmp_path_factory):
    """A scan of laminar flow."""
    return scan_of(tmp_path_factory.mktemp("flow"), FLOW)


@pytest.fixture(scope="module")
def diffusing(tmp_path_factory):
    """A scan of diffusion."""
    return scan_of(tmp_path_factory.mktemp("diffusion"), DIFFUSION)
