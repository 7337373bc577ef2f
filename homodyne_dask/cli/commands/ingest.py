"""homodyne-dask ingest: convert a result file to a Zarr store."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

import homodyne_dask as hd
from homodyne_dask.cli.commands.info import store_values
from homodyne_dask.cli.exit_status import Interrupted
from homodyne_dask.cli.fit_config import PathOrUrl
from homodyne_dask.cli.path_arguments import ANY_PATH
from homodyne_dask.cli.printing import AS_JSON, echo, echo_json
from homodyne_dask.cli.shared_options import given_of, options_of
from homodyne_dask.cluster.workers import require_addresses
from homodyne_dask.request.ingest_options import IngestOptions
from homodyne_dask.request.options import option
from homodyne_dask.store.files import AnyPath, path_of

MIN_BYTES_FOR_WORKERS = 500_000_000
"""Bytes of source from which on workers are started; for less, two threads are faster."""

ADDRESSES = 600_000_000
"""Bytes of address space that an ingest reserves: libraries, and 75 MB for each of its threads."""


class FileOptions(IngestOptions):
    """How a file is read, and whether it may have bins without data."""

    strict: bool = option(False)
    """Reject a file with a bin that contains no data, instead of leaving out the bin."""


class IngestCommandOptions(FileOptions):
    """Options of an ingest, by their names in `hd.ingest`, and of its workers."""

    store: PathOrUrl | None = option(None, names=("--output", "-o"))
    """Name of the store; required for several files."""
    gap: str | None = option(None)  # pyright: ignore[reportIncompatibleVariableOverride] - with its unit
    """Gap between the plates with its unit, such as "200 um"; stored with the data."""
    sharded: bool | None = option(None)
    """Whether to store many chunks per file (Zarr shards); default: at a URL, and for many small bins."""
    overwrite: bool = option(False)
    """Replace a store that has different contents."""
    scheduler: str | None = option(None)
    """Address of a running Dask scheduler, such as tls://host:8786."""
    key: str | None = option(None)
    """Folder of the scheduler's TLS key, or none for an unencrypted scheduler."""


@click.command()
@click.argument("sources", type=ANY_PATH, nargs=-1, required=True, metavar="SOURCE... [STORE]")
@options_of(IngestCommandOptions)
@AS_JSON
def ingest(sources: tuple[AnyPath, ...], as_json: bool, **typed: Any) -> None:
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
    options = IngestCommandOptions(**given_of(typed)).model_dump()
    *first_sources, last_source = sources
    # without --output the second of two is the store if it is no file
    is_file = isinstance(last_source, Path) and last_source.is_file()
    if options["store"] is None and len(first_sources) == 1 and not is_file:
        sources, options["store"] = tuple(first_sources), last_source
    files = [path_of("source", source) for source in sources]
    size = sum(path.stat().st_size for path in files if path.is_file())
    scheduler, key = options.pop("scheduler"), options.pop("key")
    if scheduler is not None:
        workers = hd.connect(scheduler, key)
    else:
        workers = nullcontext() if size < MIN_BYTES_FOR_WORKERS else hd.local_cluster()
    try:
        with workers as client:
            report = hd.ingest(files, client=client, **options)
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted: the part of {files[0]} already written is kept; repeat the command to continue"
        ) from None
    if as_json:
        values = {"pairs": report.n_pairs, "already_complete": report.skipped}
        echo_json(store_values(hd.open_dataset(report.store)) | values)
        return
    echo(str(report))
