"""homodyne-dask simulate: write a result file with known parameters."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from homodyne_dask.cli.printing import echo
from homodyne_dask.errors import OptionError, nearest

if TYPE_CHECKING:
    import numpy as np

ARRAYS = 6
"""Most arrays of frames x frames float64 numbers that a simulation holds at once."""


@click.command()
@click.argument("path", metavar="OUT.h5", type=click.Path(path_type=Path))
@click.option(
    "--scenario", default="creep", help="creep (default), brownian, static, ageing or andrade."
)
@click.option(
    "--angles", type=click.IntRange(min=1), default=23, show_default=True, help="Number of angles."
)
@click.option(
    "--frames", type=click.IntRange(min=3), default=300, show_default=True, help="Number of frames."
)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the noise.")
@click.option("--layout", default="aps-u", help="aps-u (default) or aps-legacy.")
@click.option("--convention", default="physical", help="physical (default) or homodyne.")
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
def simulate(
    path: Path,
    scenario: str,
    angles: int,
    frames: int,
    seed: int,
    layout: str,
    convention: str,
    overwrite: bool,
) -> None:
    """Simulate a scan with known parameters and counting noise; write it in a beamline's file format.

    The file holds the true values, so that the report of a fit prints them beside the estimates.
    """
    import numpy as np

    from homodyne_dask.cluster.memory import JAX_BYTES, require_memory
    from homodyne_dask.fitting.predict import predict
    from homodyne_dask.models import MODELS, convention_named
    from ingest import SCENARIOS
    from ingest import angles as spread
    from ingest import simulate as write

    if scenario not in SCENARIOS:
        raise OptionError(f"scenario {scenario!r} is unknown; {nearest(scenario, SCENARIOS)}")
    convention_named(convention)
    require_memory("a simulation", JAX_BYTES + ARRAYS * 8 * frames**2)
    made, phi = SCENARIOS[scenario], spread(angles)
    time = made.frame_time * np.arange(frames)
    contrast, offset = made.contrasts(phi), made.offsets(phi)

    def c2_of_bin(k: int) -> "np.ndarray":
        return predict(
            MODELS[made.model], made.parameters, time, q=made.q, phi=phi[k], gap=made.gap,
            contrast=contrast[k], offset=offset[k], convention=convention,
        )[0]  # fmt: skip

    write(
        path, c2_of_bin, layout=layout, q=made.q, phi=phi, contrast=contrast, n_frames=frames,
        frame_time=made.frame_time, seed=seed, truth=made.truth(phi, convention),
        overwrite=overwrite,
    )  # fmt: skip
    values = ", ".join(f"{name} {value:g}" for name, value in made.parameters.items())
    echo(
        f"{path} written: {scenario}, {angles} angles x {frames} frames of {made.frame_time:g} s "
        f"at q = {made.q:g} 1/Å, {convention} convention, {values}"
    )
