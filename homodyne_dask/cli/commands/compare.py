"""homodyne-dask compare: which of several finished fits the data prefer."""

from pathlib import Path

import click

import homodyne_dask as hd
from homodyne_dask.cli.path_arguments import LOCAL_PATH
from homodyne_dask.cli.printing import AS_JSON, echo_found


@click.command()
@click.argument("fits", metavar="FIT FIT...", nargs=-1, required=True, type=LOCAL_PATH)
@AS_JSON
def compare(fits: tuple[Path, ...], as_json: bool) -> None:
    """Compare fits of several models to the same data, in the folders FIT, by how well each predicts an angle
    left out of the fit, or for fewer than eight independent bins by an information criterion.

    No data are read. `homodyne-dask explain comparing` explains the columns.
    """
    echo_found(hd.compare(list(fits)), as_json)
