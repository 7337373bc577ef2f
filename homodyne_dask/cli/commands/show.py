"""homodyne-dask show: print the report of an earlier fit."""

from pathlib import Path

import click

from homodyne_dask.cli.printing import echo


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--pictures", is_flag=True, help="Draw the figures of the fit, or of each fit, into its report."
)
def show(folder: Path, pictures: bool) -> None:
    """Print the report of the fit or the series of fits in FOLDER."""
    from homodyne_dask.results.fit_result import load_result
    from homodyne_dask.results.series import JSON, load_series

    echo(str((load_series if (folder / JSON).exists() else load_result)(folder)))
    if pictures:
        from homodyne_dask.results.folder import SUMMARY, write_pictures

        for summary in [*folder.glob(SUMMARY), *sorted(folder.glob(f"*/{SUMMARY}"))]:
            echo(f"written: {', '.join(map(str, write_pictures(summary.parent)))}")
