"""`make benchmark`: one table of what was measured beside what is asked, and the same as JSON.

Each row is measured in a process of its own. `python -m tests.benchmarks NAME ...` runs some.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks import codec_table

ROWS = {
    "kernel float64": ("kernel.run('float64')", {"M pairs/s": ">= 130", "ratio": ">= 18"}),
    "kernel mixed": ("kernel.run('mixed')", {"M pairs/s": ">= 260"}),
    "sweep resident 1x2": (
        "fits.sweep(folder, 2950, 'resident', 1, 2)",
        {"M pairs/s": ">= 80 % of cores x kernel"},
    ),
    "sweep resident 2x1": ("fits.sweep(folder, 2950, 'resident', 2, 1)", {}),
    "sweep resident 1x1": (
        "fits.sweep(folder, 2950, 'resident', 1, 1)",
        {"M pairs/s": "2 workers >= 1.8 x this"},
    ),
    "sweep streaming 1x2": (
        "fits.sweep(folder, 2950, 'stream', 1, 2)",
        {"M pairs/s": ">= 130", "ns of CPU per pair": "<= 5 above the kernel"},
    ),
    "fit 200 M points": (
        "fits.full(folder, 2950)",
        {"wall s": "<= 12", "passes": "<= 4 full"},
    ),
    "fit 200 M streaming": (
        "fits.full(folder, 2950, 'stream')",
        {"peak above imports MiB": "<= 1024"},
    ),
    "fit 20 M streaming": ("fits.full(folder, 930, 'stream')", {}),
    "fit 2 M cold": ("fits.cold(folder)", {"wall s": "<= 5"}),
    "codecs": ("codec_table.run(folder)", {}),
    "flags": ("flags.run()", {"traced arguments: compilations": "1"}),
    "ingest": ("fits.ingested(folder, 2950)", {"MB/s of matrix data": ">= 150"}),
}


def one(name: str, folder: str) -> dict[str, Any]:
    """Measure one row in a fresh process with one compute thread."""
    code = (
        "import json, sys; from pathlib import Path; "
        "from tests.benchmarks import codec_table, fits, flags, kernel; "
        f"folder = Path({folder!r}); print('RESULT', json.dumps({ROWS[name][0]}))"
    )
    environment = os.environ | ({"NPROC": "1"} if name.startswith("kernel") else {})
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    said, result = done.stdout.split("RESULT", 1)
    print(said, end="")
    return json.loads(result)


def main() -> None:
    """Print the table, and write it to benchmark.json."""
    chosen = sys.argv[1:] or list(ROWS)
    table = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen:
            table[name] = one(name, folder)
            if name == "codecs":
                print(codec_table.text(table[name]), flush=True)
                continue
            for what, value in table[name].items():
                asked = ROWS[name][1].get(what, "")
                print(f"{name:<22} {what:<36} {value:>14.4g}   {asked}", flush=True)
    Path("benchmark.json").write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
