"""Small scans of known truth, which no test changes, and a fit of one."""

import pytest

from tests.results.made_results import FLOW, fit_of, scan_of
from tests.synthetic import CREEP


@pytest.fixture(scope="session")
def flowing(tmp_path_factory):
    return scan_of(tmp_path_factory.mktemp("flow"), FLOW)


@pytest.fixture(scope="session")
def diffusing(tmp_path_factory):
    return scan_of(tmp_path_factory.mktemp("diffusion"), CREEP)


@pytest.fixture(scope="session")
def fitted(flowing):
    return fit_of(flowing)
