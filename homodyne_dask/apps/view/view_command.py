"""Show data, model and residuals on a web page."""

import asyncio
from typing import Any

import click

from homodyne_dask.cli.fit_config import EXCLUSION, FitConfig
from homodyne_dask.cli.path_arguments import ANY_PATH
from homodyne_dask.cli.shared_options import options_of, workers_of_options
from homodyne_dask.store.files import AnyPath


@click.command()
@click.argument("what", metavar="STORE|RESULT...", nargs=-1, required=True, type=ANY_PATH)
@options_of(FitConfig, EXCLUSION)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port; default: a free one.")
@click.option(
    "--open/--no-browser",
    "opens",
    default=None,
    help="Whether to open the page in a browser; default: yes if there is a display.",
)
def view(what: tuple[AnyPath, ...], port: int, opens: bool | None, **left_out: Any) -> None:
    """Show the matrices of STORE, or of a fit in the folder RESULT with model and residual, on a web page.

    Zoom in down to single pairs. Of several stores and results, and of a series, one is chosen on the page.
    The page is on this machine only, at the address that is printed; Ctrl-C ends it.

    \b
    homodyne-dask view A0123_fit
    homodyne-dask view A0123_fit A0124_fit
    homodyne-dask view A0123_fit_q
    """
    from homodyne_dask.apps.view import view_server  # lazy: it loads xarray and Bokeh

    exclude = workers_of_options(what[0], left_out).selection()["exclude"]
    asyncio.run(view_server.serve_page(view_server.sources_of(what, exclude), port, opens))
