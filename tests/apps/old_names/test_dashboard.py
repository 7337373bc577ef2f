"""The page can still be preloaded under the former name of its module."""

import json
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from urllib.request import urlopen

import pytest

from homodyne_dask.apps import dashboard


@pytest.mark.parametrize("name", ["homodyne_dask.dashboard", "homodyne_dask.live.dashboard"])
def test_the_former_names_of_the_preload_are_found_and_deprecated(name, monkeypatch):
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.deprecated_call(match=f"{name} is .*--preload homodyne_dask.apps.dashboard"):
        former = import_module(name)
    assert former.dask_setup is dashboard.dask_setup


@pytest.mark.cluster
def test_a_scheduler_that_preloads_the_former_name_has_the_page(tmp_path):
    file = tmp_path / "scheduler.json"
    words = ("--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0")
    preload = ("--preload", "homodyne_dask.dashboard", "--scheduler-file", str(file))
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", *words, *preload]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as scheduler:
        try:
            port = dashboard_port(file, scheduler)
            with urlopen(f"http://127.0.0.1:{port}/fit") as page:
                assert b"<html" in page.read()
        finally:
            scheduler.terminate()


def dashboard_port(file: Path, scheduler: subprocess.Popen) -> int:
    """Return the port that a scheduler has written to its file."""
    while not (file.exists() and file.read_text().strip()):
        assert scheduler.poll() is None
        time.sleep(0.1)
    return json.loads(file.read_text())["services"]["dashboard"]
