"""homodyne-dask explain: a page of the user guide."""

import click


@click.command()
@click.argument("page", required=False)
def explain(page: str | None) -> None:
    """Print a PAGE of the user guide: conventions, scaling, errors or undetermined."""
    import inspect

    from homodyne_dask.cli import guide

    click.echo(guide.page(page) if page else inspect.getdoc(guide))
