"""The steps of deploy/image/Containerfile, made in a folder without a container."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.small_fit import DEPLOY, here, written
from tests.result_bits import folder_bits

ROOT = DEPLOY.parent
FILE = DEPLOY / "image/Containerfile"
pytestmark = pytest.mark.timeout(600)


def steps() -> list[tuple[str, str]]:
    lines = [line for line in FILE.read_text().splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def test_what_the_file_copies_is_in_the_repository():
    copied = [rest.split()[:-1] for word, rest in steps() if word == "COPY"]
    assert [name for names in copied for name in names if not (ROOT / name).exists()] == []


def test_what_its_steps_install_fits_as_this_process_does(tmp_path):
    pytest.importorskip("dask_kubernetes", reason="it takes minutes: make test-deploy runs it")
    image, ours = tmp_path / "image", ("PYTHONPATH", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    base = Path(sys.base_prefix) / "bin"
    (image / "usr/bin").mkdir(parents=True)
    (image / "usr/bin/python").symlink_to(base / f"python3.{sys.version_info[1]}")
    for word, rest in steps():
        there = rest.replace("/opt/", f"{image}/opt/").replace("/usr/local/bin", f"{image}/usr/bin")
        if word == "COPY":
            *names, target = there.split()
            for name in names:
                copy(ROOT / name, Path(target))
        elif word == "RUN":
            path = os.pathsep.join([str(image / "usr/bin"), environment["PATH"]])
            subprocess.run(
                ["sh", "-ec", there], cwd=image, env=environment | {"PATH": path}, check=True
            )
        elif word == "ENV":
            environment |= dict(one.split("=", 1) for one in there.split())
    config = written(tmp_path)
    environment["HOME"] = str(tmp_path)
    program = image / "opt/homodyne-dask/bin/homodyne-dask"
    fit = [program, "fit", config, "--no-pictures"]
    ended = subprocess.run(fit, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode in (0, 3), ended.stderr
    assert folder_bits(tmp_path / "result") == here(tmp_path)
    explain = [program, "explain", "clusters"]
    said = subprocess.run(explain, env=environment, capture_output=True, text=True, check=True)
    assert "SLURM" in said.stdout


def copy(source: Path, target: Path) -> None:
    """What COPY does: files into a folder, the content of a folder as another."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
