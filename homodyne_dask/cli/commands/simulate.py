"""homodyne-dask simulate: write a result file with known parameters."""

from pathlib import Path

import click

import homodyne_dask as hd
from homodyne_dask.cli.printing import AS_JSON, echo, echo_json
from homodyne_dask.cli.shared_options import LOCAL_PATH, Text
from homodyne_dask.errors import in_line

SCENARIOS = ("creep", "brownian", "static", "ageing", "andrade", "step", "laos")
"""Those of `ingest.SCENARIOS`, whose module loads NumPy."""


@click.command()
@click.argument("path", metavar="OUT.h5", type=LOCAL_PATH)
@click.option(
    "--scenario", default="creep", type=Text(SCENARIOS),
    help="Dynamics: creep (default), brownian, static, ageing, andrade, step (a temperature step) or "
    "laos (oscillating shear).",
)  # fmt: skip
@click.option(
    "--angles", type=click.IntRange(min=1), default=23, show_default=True, help="Number of angles."
)
@click.option(
    "--frames", type=click.IntRange(min=3), default=300, show_default=True, help="Number of frames."
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Seed of the noise."
)
@click.option(
    "--layout",
    default="aps-u",
    type=Text(("aps-u", "aps-legacy")),
    help="File format: aps-u (default) or aps-legacy.",
)
@click.option(
    "--convention",
    default="physical",
    type=Text(("physical", "homodyne")),
    help="Convention of the shear factor: physical (default) or homodyne.",
)
@click.option(
    "--noise", default="pairs", type=Text(("pairs", "speckle")),
    help="Noise: independent for each pair of frames (pairs, the default), or that of photons counted in "
    "moving speckle (speckle).",
)  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@AS_JSON
def simulate(
    path: Path,
    scenario: str,
    angles: int,
    frames: int,
    seed: int,
    layout: str,
    convention: str,
    noise: str,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Simulate a scan with known parameters and noise, and write it in a beamline's file format.

    The file contains the true values, which the report of a fit prints beside the estimates.
    """
    made = hd.simulate(
        path, scenario, angles=angles, frames=frames, seed=seed, layout=layout, convention=convention,
        noise=noise, overwrite=overwrite,
    )  # fmt: skip
    if as_json:
        echo_json({
            "file": str(path), "scenario": scenario, "model": made.model, "convention": convention,
            "angles": angles, "frames": frames, "frame_time_s": made.frame_time, "seed": seed, "noise": noise,
            "q_per_angstrom": made.q, "gap_angstrom": made.gap, "parameters": dict(made.parameters),
        })  # fmt: skip
        return
    values = ", ".join(f"{name} {value:g}" for name, value in made.parameters.items())
    echo(
        f"{in_line(str(path))} written: {scenario}, "
        f"{angles} angles × {frames} frames of {made.frame_time:g} s "
        f"at q = {made.q:g} 1/Å, {convention} convention, {values}"
    )
