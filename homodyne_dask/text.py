"""Tables, lines and sizes as text.

The tables of rich would fold cells at the width of a terminal, and its import takes 40 ms."""

import textwrap
from collections.abc import Iterable, Sequence
from math import isfinite

from homodyne_dask.errors import in_line, printable

MAX_LINES = 20
"""Most lines of the representation of an object."""
MAX_WIDTH = 100
"""Most letters of a line of sentences."""


def printed_lines(lines: Iterable[str]) -> str:
    """Return lines as text: what files bring into one of them begins no other."""
    return "\n".join(map(in_line, lines))


def abridged(text: str) -> str:
    """Return a text of at most MAX_LINES lines, the last of which says how many are missing."""
    lines = text.splitlines()
    if len(lines) <= MAX_LINES:
        return text
    last_line = f"... {len(lines) - MAX_LINES + 1} more lines: print the object to see all"
    return "\n".join([*lines[: MAX_LINES - 1], last_line])


def aligned_columns(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Return a table, a line for each row; its first `left` columns begin at the left."""
    rows = [[in_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    form = "  ".join(f"{{:{'<' if n < left else '>'}{width}}}" for n, width in enumerate(widths))
    return [form.format(*row).rstrip() for row in rows]


def wrapped(head: str, sentences: Sequence[str]) -> list[str]:
    """Return each sentence after `head`, in lines of MAX_WIDTH; below it, if it ends in two spaces."""
    indent = " " * (len(head) if head.endswith("  ") else 2) if head else ""
    wrapper = textwrap.TextWrapper(
        MAX_WIDTH, head, indent, break_long_words=False, break_on_hyphens=False
    )
    paragraphs = (wrapper.wrap(" ".join(printable(sentence).split())) for sentence in sentences)
    return [line for lines in paragraphs for line in lines or [head.rstrip()]]


def counted(number: int, noun: str) -> str:
    """Return '1 frame', '3 frames', '12,000 frames'."""
    return f"{number:,} {noun}{'s' * int(number != 1)}"


def shown_ranges(ranges: Sequence[Sequence[int]], noun: str = "more") -> str:
    """Return ranges (first, after the last) as '51 to 60, 99', the first dozen of them."""
    return some_of([f"{a} to {b - 1}" if b - a > 1 else str(a) for a, b in ranges], 12, noun)


def some_of(words: Sequence[str], most: int, noun: str = "more") -> str:
    """Return the first words of a list, and how many follow: 'D0, alpha and 3 more'."""
    return ", ".join(words[:most]) + f" and {len(words) - most} {noun}" * (len(words) > most)


def with_unit(text: str, unit: str) -> str:
    """Return '2500 Å²/s', '30 degrees', or the text alone for a quantity without a unit."""
    return f"{text} {'degrees' if unit == 'degree' else unit}".rstrip()


def in_brackets(text: str, unit: str) -> str:
    """Return 'D0 [Å²/s]', or the text alone for a quantity without a unit."""
    return f"{text} [{unit}]" if unit else text


def size(count: float) -> str:
    """Return bytes in decimal units, as the settings of sites and dask.utils.parse_bytes read them.

    dask.utils.format_bytes writes binary units: a worker of 2 GB would appear as 1.86 GiB.
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def known_number(value: float, form: str) -> str:
    """Return a number in a table, or 'unknown' if it is not finite."""
    return format(value, form) if isfinite(value) else "unknown"


def joined_with_and(names: Sequence[str]) -> str:
    """Return names as a list in words: 'D0, alpha and beta'."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
