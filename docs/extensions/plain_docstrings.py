"""Docstrings of this project, which are plain text, as reStructuredText.

Paragraphs stay, lists of `name: text` with their next lines indented become lists of parameters, what is
indented as a whole and examples (`>>>`) are shown as they are, and `code` between backquotes is code.
"""

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ITEM = re.compile(r"(\w+(?:, \w+)*)(?: \[([^\]]+)\])?: (\S.*)")
"""`name: text` or `name [unit]: text`."""


def converted(lines: list[str]) -> list[str]:
    """Return a docstring as reStructuredText."""
    found: list[str] = []
    for block in _blocks(lines):
        found += [*_converted_block(block), ""]
    return found


def _blocks(lines: list[str]) -> list[list[str]]:
    """Return the parts of a text between empty lines; an example keeps its own."""
    blocks: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    return [block for block in blocks if block]


def _converted_block(block: list[str]) -> list[str]:
    if block[0].startswith(">>>"):
        return block
    if all(line.startswith("    ") for line in block):
        return ["::", "", *block]
    if items := _items(block):
        return [f":param {name}: {_inline(text)}" for name, text in items]
    return [_inline(" ".join(block))]


def _items(block: list[str]) -> list[tuple[str, str]] | None:
    """Return names and texts of a list of parameters; None where a block is something else."""
    items: list[tuple[str, str]] = []
    for line in block:
        if line.startswith("    ") and items:
            name, text = items[-1]
            items[-1] = (name, f"{text} {line.strip()}")
        elif found := ITEM.fullmatch(line):
            name, unit, text = found.groups()
            items.append((name, f"[{unit}] {text}" if unit else text))
        else:
            return None
    return items


def _inline(text: str) -> str:
    """Return a line in which backquotes mark code and nothing else is markup."""
    parts = re.split(r"`([^`]+)`", text)
    return "".join(
        f"``{part}``" if at % 2 else re.sub(r"([*|\\_])", r"\\\1", part)
        for at, part in enumerate(parts)
    )


def _process(
    _app: "Sphinx", _what: str, _name: str, _obj: Any, _options: Any, lines: list[str]
) -> None:
    lines[:] = converted(lines)


def setup(app: "Sphinx") -> dict[str, Any]:
    """Convert every docstring before sphinx reads it."""
    app.connect("autodoc-process-docstring", _process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
