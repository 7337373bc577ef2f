"""Print a page of the user guide."""

import click

from homodyne_dask.apps.guide import user_guide as guide
from homodyne_dask.cli.printing import echo
from homodyne_dask.errors import OptionError


def _pages(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    return [name for name in guide.PAGES if name.startswith(begun)]


@click.command()
@click.argument("page", required=False, shell_complete=_pages)
@click.option(
    "--search", metavar="WORDS", help="Print every paragraph of the guide with these words."
)
def explain(page: str | None, search: str | None) -> None:
    """Print PAGE of the user guide, or, without PAGE, the list of pages."""
    if search is not None:
        if page:
            raise OptionError("--search looks through all pages: leave out PAGE")
        echo(guide.search(search))
    elif page:
        echo(guide.page(page))
    else:
        echo(f"{guide.index()}\n\nhomodyne-dask explain PAGE prints one of them.")
