"""HTML from templates: documents as pages and for notebooks, and the pages of applications.

A value in a template is escaped unless it is markupsafe's `Markup`.
"""

import re
from functools import cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from homodyne_dask.document import blocks
from homodyne_dask.document.blocks import Block, Document, Section
from homodyne_dask.errors import printable

_PACKAGE = "homodyne_dask.document"
_COMMAND = re.compile("`([^`\n]+)`")


def as_page(document: Document, reload: float | None = None) -> str:
    """Return a document as one self-contained HTML file; reload: seconds until a browser reads it again."""
    return _render(document, "page.html", reload=reload)


def as_fragment(document: Document) -> str:
    """Return a document as an HTML fragment for Jupyter."""
    return _render(document, "fragment.html")


def render(package: str, template: str, /, **values: object) -> str:
    """Return a template of a package filled with values; it may use those of documents, too."""
    return _environment(package).get_template(template).render(values)


def with_commands(value: Any) -> Any:
    """Return text with what stands between backticks as code; HTML stays as it is."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return Markup(_COMMAND.sub(r"<code>\1</code>", str(escape(printable(value)))))


def _render(document: Document, template: str, **values: object) -> str:
    bodies = ((section, _body(section)) for section in document.sections)
    shown = [
        (re.sub(r"\W+", "-", section.heading.lower()), section, body)
        for section, body in bodies
        if body
    ]
    return render(_PACKAGE, template, title=document.title, sections=shown, **values)


def _body(section: Section) -> Markup:
    return Markup("\n").join(filter(None, map(_block, section.blocks)))


def _block(block: Block) -> Markup:
    macros: Any = _environment(_PACKAGE).get_template("macros.html").module
    match block:
        case blocks.Outcome():
            return macros.outcome(block)
        case blocks.Sentences():
            return macros.paragraphs(block.sentences)
        case blocks.Table():
            return macros.table(block.caption, block.rows, block.left)
        case blocks.Facts():
            return macros.items(block.rows)
        case blocks.Pictures():
            return macros.pictures(block)


def _printable(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return (Markup if isinstance(value, Markup) else str)(printable(value))


@cache
def _environment(package: str) -> Environment:
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in dict.fromkeys((package, _PACKAGE))]),
        autoescape=True,
        finalize=_printable,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["with_commands"] = with_commands
    return environment
