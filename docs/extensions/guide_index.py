"""The list of the guide's pages, README.md, is also their table of contents on the site."""

from typing import Any

from sphinx.application import Sphinx

from homodyne_dask.apps.guide import user_guide as guide


def _add_contents(_app: Sphinx, docname: str, source: list[str]) -> None:
    if docname == "README":
        source[0] += "\n".join(["", "```{toctree}", ":hidden:", "", *guide.PAGES, "```", ""])


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the table of contents when the list is read."""
    app.connect("source-read", _add_contents)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
