"""HTML from values: whatever is not `Html` already is escaped, so no value can end up as markup."""

from collections.abc import Sequence
from html import escape

VOID = ("img", "meta")
"""Elements without an end."""


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(tag: str, *inside: object, **attributes: object) -> Html:
    """Return one element; attributes with a trailing or inner '_' lose it or get '-'; None is left out."""
    given = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in VOID:
        return Html(f"<{tag}{given}>")
    return Html(f"<{tag}{given}>{joined(*inside)}</{tag}>")


def joined(*parts: object) -> Html:
    """Return parts one after the other, escaped where they are not HTML."""
    return Html("".join(part if isinstance(part, Html) else escape(str(part)) for part in parts))


def table(caption: str, rows: Sequence[Sequence[object]], left: int = 1) -> Html:
    """Return a table: the first row and the first column are its heads, `left` columns hold words.

    It scrolls by itself where it is too wide for the page, by keyboard too.
    """
    head, *body = rows
    cells = [
        element("tr", *(_cell(n, cell, "th", "col", left) for n, cell in enumerate(head))),
        *(
            element("tr", *(_cell(n, c, "th" if n == 0 else "td", "row", left) for n, c in enumerate(row)))
            for row in body
        ),
    ]  # fmt: skip
    inside = element(
        "table",
        element("caption", caption),
        element("thead", cells[0]),
        element("tbody", *cells[1:]),
    )
    return element("div", inside, class_="wide", tabindex=0, role="region", aria_label=caption)


def _cell(column: int, value: object, tag: str, scope: str, left: int) -> Html:
    kind = None if column < left else "number"
    return element(tag, value, scope=scope if tag == "th" else None, class_=kind)


def items(pairs: Sequence[tuple[str, object]]) -> Html:
    """Return names and what belongs to them."""
    return element(
        "dl", *(joined(element("dt", name), element("dd", value)) for name, value in pairs)
    )


def listed(sentences: Sequence[object], **attributes: object) -> Html:
    """Return a list of sentences, nothing for none."""
    if not sentences:
        return Html("")
    return element("ul", *(element("li", sentence) for sentence in sentences), **attributes)
