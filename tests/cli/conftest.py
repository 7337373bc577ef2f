"""The folder in which commands run."""

import shutil
from pathlib import Path

import pytest

from tests.run_command import done


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    """A folder with a small static scan and a small flow scan, as files and as stores."""
    folder = tmp_path_factory.mktemp("made")
    for name, scenario, angles in (("A", "static", 3), ("F", "creep", 5)):
        file = str(folder / f"{name}_results.hdf")
        done("simulate", file, "--scenario", scenario, "--angles", f"{angles}", "--frames", "40")
        done("ingest", file)
    return folder


@pytest.fixture
def here(made, tmp_path, monkeypatch) -> Path:
    """A copy of it, as the working folder."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path
