"""homodyne-dask explain: a page of the user guide."""

import click

from homodyne_dask.apps.guide import user_guide as guide
from homodyne_dask.cli.printing import echo


def _pages(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    return [name for name in guide.PAGES if name.startswith(begun)]


@click.command()
@click.argument("page", required=False, shell_complete=_pages)
def explain(page: str | None) -> None:
    """Print PAGE of the user guide, or, without PAGE, the list of pages."""
    if page:
        echo(guide.page(page))
        return
    echo(f"{guide.index()}\n\nhomodyne-dask explain PAGE prints one of them.")
