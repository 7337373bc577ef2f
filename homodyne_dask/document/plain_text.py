"""A document as text, in lines of at most `text.MAX_WIDTH` letters."""

from collections.abc import Iterator, Sequence

from homodyne_dask.document import blocks
from homodyne_dask.document.blocks import Block, Document, Section
from homodyne_dask.text import MAX_WIDTH, abridged, aligned_columns, printed_lines, wrapped


class Printed:
    """What shows itself as a document: `print` as text, `repr` the first lines of it, Jupyter as HTML."""

    def _document(self) -> Document:
        raise NotImplementedError

    def __str__(self) -> str:
        return as_text(self._document())

    def __repr__(self) -> str:
        return abridged(str(self))

    def _repr_html_(self) -> str:
        from homodyne_dask.document.html import as_fragment  # it loads jinja2

        return as_fragment(self._document())


class Reportable(Printed):
    """What shows itself as a report whose details `print` leaves out."""

    def report(self, all: bool = False) -> str:
        """Return the report as text: the short one, or with all details."""
        return as_text(self._document(), all)


def as_text(document: Document, all: bool = False) -> str:
    """Return a document as text, its sections separated by empty lines; all: with its details."""
    parts = [[document.title]] if document.title else []
    parts += [_section(section) for section in document.sections if all or not section.detail]
    if document.more and not all:
        parts.append(wrapped("", [document.more]))
    return "\n\n".join(printed_lines(part) for part in parts if part)


def _section(section: Section) -> list[str]:
    lines: list[str] = []
    for block in section.blocks:
        shown = _block(block)
        apart = isinstance(block, blocks.Table) and lines and shown
        lines += ["", *shown] if apart else shown
    return lines


def _block(block: Block) -> list[str]:
    match block:
        case blocks.Outcome():
            lines = wrapped("", [block.sentence])
            for severity, sentence in block.findings:
                lines += wrapped(f"{severity}: ", [sentence])
            return lines
        case blocks.Sentences():
            return wrapped("", block.sentences)
        case blocks.Table():
            return _table(block)
        case blocks.Facts():
            width = max((len(name) for name, _ in block.rows), default=0) + 2
            return [
                line for name, text in block.rows for line in wrapped(f"{name:<{width}}", [text])
            ]
        case blocks.Pictures():
            return []


def _table(table: blocks.Table) -> list[str]:
    """Return a table; one that is too wide is cut between columns, and each part has the first column."""
    if len(table.rows) < 2:
        return []
    parts = []
    for columns in _columns_per_part(table.rows):
        left = sum(n < table.left for n in columns)
        parts.append(aligned_columns([[row[n] for n in columns] for row in table.rows], left))
    lines = [line for part in parts for line in ["", *part]]
    return [*filter(None, [table.caption]), *lines[1:]]


def _columns_per_part(rows: Sequence[Sequence[str]]) -> Iterator[list[int]]:
    widths = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)]
    columns = [0]
    for n in range(1, len(widths)):
        if len(columns) > 1 and sum(widths[c] for c in [*columns, n]) - 2 > MAX_WIDTH:
            yield columns
            columns = [0]
        columns.append(n)
    yield columns
