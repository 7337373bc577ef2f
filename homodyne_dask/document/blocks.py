"""Documents: sections of blocks, shown as text and as HTML, which know no fit.

HTML is made from templates: a value in one is escaped unless it is markupsafe's `Markup`."""

import re
import struct
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from markupsafe import Markup, escape

from homodyne_dask.errors import printable
from homodyne_dask.text import MAX_WIDTH, abridged, aligned_columns, printed_lines, wrapped

DPI = 200
"""Pixels per inch of a figure."""
FORMATS = ("png", "pdf", "svg")
"""Of the files of figures; pages show PNG."""
_CSS_INCH = 96
"""CSS pixels per inch."""

if TYPE_CHECKING:
    from jinja2 import Environment


class Link(str):
    """A cell of a table that is a link on a page."""

    href: str
    """Where it leads, relative to the page, percent-encoded."""

    def __new__(cls, text: str, href: str) -> Self:
        link = super().__new__(cls, text)
        link.href = href
        return link


@dataclass(frozen=True)
class Verdict:
    """How something ended, and what has to be known about it."""

    good: bool
    sentence: str
    findings: Sequence[tuple[str, str]] = ()
    """Severity ('warning', 'note', ...) and sentence of each."""


@dataclass(frozen=True)
class Sentences:
    """Sentences, a paragraph each. `command` is code."""

    sentences: Sequence[str]


@dataclass(frozen=True)
class Table:
    """A table, its header first; it is not shown without further rows."""

    caption: str
    rows: Sequence[Sequence[str]]
    left: int = 1
    """How many of the first columns contain words, which are aligned to the left."""


