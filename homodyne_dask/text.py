"""Tables as text and as HTML for Jupyter."""

from collections.abc import Sequence

from markupsafe import Markup

from homodyne_dask.errors import printable

MAX_LINES = 20
"""Most lines of the representation of an object."""
_LEFT = Markup(' style="text-align: left; white-space: nowrap"')


def abridged(text: str, most: int = MAX_LINES) -> str:
    """Return a text of at most so many lines, the last of which says how many are missing."""
    lines = text.splitlines()
    if len(lines) <= most:
        return text
    return "\n".join(
        [*lines[: most - 1], f"... {len(lines) - most + 1} more lines: print it for all"]
    )


def lines_of(rows: Sequence[tuple[str, str]]) -> str:
    """Return names and what belongs to them, a line each."""
    return "\n".join(f"{name:<18} {value}" for name, value in rows)


def size(count: float) -> str:
    """Return bytes in decimal units, as the settings of sites and dask.utils.parse_bytes read them.

    dask.utils.format_bytes writes binary units: a worker of 2 GB would appear as 1.86 GiB.
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def html_table(
    caption: str, rows: Sequence[Sequence[str]], notes: Sequence[str] = (), *, header: bool = True
) -> str:
    """Return rows as an HTML table, every cell escaped; header: whether the first row is one.

    Without it the rows are names with texts, which notebooks would align to the right as numbers.
    """
    lines = [
        _row("th" if header and n == 0 else "td", row, "" if header else _LEFT)
        for n, row in enumerate(rows)
    ]
    items = (Markup("<li>{}</li>").format(printable(note)) for note in notes)
    return Markup("<table><caption{}>{}</caption>{}</table>{}").format(
        _LEFT,
        printable(caption),
        Markup("").join(lines),
        Markup("<ul>{}</ul>").format(Markup("").join(items)) if notes else "",
    )


def _row(tag: str, cells: Sequence[str], style: str) -> Markup:
    each = (
        Markup("<{0}{1}>{2}</{0}>").format(Markup(tag), style, printable(cell)) for cell in cells
    )
    return Markup("<tr>{}</tr>").format(Markup("").join(each))
