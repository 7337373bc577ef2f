"""Folders that are watched with instant fits."""

from pathlib import Path

import pytest

from homodyne_dask.apps.watch import scans_page as table


@pytest.fixture
def folders(tmp_path) -> tuple[Path, Path]:
    (tmp_path / "in").mkdir()
    return tmp_path / "in", tmp_path / "out"


@pytest.fixture
def no_page_pictures(monkeypatch):
    """Draw no figures on the page, which take longest."""
    monkeypatch.setattr(table, "live_pictures", lambda _: ([], {}))
