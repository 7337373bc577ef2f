"""Make the figures of paper.md and the table of its example from simulated data.

python paper/figures.py
"""

from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image

import homodyne_dask as hd

FOLDER = Path(__file__).parent / "figures"
ANGLES, FRAMES = 23, 300
SHOWN = [(-90.0, -80.0), (-1.0, 1.0)]
"""Ranges of φ of the two maps: across and along the flow [degree]."""


def main() -> None:
    """Simulate a creeping sample, fit it, and compare the estimates with the truth."""
    FOLDER.mkdir(exist_ok=True)
    with TemporaryDirectory() as name:
        file = Path(name) / "A0001_results.hdf"
        truth = hd.simulate(file, "creep", angles=ANGLES, frames=FRAMES, seed=1)
        scan = hd.open_dataset(hd.ingest(file).store)
        result = hd.fit(scan, "laminar_flow")
        (FOLDER / "example.md").write_text(table(result, truth.parameters))
        result.plot.rates(scan).savefig(FOLDER / "rates.png", dpi=110)
        two = scan.select(phi=SHOWN)
        drawn = BytesIO()
        hd.fit(two, "laminar_flow").plot.maps(two).savefig(drawn, dpi=120)
        # noise does not compress, and a palette takes a third of the space
        Image.open(drawn).convert("RGB").quantize(128).save(FOLDER / "maps.png", optimize=True)


def table(result: hd.FitResult, truth: dict[str, float]) -> str:
    """Return truth, estimate and error of each parameter as a table in Markdown."""
    fitted = result.parameters
    rows = ["| parameter | truth | estimate | stderr | dof | unit |", "|---|---|---|---|---|---|"]
    for name in fitted["param"].values:
        one = fitted.sel(param=name)
        value, error = float(one["value"]), float(one["stderr"])
        known = f"{error:.2g}" if np.isfinite(error) else "unknown"
        unit = str(one["unit"].item())
        rows.append(
            f"| {name} | {truth[str(name)]:.4g} | {value:.4g} | {known} | {float(one['dof']):.1f} | {unit} |"
        )
    fit = f"{result.ndata} pairs, {result.passes} passes, chisqr/N {result.redchi:.3f}"
    return "\n".join([*rows, "", fit, result.outcome.value, *map(str, result.findings)]) + "\n"


if __name__ == "__main__":
    main()
