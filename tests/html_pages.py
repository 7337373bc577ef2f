"""Pages of HTML, read as a browser reads them, and text that must stay text on them."""

from html.parser import HTMLParser

VOID = ("img", "meta")
BLOCKS = (
    "h1", "h2", "p", "li", "tr", "caption", "dt", "dd", "summary", "figcaption", "title", "nav",
)  # fmt: skip

NASTY = '<script>alert("x")</script> & \' "'


class ParsedPage(HTMLParser):
    """A page as a tree that is checked while it is read, and as lines of text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.lines: list[str] = [""]
        self.feed(html)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in BLOCKS:
            self.lines.append(f"{tag}: ")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open and data.strip():
            apart = self.open[-1:] in (["td"], ["th"], ["a"]) and not self.lines[-1].endswith(": ")
            self.lines[-1] += f" | {data}" if apart else data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines if line.strip()) + "\n"
