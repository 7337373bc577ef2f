"""Measure rows of the table; without a row, list them. For each row, a line of the table is printed."""

import argparse
import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatchcase
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from tests.verification.measure import HEADER, line, measured
from tests.verification.rows import ROWS


def selected(wanted: Sequence[str]) -> list[str]:
    """Return the names of rows that were asked for, by name, pattern or number of the claim."""
    names = []
    for word in wanted:
        meant = [name for name, row in ROWS.items() if fnmatchcase(name, word) or row.claim == word]
        if not meant:
            raise SystemExit(f"no row is called {word}: without a name, the rows are listed")
        names += meant
    return list(dict.fromkeys(names))


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m tests.verification", description=__doc__)
    parser.add_argument(
        "rows", nargs="*", metavar="ROW", help="name, pattern, or number of a claim"
    )
    parser.add_argument("--scans", type=int, default=20, help="of each row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="processes, at most one for each core")
    parser.add_argument("--out", type=Path, help="a JSON file, of the numbers of every scan")
    given = parser.parse_args(words)
    if not given.rows:
        for name, row in ROWS.items():
            print(f"{row.claim:>2}  {name:24}  {row.truth}; {row.setting}")
        return
    names, everything = selected(given.rows), []
    print(f"| {' | '.join(HEADER)} |\n|{'---|' * len(HEADER)}", flush=True)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of the processes that simulate: small matrices
    with ProcessPoolExecutor(given.jobs, get_context("spawn")) as processes:
        for name in names:
            scans = list(processes.map(partial(measured, name, given.seed), range(given.scans)))
            print(f"| {' | '.join(line(ROWS[name], scans))} |", flush=True)
            everything += scans
            if given.out is not None:
                given.out.write_text(json.dumps(everything))


if __name__ == "__main__":
    main()
