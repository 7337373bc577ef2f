"""homodyne-dask compare: which of several finished fits the data prefer."""

import click

from homodyne_dask.cli.printing import AS_JSON, echo, echo_json
from homodyne_dask.cli.shared_options import ANY_PATH
from homodyne_dask.store.files import AnyPath


@click.command()
@click.argument("fits", metavar="FIT FIT...", nargs=-1, required=True, type=ANY_PATH)
@AS_JSON
def compare(fits: tuple[AnyPath, ...], as_json: bool) -> None:
    """Compare the fits in the folders FIT, of several models to the same data, by angles left out.

    No data are read. `homodyne-dask explain models` says what the columns mean.
    """
    from homodyne_dask.results.files.saved_results import compare as compare_fits

    found = compare_fits(list(fits))
    if as_json:
        echo_json(found.to_dict())
    else:
        echo(str(found))
