"""homodyne-dask ingest: convert a result file to a Zarr store."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

import homodyne_dask as hd
from homodyne_dask.cli.commands.info import store_values
from homodyne_dask.cli.exit_status import Interrupted
from homodyne_dask.cli.printing import AS_JSON, echo, echo_json
from homodyne_dask.cli.shared_options import ANY_PATH, numbers_of_option
from homodyne_dask.cluster.memory import require_addresses
from homodyne_dask.store.files import AnyPath, path_of

MIN_BYTES_FOR_WORKERS = 500_000_000
"""Bytes of source from which on workers are started; for less, two threads are faster."""

ADDRESSES = 600_000_000
"""Bytes of address space that an ingest reserves: libraries, and 75 MB for each of its threads."""


@click.command()
@click.argument("sources", type=ANY_PATH, nargs=-1, required=True, metavar="SOURCE... [STORE]")
@click.option(
    "--output", "-o", "store", type=ANY_PATH, help="Name of the store; required for several files."
)
@click.option(
    "--average",
    type=click.Choice(["scans"]),
    help="Write the mean of the scans instead of the bins of each scan.",
)
@click.option(
    "--q",
    multiple=True,
    help="q in 1/Å if the file does not contain it: one number or one per bin.",
)
@click.option(
    "--phi", multiple=True, help="φ in degrees if the file does not contain it: one number or one per bin."
)  # fmt: skip
@click.option(
    "--dt", "--frame-time", "frame_time", type=float, help="Time between stored frames in seconds."
)
@click.option(
    "--sigma",
    multiple=True,
    help="Standard deviation of c2 of a single pair of frames: one number or one per bin.",
)
@click.option(
    "--time-offset",
    type=float,
    default=0.0,
    help="Seconds between loading the sample and the first frame.",
)
@click.option(
    "--gap", help='Gap between the plates with its unit, such as "200 um"; stored with the data.'
)
@click.option(
    "--trains",
    help="For files with one matrix per train: first train to use, counted from 0, and the one after the "
    "last, such as 0:500.",
)
@click.option(
    "--dataset",
    help="Name of the matrices, such as /data/c2, in an HDF5 or .npz file of any other layout.",
)
@click.option("--q-dataset", help="With --dataset: name of the dataset of q.")
@click.option("--phi-dataset", help="With --dataset: name of the dataset of φ.")
@click.option(
    "--time-dataset",
    help="With --dataset: name of the dataset of frame times, or of their spacing, in seconds.",
)
@click.option(
    "--axes",
    help="Axes of the matrices if they are not detected, with t for both time axes, such as t,t,q.",
)
@click.option(
    "--half",
    type=click.Choice(["upper", "lower", "mean"]),
    help="Part of asymmetric matrices to use: one half, or the mean of both.",
)
@click.option(
    "--sharded/--no-sharded", default=None,
    help="Whether to store many chunks per file (Zarr shards); default: only for stores at a URL.",
)  # fmt: skip
@click.option(
    "--strict",
    is_flag=True,
    help="Reject a file with a bin that contains no data, instead of leaving out the bin.",
)
@click.option("--overwrite", is_flag=True, help="Replace a store that has different contents.")
@click.option("--scheduler", help="Address of a running Dask scheduler, such as tls://host:8786.")
@click.option(
    "--key", help="Folder of the scheduler's TLS key, or none for an unencrypted scheduler."
)
@AS_JSON
def ingest(
    sources: tuple[AnyPath, ...],
    store: AnyPath | None,
    scheduler: str | None,
    key: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Write the two-time correlations in SOURCE to a Zarr STORE.

    Several files, given with --output, are repeats of one measurement: the store contains the bins of all
    of them.

    SOURCE is an HDF5 file (APS-U, APS legacy, NXxpcs, CHX, ESRF, midtools), or arrays in .npy or .npz. For
    any other layout of HDF5, including MATLAB v7.3, give --dataset; without it, the error message
    lists the candidates.

    By default, A0123_results.hdf is written to A0123_c2.zarr in the same folder. To give several values,
    repeat the option or separate them with commas. To continue an interrupted ingest, repeat the command.
    """
    require_addresses("an ingest", ADDRESSES)
    *first, last = sources
    # without --output the second of two is the store if it is no file
    if store is None and len(first) == 1 and not (isinstance(last, Path) and last.is_file()):
        sources, store = tuple(first), last
    files = [path_of("source", one) for one in sources]
    options |= {what: numbers_of_option(what, options[what]) for what in ("q", "phi", "sigma")}
    size = sum(path.stat().st_size for path in files if path.is_file())
    if scheduler is not None:
        workers = hd.connect(scheduler, key)
    else:
        workers = nullcontext() if size < MIN_BYTES_FOR_WORKERS else hd.local_cluster()
    try:
        with workers as client:
            report = hd.ingest(files, store, client=client, **options)
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted: the part of {files[0]} already written is kept; repeat the command to continue"
        ) from None
    if as_json:
        values = {"pairs": report.n_pairs, "already_complete": report.skipped}
        echo_json(store_values(hd.open_dataset(report.store)) | values)
        return
    echo(str(report))
