"""homodyne-dask ingest: convert a result file to a Zarr store."""

from contextlib import AbstractContextManager, nullcontext
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


LAYOUT = (
    "trains",
    "average",
    "dataset",
    "q_dataset",
    "phi_dataset",
    "time_dataset",
    "axes",
    "half",
)


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
@click.option("--q", multiple=True, help="1/Å; for plain arrays, one number or one per bin.")
@click.option("--phi", multiple=True, help="Degrees; for plain arrays, one number or one per bin.")
@click.option(
    "--dt", "--frame-time", "frame_time", type=float, help="Time between stored frames in seconds."
)
@click.option(
    "--sigma",
    multiple=True,
    help="Standard deviation of c2 of one pair: one number or one per bin.",
)
@click.option(
    "--time-offset",
    type=float,
    default=0.0,
    help="Seconds between loading the sample and the first frame.",
)
@click.option("--gap", help='Gap between the plates with its unit: "200 um"; stored with the data.')
@click.option(
    "--trains",
    help="First train, counted from 0, and the one after the last: 0:500; for files with one matrix per "
    "train.",
)
@click.option(
    "--dataset", help="Name of the matrices in an HDF5 file or .npz of any layout: /data/c2."
)
@click.option("--q-dataset", help="Name of the dataset of q, with --dataset.")
@click.option("--phi-dataset", help="Name of the dataset of φ, with --dataset.")
@click.option(
    "--time-dataset",
    help="Name of the dataset of frame times, or of their spacing, in s, with --dataset.",
)
@click.option(
    "--axes",
    help="Axes of the matrices, with t for both time axes, if they are not detected: t,t,q.",
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
    help="Reject a file that has a bin without data, instead of leaving out the bin.",
)
@click.option("--overwrite", is_flag=True, help="Replace a store that has different contents.")
@click.option("--scheduler", help="Address of a running Dask scheduler: tls://host:8786.")
@click.option("--key", help="Folder with the key of the scheduler; none: unencrypted.")
@AS_JSON
def ingest(
    sources: tuple[AnyPath, ...],
    store: AnyPath | None,
    overwrite: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Write the two-time correlations in SOURCE to a Zarr STORE.

    Several files, with --output, are repeats of one measurement: the store contains the bins of all.

    SOURCE is an HDF5 file (APS-U, APS legacy, NXxpcs, CHX, ESRF, midtools), or arrays in .npy or .npz. For
    any other layout of HDF5, including MATLAB v7.3, give --dataset; without it, the error message
    lists the candidates.

    By default A0123_results.hdf is written to A0123_c2.zarr in the same folder. To give several values,
    repeat the option or separate them by commas. To continue an interrupted ingest, repeat the command.
    """
    require_addresses("an ingest", ADDRESSES)
    files, store = _sources_and_store(sources, store)
    q, phi, sigma = (numbers_of_option(what, options[what]) for what in ("q", "phi", "sigma"))
    try:
        with _workers(files, options["scheduler"], options["key"]) as client:
            report = hd.ingest(
                files, store, q=q, phi=phi, sigma=sigma, gap=options["gap"],
                frame_time=options["frame_time"], time_offset=options["time_offset"],
                sharded=options["sharded"], strict=options["strict"], overwrite=overwrite, client=client,
                **{name: options[name] for name in LAYOUT},
            )  # fmt: skip
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted: the part of {files[0]} already written is kept; repeat the command to continue"
        ) from None
    if as_json:
        values = {"pairs": report.n_pairs, "already_complete": report.skipped}
        echo_json(store_values(hd.open_dataset(report.store)) | values)
        return
    echo(str(report))


def _sources_and_store(
    given: tuple[AnyPath, ...], store: AnyPath | None
) -> tuple[list[Path], AnyPath | None]:
    """Return the files and the store; without --output the second of two is the store if it is no file."""
    *first, last = given
    if store is None and len(first) == 1 and not (isinstance(last, Path) and last.is_file()):
        given, store = tuple(first), last
    return [path_of("source", one) for one in given], store


def _workers(
    files: list[Path], scheduler: str | None, key: str | None
) -> AbstractContextManager[Any]:
    """Return a context with the Dask client to write with, None for small files."""
    size = sum(path.stat().st_size for path in files if path.is_file())
    if scheduler is None and size < MIN_BYTES_FOR_WORKERS:
        return nullcontext()
    return hd.connect(scheduler, key) if scheduler is not None else hd.local_cluster()
