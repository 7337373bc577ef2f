"""Measure how often intervals hold the truth, by the number of bins: the table of docs/errors.md.

python -m tests.examples.error_coverage RECORD.csv FIRST STOP

fits scans of counted photons with the seeds FIRST up to before STOP, adds a line for each fit and parameter to
RECORD.csv, and prints the table of all lines in it. Nothing is known of the scans but c2.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
import pandas as pd
from scipy.stats import norm, t

import homodyne_dask as hd
from tests.photons import STILL, photographed

BINS = (1, 2, 4, 7, 12)
FRAMES, PIXELS = 100, 400
FREE = ("D0", "alpha")
METHODS = ("speckle", "cluster-robust", "naive")
FEWEST_CLUSTERS = 2
"""Cluster-robust errors are computed from 2 bins on, although a fit gives them from 8 on."""


def main(record: str, first: str, stop: str) -> None:
    """Add repeats to a record, and print its table."""
    file = Path(record)
    with TemporaryDirectory() as folder:
        for seed in range(int(first), int(stop)):
            lines = pd.DataFrame(_fits(Path(folder), seed))
            lines.to_csv(file, mode="a", header=not file.exists(), index=False)
    print(table(pd.read_csv(file)))


def _fits(folder: Path, seed: int) -> list[dict[str, float | str]]:
    """Return value and errors of each parameter in fits to the first bins of one scan."""
    angle = np.linspace(-82.5, 82.5, max(BINS))
    scans = photographed(STILL, FRAMES, angle, seed, pixels=PIXELS)
    np.savez(folder / "a.npz", c2=scans.c2, q=scans.q, phi=scans.phi, time=scans.time)
    scan = hd.open_dataset(hd.ingest(folder / "a.npz", overwrite=True).store)
    found = []
    for bins in BINS:
        some = scan.select(phi=[(one - 0.1, one + 0.1) for one in angle[:bins]])
        with patch("homodyne_dask.solver.covariance.MIN_CLUSTERS", FEWEST_CLUSTERS):
            result = hd.fit(some, "static", fixed={"D_offset": STILL[2]})
        found += [{"seed": seed, "bins": bins} | _errors(result, name) for name in FREE]
    return found


def _errors(result: hd.FitResult, name: str) -> dict[str, float | str]:
    """Return the error of a parameter by each method and its degrees of freedom; NaN where there is none."""
    one, noise = result.parameters.sel(param=name), result.errors.noise
    clusters = one["method"].item() == "cluster-robust"
    known = noise is not None and not noise["objection"].item()
    of_speckle = noise.sel(param=name) if known else one
    return {
        "param": name,
        "value": float(one["value"]),
        "speckle": float(of_speckle["stderr"]) if known else np.nan,
        "speckle dof": float(of_speckle["dof"]),
        "cluster-robust": float(one["stderr"]) if clusters else np.nan,
        "cluster-robust dof": float(one["dof"]),
        "naive": float(one["stderr_naive"]),
    }


def table(record: pd.DataFrame) -> str:
    """Return the table in Markdown: means over the parameters, per cent of the repeats with an error."""
    truth = record["param"].map(dict(zip(("D0", "alpha"), STILL, strict=False)))
    away = (record["value"] - truth).abs()
    scatter = (away**2).groupby([record["bins"], record["param"]]).transform("mean") ** 0.5
    rows = []
    for bins in BINS:
        row = [str(bins)]
        for method in METHODS:
            here = (record["bins"] == bins) & record[method].notna()
            if not here.any():
                row += ["", "", ""]
                continue
            error = record[method][here]
            for share in (0.6827, 0.95):
                wide = (
                    norm.ppf(0.5 + share / 2)
                    if method == "naive"
                    else t.ppf(0.5 + share / 2, record[f"{method} dof"][here])
                )
                row.append(f"{100 * (away[here] < wide * error).mean():.0f}")
            row.append(f"{(error / scatter[here]).median():.2f}")
        rows.append(row)
    head = ["bins", *(f"{method}: {of}" for method in METHODS for of in ("68 %", "95 %", "size"))]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    main(*sys.argv[1:])
