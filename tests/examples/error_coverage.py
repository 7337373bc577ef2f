"""Measure how often intervals hold the truth, by the number of bins: a table of the page of evidence.

python -m tests.examples.error_coverage RECORD.csv FIRST STOP

fits scans of counted photons with the seeds FIRST up to before STOP, adds a line for each fit and parameter
to RECORD.csv, and prints the table of all lines in it. Nothing is known of the scans but c2.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
import pandas as pd
from scipy.stats import t

import homodyne_dask as hd
from tests.photons import STILL, photographed

BINS = (1, 2, 4, 7, 12)
FRAMES, PIXELS = 100, 400
TRUTH = {"D0": STILL[0], "alpha": STILL[1]}
METHODS = ("speckle", "cluster-robust", "naive")
FEWEST_CLUSTERS = 2
"""Cluster-robust errors are computed from 2 bins on, although a fit gives them from 8 on."""


def main(record: str, first: str, stop: str) -> None:
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
        found += [{"seed": seed, "bins": bins} | _errors(result, name) for name in TRUTH]
    return found


def _errors(result: hd.FitResult, name: str) -> dict[str, float | str]:
    """Return the error of a parameter by each method and its degrees of freedom; NaN where there is none."""
    one, noise = result.parameters.sel(param=name), result.errors.noise
    clusters = one["method"].item() == "cluster-robust"
    known = noise is not None and not noise["objection"].item()
    of_speckle = one if noise is None else noise.sel(param=name)
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
    """Return the table in Markdown: means over the parameters, and the median error over the scatter."""
    head = ["bins", *(f"{method}: {of}" for method in METHODS for of in ("68 %", "95 %", "size"))]
    rows = [head, ["---"] * len(head)]
    for bins in BINS:
        parts = [record.query("bins == @bins and param == @name") for name in TRUTH]
        cells = [_cells(parts, method) for method in METHODS]
        rows.append([str(bins), *(cell for of_method in cells for cell in of_method)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cells(parts: Sequence[pd.DataFrame], method: str) -> list[str]:
    """Return how often intervals of 68 and 95 % hold the truth, in per cent, and the size of errors."""
    held, sizes = [], []
    for part, truth in zip(parts, TRUTH.values(), strict=True):
        away, error = np.abs(part["value"].to_numpy() - truth), part[method].to_numpy()
        dof = part[f"{method} dof"].to_numpy() if method != "naive" else np.inf
        wide = t.ppf(0.5 + np.array([0.6827, 0.95])[:, None] / 2, dof)
        known = np.isfinite(error)
        held.append((away < wide * error)[:, known])
        sizes.append(error[known] / np.sqrt(np.mean(away**2)))
    if not any(size.size for size in sizes):
        return [""] * 3
    share = 100 * np.concatenate(held, axis=1).mean(axis=1)
    return [f"{share[0]:.0f}", f"{share[1]:.0f}", f"{np.median(np.concatenate(sizes)):.2f}"]


if __name__ == "__main__":
    main(*sys.argv[1:])
