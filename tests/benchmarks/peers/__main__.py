"""`make benchmark-peers`: fit the same data by each program in turn, one process at a time.

Prints a table for each scaling and writes benchmark-peers.json. A program that fails, or is stopped
at the limit, has a row too.
"""

import argparse
import json
import os
import sys
import tempfile
from dataclasses import asdict
from datetime import date
from pathlib import Path

from tests.benchmarks import process
from tests.benchmarks.peers import data
from tests.benchmarks.peers.gallery import Row, markdown, table

PYTHONS = {
    "ours": sys.executable,
    "peers": ".venv-peers/bin/python",
    "xpcsjax": ".venv-xpcsjax/bin/python",
}
"""The Python of each environment."""
PROGRAMS = {
    "homodyne_dask": ("ours", "homodyne_dask", ()),
    "homodyne_dask, ready": ("ours", "homodyne_dask", ("ready",)),
    "homodyne": ("peers", "homodyne", ()),
    "homodyne, exact": ("peers", "homodyne", ("exact",)),
    "xpcsjax": ("xpcsjax", "xpcsjax", ()),
    "xpcsjax, exact": ("xpcsjax", "xpcsjax", ("exact",)),
    "nlsq.curve_fit": ("peers", "nlsq", ()),
}
ON_GPU = {"homodyne_dask, GPU": ("ours", "homodyne_dask", ("gpu",))}
"""Where there is one: `make benchmark-gpu`."""
SCALINGS = ["shared", "individual"]


def measure(program: str, scaling: str, case: data.Case, folder: Path, limit: float) -> Row:
    environment, called, words = (PROGRAMS | ON_GPU)[program]
    place = folder / scaling / "-".join([called, *words])
    place.mkdir(parents=True)
    written = place / "result.json"
    command = [PYTHONS[environment], "-m", "tests.benchmarks.peers.programs", called]
    given = [str(folder / "data.npz"), str(written), scaling, *words]
    ran = process.run([*command, *given], limit, place / "log")
    seen = {"process_seconds": ran.seconds, "cpu_seconds": ran.cpu_seconds, "peak": ran.peak}
    if ran.code is None:
        return Row(program, scaling, "stopped", note=f"stopped at {limit / 60:g} min", **seen)
    if ran.code or not written.exists():
        last = (ran.output.strip().splitlines() or ["it printed nothing"])[-1]
        return Row(program, scaling, "failed", note=f"exit status {ran.code}: {last}", **seen)
    answer = json.loads(written.read_text())
    estimate = data.Estimate(**{key: answer.pop(key) for key in data.FIELDS if key in answer})
    ended, chisqr = answer.pop("status"), data.chisqr(case, estimate) if estimate.contrast else None
    return Row(program, scaling, ended, estimate=estimate, chisqr=chisqr, **seen, **answer)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--angles", type=int, default=23)
    options.add_argument("--frames", type=int, default=300)
    options.add_argument("--limit", type=float, default=20, help="minutes for each row")
    options.add_argument("--scaling", nargs="+", choices=SCALINGS, default=SCALINGS)
    options.add_argument("--programs", nargs="+", choices=PROGRAMS, default=[*PROGRAMS])
    options.add_argument("--peers", type=Path, help="the environment of homodyne and nlsq")
    options.add_argument("--xpcsjax", type=Path, help="that of xpcsjax")
    options.add_argument("--record", type=Path, default="benchmark-peers.json")
    chosen = options.parse_args()
    for name in ("peers", "xpcsjax"):
        if folder := getattr(chosen, name):
            PYTHONS[name] = str(folder / "bin" / "python")
    case = data.make(chosen.angles, chosen.frames)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data.save(case, folder / "data.npz")
        for scaling in chosen.scaling:
            these: list[Row] = []
            for program in chosen.programs:
                these.append(measure(program, scaling, case, folder, chosen.limit * 60))
                print(f"{scaling}, {program}: {these[-1].ended}", file=sys.stderr, flush=True)
            print(f"{scaling} scaling\n\n{markdown(table(these))}", flush=True)
            rows += these
    record = {
        "angles": chosen.angles, "frames": chosen.frames, "pairs": case.pairs, "sigma": data.SIGMA,
        "cores": len(os.sched_getaffinity(0)), "date": date.today().isoformat(),
        "truth": data.TRUTH, "start": data.START,
        "rows": [asdict(row) for row in rows],
    }  # fmt: skip
    chosen.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
