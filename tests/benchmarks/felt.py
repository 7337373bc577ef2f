"""What a user waits for: whole commands, in CPU seconds of all their processes and in wall seconds.

Cold: with an empty folder of caches, so that every kernel is compiled; warm: medians of later runs.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks import data

ROOT = Path(__file__).parents[2]
TREE = Path(__file__).with_name("process_tree.py")
REPEATS = 5
STORES = 100
Costs = dict[str, float]


class Felt(NamedTuple):
    """Programs that are run one after the other, and the line for which a user waits first."""

    programs: list[list[str]]
    first: str = ""
    """A regular expression; any line by default."""


def command(*words: str | Path | int) -> list[str]:
    """The words of a homodyne-dask command."""
    return [sys.executable, "-m", "homodyne_dask.cli", *map(str, words)]


def python(code: str) -> list[str]:
    """The words of a program in Python."""
    return [sys.executable, "-c", code]


def rows(folder: Path) -> dict[str, Felt]:
    """The rows, over stores that are made in the folder; results are written there, too."""
    million, two = data.store(folder, 300), data.store(folder, 420)
    fit, model = ("fit", million, "--overwrite", "-o", folder / "fit"), ("--model", "laminar_flow")
    over = ("--over", "age", "--windows", 24, "--overwrite", "-o", folder / "windows")
    scan = folder / "demo_results.hdf"
    made = ("--scenario", "creep", "--angles", 23, "--frames", 300, "--overwrite")
    demo = [
        ("simulate", scan, *made),
        ("ingest", scan, "--overwrite"),
        ("fit", folder / "demo_c2.zarr", *model, "--overwrite"),
    ]
    return {
        "fit of 1 M pairs": Felt([command(*fit, *model)], "pass"),
        "24 windows": Felt([command("fit", two, *model, *over)], "written"),
        f"{STORES} stores": Felt(
            [command("fit", *_copies(folder), *model, "--overwrite", "-o", folder / "many")], "written"
        ),
        "plan": Felt([command("plan", million, *model)]),
        "show": Felt([command("show", folder / "fit")]),
        "info": Felt([command("info", million)]),
        "hd.fit of 2 M points": Felt(
            [python(f"import homodyne_dask as hd; hd.fit({str(million)!r}, hd.LAMINAR_FLOW)")]
        ),
        "import homodyne_dask": Felt([python("import homodyne_dask")]),
        "make demo": Felt([command(*words) for words in demo]),
    }  # fmt: skip


def _copies(folder: Path) -> list[Path]:
    """Copies of a store of 200 k pairs."""
    one, copies = data.store(folder, 132), [folder / f"B{n:03d}_c2.zarr" for n in range(STORES)]
    for copy in copies:
        if not copy.exists():
            shutil.copytree(one, copy)
    return copies


def cost(row: Felt, caches: Path) -> Costs:
    """CPU, wall and first seconds of one run of a row."""
    environment = os.environ | {"XDG_CACHE_HOME": str(caches), "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-I", str(TREE), row.first, json.dumps(row.programs)]
    # `python -m` looks in the working folder first
    done = subprocess.run(words, env=environment, cwd=caches, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return json.loads(done.stdout)


def run(name: str, folder: Path) -> Costs:
    """The cold cost of a row, and medians of the warm ones."""
    row = rows(folder)[name]
    if name == "show":
        cost(rows(folder)["fit of 1 M pairs"], folder)
    with tempfile.TemporaryDirectory(dir=folder) as caches:
        cold = cost(row, Path(caches))
        warm = [cost(row, Path(caches)) for _ in range(REPEATS)]
    medians = {what: statistics.median(one[what] for one in warm) for what in cold}
    return {f"cold {what}": cold[what] for what in ("CPU s", "wall s")} | medians
