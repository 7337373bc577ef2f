"""A document is made once, of sections of blocks; `plain_text` and `html` show it and know no fit."""

import struct
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

DPI = 200
"""Pixels per inch of a figure."""
FORMATS = ("png", "pdf", "svg")
"""Of the files of figures; pages show PNG."""
_CSS_INCH = 96
"""CSS pixels per inch."""


class Link(str):
    """A cell of a table that is a link on a page."""

    href: str
    """Where it leads, relative to the page, percent-encoded."""

    def __new__(cls, text: str, href: str) -> Self:
        """Return the text with its address."""
        link = super().__new__(cls, text)
        link.href = href
        return link


@dataclass(frozen=True)
class Outcome:
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
    """Names, and what there is to say of each."""

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Picture:
    """A figure with its caption and a text alternative."""

    title: str
    alt: str
    """Text alternative: what the figure shows, with the main numbers."""
    png: bytes

    @classmethod
    def drawn(cls, figure: Any, title: str, alt: str) -> Self:
        """Return a figure as notebooks show it."""
        return cls(title, alt, figure._repr_png_())

    @classmethod
    def in_file(cls, path: Path) -> Self:
        """Return the picture in a PNG file, whose metadata say what is drawn."""
        from PIL import Image

        with Image.open(path) as image:
            about = dict(image.info)
        return cls(about.get("Title", path.stem), about.get("Description", ""), path.read_bytes())

    @property
    def source(self) -> str:
        """The PNG as a data URI."""
        return f"data:image/png;base64,{b64encode(self.png).decode()}"

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in CSS pixels, so that text has the same size in all figures."""
        width, height = struct.unpack(">II", self.png[16:24])  # of the header of a PNG file
        return round(width * _CSS_INCH / DPI), round(height * _CSS_INCH / DPI)


@dataclass(frozen=True)
class Pictures:
    """Figures, which only pages show; note: a sentence below them, or in their place."""

    pictures: Sequence[Picture]
    note: str = ""


type Block = Outcome | Sentences | Table | Facts | Pictures


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
    """A document, to be shown as text, as a page or in a notebook."""

    title: str
    sections: Sequence[Section]
    more: str = ""
    """The last line of the short text: how to see the details."""


def table_document(
    caption: str, rows: Sequence[Sequence[str]], left: int = 1, notes: Sequence[str] = ()
) -> Document:
    """Return a document of one table and notes on it."""
    return Document("", [Section("", [Table(caption, rows, left), Sentences(notes)])])
