"""`make test-versions`: the quick tests with the oldest and the newest packages that are allowed.

For each Python there are two environments under .venv-versions/. A Python that this machine lacks, and
packages that have no build for one, are named at the end; they fail nothing, a failing test does.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".venv-versions"
PYTHONS = ("3.12", "3.13", "3.14")
RESOLUTIONS = {"oldest": "lowest-direct", "newest": "highest"}
TOOLS = (
    "pytest", "hypothesis", "pytest-timeout", "mpmath", "hatchling", "ipykernel", "nbclient",
    "moto[server]", "emcee",
)  # fmt: skip
"""In their newest versions everywhere: what is tested is the program, not they."""
QUICK_TESTS = ("-m", "not slow and not long", "-p", "no:cacheprovider")
"""Options of pytest."""
ROOMS = ("store", "models", "kernels", "sweep", "cluster", "solver", "apps", "ingest", "fitting")
"""Folders of tests/ whose modules call other libraries."""
CLOSELY_WATCHED = ("jax", "dask", "distributed", "dask-jobqueue", "xarray", "zarr", "numpy",
                   "arviz-stats")  # fmt: skip
"""Packages named in the summary."""


def environment(uv: str, python: str, age: str) -> Path:
    """Make or bring up to date the environment of a Python; raises CalledProcessError where uv fails."""
    folder = FOLDER / f"{age}-{python}"
    inside = str(folder / "bin/python")
    install = [uv, "pip", "install", "--quiet", "--python", inside]
    built = ["--only-binary", ":all:"]  # the oldest that has a build for this Python
    newest = ["--upgrade", "--resolution", RESOLUTIONS[age]]
    settings = os.environ | {"PYENV_VERSION": python}  # pyenv offers only those chosen
    for command in (
        [uv, "venv", "--quiet", "--allow-existing", "--no-python-downloads", "--python", python, str(folder)],
        [*install, *newest, *built, "-r", "pyproject.toml", "--all-extras"],
        [*install, *built, *TOOLS],
        [*install, "--no-deps", "--editable", "."],
    ):  # fmt: skip
        subprocess.run(command, cwd=ROOT, env=settings, check=True, capture_output=True, text=True)
    return folder / "bin/python"


def versions(python: Path) -> str:
    """Return the versions of the closely watched packages in an environment."""
    code = "import sys; from importlib.metadata import version as v; print(*map(v, sys.argv[1:]))"
    printed = subprocess.check_output([python, "-c", code, *CLOSELY_WATCHED], text=True).split()
    return ", ".join(map(" ".join, zip(CLOSELY_WATCHED, printed, strict=True)))


def tests(python: Path, rooms: list[str], more: list[str]) -> int:
    """Run the quick tests of some rooms in an environment; return pytest's exit status."""
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # old packages beside new ones warn about each other
    lenient = ["--override-ini", "filterwarnings=default", "--ignore=tests/apps/slurm"]
    command = [python, "-m", "pytest", "-q", *QUICK_TESTS, *lenient, *more]
    command += [f"tests/{room}" for room in rooms]
    return subprocess.run(command, cwd=ROOT, env=settings).returncode


def reason(error: subprocess.CalledProcessError) -> str:
    """Return in one line why uv could not make an environment."""
    if "venv" in error.cmd:
        return "this machine has no such Python"
    lines = [line.strip() for line in error.stderr.splitlines() if line.strip()]
    return " ".join(lines)[:300] or f"uv ended with status {error.returncode}"


def main() -> int:
    """Test every Python with the oldest and the newest packages; return 1 if a test failed or none ran."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--uv", default="uv", help="the program uv")
    parser.add_argument("--python", nargs="+", default=PYTHONS, help="for example 3.12")
    parser.add_argument("--age", nargs="+", default=list(RESOLUTIONS), choices=RESOLUTIONS)
    parser.add_argument("--rooms", nargs="+", default=ROOMS, help="folders of tests/")
    given, more = parser.parse_known_args()
    summary, failed, ran = [], False, False
    for python in given.python:
        for age in given.age:
            try:
                inside = environment(given.uv, python, age)
            except subprocess.CalledProcessError as error:
                summary.append(f"Python {python}, {age}: cannot be installed: {reason(error)}")
                continue
            what = f"Python {python}, {age}: {versions(inside)}"
            print(f"== {what}", flush=True)
            status = tests(inside, list(given.rooms), more)
            failed, ran = failed or status != 0, True
            summary.append(f"{what}: {'passed' if status == 0 else 'FAILED'}")
    print("\n" + "\n".join(summary))
    return 1 if failed or not ran else 0


if __name__ == "__main__":
    sys.exit(main())
