"""`make test-wheel`: the wheel alone, in clean environments of Python 3.12, 3.13 and 3.14.

In each the commands of the README and a script run with the packages of the core, the types of the script
are checked against what is installed, and quick tests run with all extras. Neither the source tree nor its
environment is on the path. A Python that this machine lacks is named at the end and fails nothing.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.documents import ROOT
from tests.versions import PYTHONS, QUICK_TESTS, TOOLS, reason

COMMANDS = (
    "simulate A0001_results.hdf --angles 9 --frames 60",
    "ingest A0001_results.hdf",
    "info A0001_c2.zarr --json",
    'fit A0001_c2.zarr --model laminar_flow --gap "200 um" --no-pictures',
    "show A0001_fit --json",
    "explain errors",
)
QUICK = (
    "store", "models/test_parameters.py", "solver/test_covariance.py",
    "solver/test_reduce.py", "ingest/test_simulate.py", "results/files",
    "test_extras.py",
)  # fmt: skip
"""Of tests/: less than two minutes on one core."""
SCRIPT = Path(__file__).with_name("uses_public_api.py")


def checked(uv: str, wheel: Path, python: str, folder: Path) -> str:
    """Check a wheel with a Python; return what was seen. Raises CalledProcessError for what fails."""
    there, work = folder / "environment", folder / "work"
    work.mkdir()
    settings = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    settings["PYENV_VERSION"] = python  # pyenv offers only those chosen

    def run(*command: str | Path) -> str:
        return subprocess.run(
            command, cwd=work, env=settings, check=True, capture_output=True, text=True
        ).stdout

    run(uv, "venv", "--quiet", "--no-python-downloads", "--python", python, there)
    inside = there / "bin/python"
    install = (uv, "pip", "install", "--quiet", "--python", inside, "--only-binary", ":all:")
    run(*install, wheel)
    site = next(there.glob("lib/python*/site-packages"))
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    core = f"{len(list(site.glob('*.dist-info')))} packages, {size / 1e6:.0f} MB"
    for line in COMMANDS:
        run("bash", "-c", f"{there}/bin/homodyne-dask {line}")
    script = shutil.copy(SCRIPT, work)
    run(inside, "-W", "error", script)
    types = [sys.executable, "-m", "pyright", "--pythonpath", str(inside)]
    run(*types, script)
    wrong = work / "wrong.py"
    wrong.write_text("import homodyne_dask as hd\nx: int = hd.open_dataset('a')\n")
    run("bash", "-c", f"! {shlex.join(types)} {wrong}")  # types are known, not Any
    run(*install, f"{wheel}[all]", *TOOLS)
    shutil.copytree(ROOT / "tests", work / "tests")
    for name in ("pyproject.toml", "docs", "README.md"):  # read by tests, not imported
        (work / name).symlink_to(ROOT / name)
    quick = [f"tests/{name}" for name in QUICK]
    said = run(inside, "-m", "pytest", "-q", *QUICK_TESTS, *quick)
    return f"core {core}; {said.splitlines()[-1]}"


def main() -> int:
    """Check the wheel of a folder with every Python; return 1 if something failed or nothing ran."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--uv", default="uv", help="the program uv")
    parser.add_argument("--python", nargs="+", default=PYTHONS, help="for example 3.12")
    given = parser.parse_args()
    failed = ran = False
    for python in given.python:
        with TemporaryDirectory() as folder:
            try:
                seen = checked(given.uv, given.wheel.absolute(), python, Path(folder))
                ran = True
            except subprocess.CalledProcessError as error:
                missing = "venv" in error.cmd
                failed = failed or not missing
                seen = (
                    reason(error) if missing else f"FAILED: {error}\n{error.output}{error.stderr}"
                )
        print(f"Python {python}: {seen}", flush=True)
    return 1 if failed or not ran else 0


if __name__ == "__main__":
    sys.exit(main())
