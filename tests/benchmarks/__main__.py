"""`make benchmark`: a table of measurements with their requirements, also written as JSON.

Each row is measured in a process of its own, and told as it goes. `python -m tests.benchmarks NAME ...` runs
single rows.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from homodyne_dask.kernels.devices import FOLDER

Row = dict[str, float]
ROWS = {
    "kernel float64": ("kernel.run('float64')", "M pairs/s >= 130"),
    "kernel wide": ("kernel.wide_beside_a_fits()", "passes of a fit <= 25"),
    "posterior 100 M pairs": ("fits.posterior(folder, 2950)", "wall s <= 60"),
    "posterior 1 M pairs": ("fits.posterior(folder, 300)", "wall s <= 6"),
    "kernel separable": ("kernel.separable()", "M pairs/s >= 15"),
    "gpu": (
        "gpu.run(folder)",
        "resident, times one core >= 50, the same bits in two passes, largest difference from processors "
        "<= 1e-12, peak / the plan's <= 1",
    ),
    "cores": ("passes.of_cores(folder)", "all cores, passes / lone kernels >= 0.8"),
    "sweep streaming 1x2": (
        "passes.rate(data.store(folder, 2950), 'stream', 1, 2)",
        "M pairs/s >= 130, ns above the kernel <= 5",
    ),
    "fit 200 M points": (
        "fits.full(folder, 2950)",
        "wall s <= 12, passes <= 4 full, from the optimum <= 1e-3 standard errors, compilations 1",
    ),
    "fit 200 M streaming": ("fits.full(folder, 2950, 'stream')", "peak above imports MiB <= 1024"),
    "fit 20 M streaming": ("fits.full(folder, 930, 'stream')", "peak of 200 M / this <= 1.05"),
    "fit 2 M streaming": ("fits.full(folder, 300, 'stream')", "peak no higher than at 20 M"),
    "after the last pass 1 M pairs": ("fits.after_the_last_pass(folder, 300)", "CPU s <= 0.35"),
    "after the last pass 100 M pairs": ("fits.after_the_last_pass(folder, 2950)", "CPU s <= 1"),
    "after the last pass 1 G pairs": ("fits.after_the_last_pass(folder, 2950, 10)", "CPU s <= 10"),
    "20 rings of 20 sectors": (
        "fits.many_bins(folder, 20, 20)",
        "fit CPU s <= 6; the aim is 4",
    ),
    "400 rings": (
        "fits.many_bins(folder, 400, 1)",
        "fit CPU s <= 6; the aim is 4",
    ),
    "5,000 rings of 15 frames": (
        "fits.many_bins(folder, 5000, 1, 15)",
        "ingest CPU s <= 9, fit CPU s <= 4, pass CPU s <= 0.3",
    ),
    "1,000 rings of 60 frames": (
        "fits.many_bins(folder, 1000, 1, 60)",
        "fit CPU s <= 6; the aim is 4",
    ),
    "first fit": ("waits.first_fit(folder)", "first / second <= 4"),
    "command": ("waits.command(folder)", "command / without figures <= 2"),
    "weighted fit": ("waits.weighted(folder)", "speckle / pairs, wall <= 3"),
    "series": ("waits.series(folder)", "command / fits <= 1.5"),
    "splines": ("waits.splines(folder)", "splines / formulas <= 12"),
    "posterior, auto, compare": ("waits.further(folder)", "a table"),
    "ingest": ("fits.ingested(folder, 2950)", "MB/s of matrix data >= 150"),
}
"""What is called, and what is required of the numbers."""
ONE_THREAD = {"NPROC": "1", "OPENBLAS_NUM_THREADS": "1"}
"""The environment of rows of a kernel and of what follows the last pass."""


def compared(table: dict[str, Row], name: str) -> Row:
    """Return ratios of a row to rows that were measured before it."""
    row, peak = table[name], "peak above imports MiB"
    if name == "sweep streaming 1x2" and (kernel := table.get("kernel float64")):
        return {"ns above the kernel": row["ns of CPU per pair"] - 1e3 / kernel["M pairs/s"]}
    if name == "fit 20 M streaming" and (large := table.get("fit 200 M streaming")):
        return {"peak of 200 M / this": large[peak] / row[peak]}
    return {}


def measured(name: str, folder: str) -> Iterator[Row]:
    """Yield the parts of a row as a fresh process measures them, which compiles its kernels."""
    module = ROWS[name][0].partition(".")[0]
    code = (
        f"import json; from pathlib import Path; from tests.benchmarks import data, {module}\n"
        f"folder = Path({folder!r}); row = {ROWS[name][0]}\n"
        f"for part in [row] if isinstance(row, dict) else row: print('RESULT', json.dumps(part))"
    )
    environment = os.environ | (ONE_THREAD if name.startswith(("kernel", "after")) else {})
    # workers import from no working folder
    environment |= {FOLDER: "off", "PYTHONPATH": str(Path.cwd())}
    command = [sys.executable, "-u", "-c", code]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            _, is_result, part = line.partition("RESULT ")
            if is_result:
                yield json.loads(part)
            else:
                print(line, end="", flush=True)
    if process.returncode:
        raise SystemExit(f"{name}: its process ended with status {process.returncode}")


def main() -> None:
    table: dict[str, Row] = {}

    def told(name: str, part: Row) -> None:
        table[name] |= part
        Path("benchmark.json").write_text(json.dumps(table, indent=1) + "\n")
        for what, value in part.items():
            print(f"{name:<22} {what:<36} {value:>14.4g}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or ROWS:
            table[name] = {}
            for part in measured(name, folder):
                told(name, part)
            told(name, compared(table, name))
            print(f"{'':<22} required: {ROWS[name][1]}", flush=True)


if __name__ == "__main__":
    main()
