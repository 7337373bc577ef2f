"""homodyne-dask simulate: write a result file with known parameters."""

from pathlib import Path
from typing import Any, Literal

import click

import homodyne_dask as hd
from homodyne_dask.cli.path_arguments import LOCAL_PATH
from homodyne_dask.cli.printing import AS_JSON, echo, echo_json
from homodyne_dask.cli.shared_options import given_of, options_of
from homodyne_dask.errors import in_line
from homodyne_dask.request.option_types import Count, Integer
from homodyne_dask.request.options import Options, option
from homodyne_dask.text import with_unit


class Simulation(Options):
    """What is simulated."""

    scenario: Literal["creep", "brownian", "static", "ageing", "andrade", "step"] = option("creep")
    """Dynamics, of which step is a temperature step."""
    angles: Count = option(23)
    """Number of angles."""
    frames: Count = option(300)
    """Number of frames."""
    rings: Count = option(1)
    """Number of rings, from half to twice the q of the scenario."""
    seed: Integer = option(1)
    """Seed of the noise."""
    layout: Literal["aps-u", "aps-legacy"] = option("aps-u")
    """File format."""
    convention: Literal["physical", "homodyne"] = option("physical")
    """Convention of the shear factor."""
    noise: Literal["pairs", "speckle"] = option("pairs")
    """Noise: independent for each pair of frames (pairs), or that of photons counted in moving speckle
    (speckle)."""
    overwrite: bool = option(False)
    """Replace an existing file."""


@click.command()
@click.argument("path", metavar="OUT.h5", type=LOCAL_PATH)
@options_of(Simulation)
@AS_JSON
def simulate(path: Path, as_json: bool, **options: Any) -> None:
    """Simulate a scan with known parameters and noise, and write it in a beamline's file format.

    The file contains the true values, which the report of a fit prints beside the estimates.
    """
    values = Simulation(**given_of(options)).model_dump()
    case = hd.simulate(path, **values)
    facts = {"model": case.model, "frame_time_s": case.frame_time, "q_per_angstrom": case.q}
    facts |= {"gap_angstrom": case.gap, "parameters": dict(case.parameters)}
    if as_json:
        del values["layout"], values["overwrite"]
        echo_json({"file": str(path)} | values | facts)
        return
    model = hd.MODELS.get(case.model)  # None where the truth is no model of a fit
    units = {} if model is None else {p.name: p.unit for p in model.parameters}
    parameters = ", ".join(
        with_unit(f"{n} {value:g}", units.get(n, "")) for n, value in case.parameters.items()
    )
    several = values["rings"] > 1
    of_rings = f"{values['rings']} rings × " if several else ""
    of_q = f"{case.q / 2:g} to {case.q * 2:g}" if several else f"{case.q:g}"
    echo(
        f"{in_line(str(path))} written: {values['scenario']}, "
        f"{of_rings}{values['angles']} angles × {values['frames']} frames of {case.frame_time:g} s "
        f"at q = {of_q} 1/Å, {values['convention']} convention, {parameters}"
    )
