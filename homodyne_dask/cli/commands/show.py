"""homodyne-dask show: print the report of an earlier fit."""

from pathlib import Path

import click

import homodyne_dask as hd
from homodyne_dask.cli.path_arguments import LOCAL_PATH, STORE, WITH_STORE, require_one_fit
from homodyne_dask.cli.printing import AS_JSON, echo, echo_json
from homodyne_dask.cli.shared_options import PicturesCommand
from homodyne_dask.document.blocks import FORMATS, as_text
from homodyne_dask.errors import in_line
from homodyne_dask.store.files import AnyPath


@click.command(cls=PicturesCommand)
@click.argument("folder", type=LOCAL_PATH)
@AS_JSON
@click.option("--all", "all_details", is_flag=True, help="Print all details, as in report.txt.")
@click.option("--latex", "table", flag_value="latex", help="Print a table for a paper, 8810(380).")
@click.option(
    "--markdown", "table", flag_value="markdown", help="Print the same table in Markdown."
)
@click.option(
    "--ci", type=click.FloatRange(1, 100, max_open=True),
    help="Also print confidence intervals of this level in per cent, such as 95.",
)  # fmt: skip
@click.option(
    "--pictures", type=click.Choice(FORMATS),
    help="Add the figures of the fit, or of each fit, to its report, and write them in this format, too; "
    "default: png.",
)  # fmt: skip
@STORE
def show(
    folder: Path,
    as_json: bool,
    all_details: bool,
    table: str | None,
    ci: float | None,
    pictures: str | None,
    store: AnyPath | None,
) -> None:
    """Print the report of the fit or the series of fits in FOLDER."""
    from homodyne_dask.results.saved_results import SERIES, draw_saved  # lazy: it loads xarray
    from homodyne_dask.results.views.report_content import intervals_of  # lazy: and models

    of_series = (folder / SERIES).is_file()
    if not of_series:
        require_one_fit(folder)
    saved = hd.load_series(folder) if of_series else hd.load_result(folder)
    if as_json:
        echo_json(saved.to_dict())
    elif table:
        echo(saved.to_latex() if table == "latex" else saved.to_markdown())
    else:
        echo(saved.report(all_details))
    if ci is not None and not as_json:
        echo(f"\n{as_text(intervals_of(saved, ci))}")
    if pictures:
        for files in draw_saved(folder, store, pictures, WITH_STORE):
            echo(f"written: {in_line(', '.join(map(str, files)))}")