@dataclass(frozen=True)
class Facts:
    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Picture:
    title: str
    alt: str
    png: bytes

    @classmethod
    def drawn(cls, figure: Any, title: str, alt: str) -> Self:
        return cls(title, alt, figure._repr_png_())

    @classmethod
    def in_file(cls, path: Path) -> Self:
        """Return the picture in a PNG file, whose metadata say what is drawn."""
        from PIL import Image

        with Image.open(path) as image:
            tags = dict(image.info)
        return cls(tags.get("Title", path.stem), tags.get("Description", ""), path.read_bytes())

    @property
    def source(self) -> str:
        return f"data:image/png;base64,{b64encode(self.png).decode()}"

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in CSS pixels, so that text has the same size in all figures."""
        width, height = struct.unpack(">II", self.png[16:24])  # of the header of a PNG file
        return round(width * _CSS_INCH / DPI), round(height * _CSS_INCH / DPI)


@dataclass(frozen=True)
class Figures:
    """Figures, which only pages show; note: a sentence below them, or in their place."""

    pictures: Sequence[Picture]
    note: str = ""


type Block = Verdict | Sentences | Table | Facts | Figures


@dataclass(frozen=True)
class Section:
    """Blocks under a heading; a section whose blocks are all empty is not shown."""

    heading: str
    """On pages; in text, the captions of tables are enough."""
    blocks: Sequence[Block]
    detail: bool = False
    """Whether it is left out of the short text, and folded in HTML."""


@dataclass(frozen=True)
class Document:
    title: str
    sections: Sequence[Section]
    hint: str = ""
    """The last line of the short text: how to see the details."""


def table_document(
    caption: str, rows: Sequence[Sequence[str]], left: int = 1, notes: Sequence[str] = ()
) -> Document:
    return Document("", [Section("", [Table(caption, rows, left), Sentences(notes)])])


class Printed:
    """What shows itself as a document: `print` as text, `repr` the first lines of it, Jupyter as HTML."""

    def _document(self) -> Document:
        raise NotImplementedError

    def __str__(self) -> str:
        return as_text(self._document())

    def __repr__(self) -> str:
        return abridged(str(self))

    def _repr_html_(self) -> str:
        return as_fragment(self._document())


class Reportable(Printed):
    """What shows itself as a report whose details `print` leaves out."""

    def report(self, all: bool = False) -> str:
        """Return the report as text: the short one, or with all details."""
        return as_text(self._document(), all)


def as_text(document: Document, all: bool = False) -> str:
    """Return a document as text, its sections separated by empty lines; all: with its details."""
    blocks = [[document.title]] if document.title else []
    blocks += [_section(section) for section in document.sections if all or not section.detail]
    if document.hint and not all:
        blocks.append(wrapped("", [document.hint]))
    return "\n\n".join(printed_lines(lines) for lines in blocks if lines)


def _section(section: Section) -> list[str]:
    lines: list[str] = []
    for block in section.blocks:
        lines_of_block = _block(block)
        needs_space = isinstance(block, Table) and lines and lines_of_block
        lines += ["", *lines_of_block] if needs_space else lines_of_block
    return lines


def _block(block: Block) -> list[str]:
    match block:
        case Verdict():
            named = [(f"{severity}: ", sentence) for severity, sentence in block.findings]
            named.insert(0, ("", block.sentence))
        case Sentences():
            named = [("", sentence) for sentence in block.sentences]
        case Facts():
            width = max((len(name) for name, _ in block.rows), default=0) + 2
            named = [(f"{name:<{width}}", text) for name, text in block.rows]
        case Table():
            return _table(block)
        case Figures():
            return []
    return [line for name, sentence in named for line in wrapped(name, [sentence])]


def _table(table: Table) -> list[str]:
    """Return a table; one that is too wide is cut between columns, and each part has the first column."""
    if len(table.rows) < 2:
        return []
    widths = [max(map(len, column)) + 2 for column in zip(*table.rows, strict=True)]
    cuts = [[0]]
    for n in range(1, len(widths)):
        if len(cuts[-1]) > 1 and sum(widths[c] for c in [*cuts[-1], n]) - 2 > MAX_WIDTH:
            cuts.append([0])
        cuts[-1].append(n)
    lines: list[str] = []
    for columns in cuts:
        n_left = sum(n < table.left for n in columns)
        rows = [[row[n] for n in columns] for row in table.rows]
        lines += ["", *aligned_columns(rows, n_left)]
    return [*filter(None, [table.caption]), *lines[1:]]


_PACKAGE = "homodyne_dask.document"
_COMMAND = re.compile("`([^`\n]+)`")


def as_page(document: Document, reload: float | None = None) -> str:
    """Return a document as one self-contained HTML file; reload: seconds until a browser reads it again."""
    return _render(document, "page.html", reload=reload)


def as_fragment(document: Document) -> str:
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
    sections = []
    for section in document.sections:
        if body := Markup("\n").join(filter(None, map(_html_of, section.blocks))):
            sections.append((re.sub(r"\W+", "-", section.heading.lower()), section, body))
    return render(_PACKAGE, template, title=document.title, sections=sections, **values)


def _html_of(block: Block) -> Markup:
    macros: Any = _environment(_PACKAGE).get_template("macros.html").module
    match block:
        case Verdict():
            return macros.outcome(block)
        case Sentences():
            return macros.paragraphs(block.sentences)
        case Table():
            return macros.table(block.caption, block.rows, block.left)
        case Facts():
            return macros.items(block.rows)
        case Figures():
            return macros.pictures(block)


def _printable(value: Any) -> Any:
    text = printable(value) if isinstance(value, str) else value
    return Markup(text) if isinstance(value, Markup) else text


@cache
def _environment(package: str) -> "Environment":
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    loader = ChoiceLoader([PackageLoader(name) for name in dict.fromkeys((package, _PACKAGE))])
    look: dict[str, Any] = {
        "trim_blocks": True,
        "lstrip_blocks": True,
        "undefined": StrictUndefined,
    }
    environment = Environment(loader=loader, autoescape=True, finalize=_printable, **look)
    environment.filters["with_commands"] = with_commands
    return environment
