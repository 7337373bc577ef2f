"""homodyne-dask info: the contents of a store."""

from pathlib import Path

import click

from homodyne_dask.cli.printing import echo


@click.command()
@click.argument("store", type=click.Path(path_type=Path))
def info(store: Path) -> None:
    """Print the bins of STORE (label, q, φ, pixels, σ) and the file they were ingested from."""
    from homodyne_dask.store.scan import open_dataset

    scan = open_dataset(store)
    attrs, gap = scan.attrs, scan.attrs["gap_angstrom"]
    echo(str(scan))
    echo(
        f"from {attrs['source_file']} ({attrs['source_format']}), "
        f"SHA-256 {attrs['source_sha256'][:12]}, frames of {attrs['frame_time']:g} s, "
        + (f"gap {gap / 1e4:g} um" if gap else "no gap")
    )
