"""The progress of a fit that runs and of one that has ended."""

import math
from dataclasses import replace

from homodyne_dask.fitting.events import CurrentPass, Pass, Progress
from homodyne_dask.results.data.findings import finding

NAN = math.nan


def pass_of(number, factor, chisqr, accepted=True, stderr=(NAN, NAN)):
    return Pass(number, factor, chisqr, 1.01, 0.5, 1e-3, accepted, 2.0, (1000.0, -0.5), stderr)


RUNNING = Progress(
    datum="pairs",
    fit="a1b2c3",
    title="static fitted to A0001_c2.zarr",
    store="/data/it's <b>/A0001_c2.zarr",
    where="on 2 Dask workers with 8 threads",
    names=("D0", "alpha"),
    units=("Å²/s", ""),
    pairs=100_000_000,
    bins=23,
    began=1000.0,
    at=1010.0,
    doing="pass 2 over all data",
    now=CurrentPass("pass 2 over all data", 1, 45, 1008.0, 12, 30_000_000, 120_000_000, 1010.0),
    done=(
        pass_of(1, 16, 5e5),
        pass_of(2, 16, 4e5, accepted=False),
        pass_of(1, 1, 1.01e8, stderr=(10.0, 0.01)),
    ),
    theta=(1000.0, -0.5),
    stderr=(10.0, 0.01),
    rate=15e6,
    byte_rate=60e6,
    pairs_total=130_000_000,
    tiles_total=57,
    tiles_skipped=3,
)

ENDED = replace(
    RUNNING,
    fit="d4e5f6",
    now=None,
    doing="ended",
    outcome="SINGULAR",
    sentence="the data do not determine all parameters",
    findings=(finding("undetermined", ["D0"]),),
)
