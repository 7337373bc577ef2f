"""Style, types and the direction of imports, as `make lint` checks them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = Path(sys.executable).parent
CHECKS = {
    "ruff finds nothing": [SCRIPTS / "ruff", "check", "--no-cache", "."],
    "the code is formatted": [SCRIPTS / "ruff", "format", "--no-cache", "--check", "."],
    "imports go one way": [SCRIPTS / "lint-imports", "--no-cache"],
    "types fit": [sys.executable, "-m", "pyright", "--pythonpath", sys.executable],
}
SLOW = ("types fit",)


@pytest.mark.parametrize(
    "check", [pytest.param(c, marks=[pytest.mark.slow] if c in SLOW else []) for c in CHECKS]
)
def test_style(check):
    if check == "types fit" and shutil.which("node") is None:
        pytest.skip("pyright needs node")
    found = subprocess.run(CHECKS[check], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
