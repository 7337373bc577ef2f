"""One small fit for every way to workers, and what it comes to in this process."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

import homodyne_dask as hd
from homodyne_dask.cluster.connect import make_key
from tests.result_bits import folder_bits
from tests.synthetic import CREEP, fit_here, measured, store

DEPLOY = Path(__file__).parents[2] / "deploy"
SCRIPT = DEPLOY / "mpi/fit.py"
GIVEN: dict[str, Any] = {
    "fixed": {"D_offset": 1000.0},
    "initial": {"D0": 9000.0, "alpha": 0.0},
    "max_passes": 3,
}


def written(folder: Path) -> Path:
    """A file for a fit, into folder/result, of two angles of 60 frames."""
    scan = store(measured(CREEP, 60, [0.0, 45.0], dt=0.1), folder)
    asked = {"data": scan.path, "model": "static", "output": str(folder / "result")} | GIVEN
    (folder / "fit.yaml").write_text(yaml.safe_dump(asked))
    return folder / "fit.yaml"


def here(folder: Path) -> dict[str, Any]:
    """All of the same fit in this process, but the seconds it took."""
    (folder / "here").mkdir()
    fit_here(hd.open_dataset(folder / "scan.zarr"), hd.STATIC, **GIVEN).to_json(
        folder / "here/summary.json"
    )
    return folder_bits(folder / "here")


def fit_on_tasks(launcher: list[str | Path], kind: str, folder: Path) -> str:
    """Fit by the script of deploy/mpi with the bits of this process; return what it says.

    launcher: what starts four tasks, two of which are workers.
    """
    config = written(folder)
    make_key(folder / "key")
    words = [sys.executable, SCRIPT, kind, folder / "key", config, "--no-pictures"]
    ended = subprocess.run(
        [*launcher, *words], cwd=folder, capture_output=True, text=True, timeout=240,
        env=os.environ | {"HOMODYNE_DASK_INTERFACE": "lo"},
    )  # fmt: skip
    assert ended.returncode in (0, 3), ended.stderr
    assert "on 2 Dask workers" in ended.stderr, ended.stderr
    assert folder_bits(folder / "result") == here(folder)
    return ended.stderr
