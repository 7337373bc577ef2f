"""Folders that are watched with instant fits."""

from pathlib import Path

import pytest

from homodyne_dask.apps.watch import scans_page, watch_loop
from tests.apps.watch.instant_fits import load_instant


@pytest.fixture
def source(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(watch_loop, "load_result", load_instant)
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


@pytest.fixture
def results(tmp_path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def no_page_pictures(monkeypatch):
    """Draw no figures on the page, which take longest."""
    monkeypatch.setattr(scans_page, "pictures_of", lambda _: [])
