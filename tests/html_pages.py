"""Pages of HTML, read as a browser reads them, and text that must stay text on them."""

import socket
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
        self.said: list[str] = []
        """All text but that of styles."""
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
            self.said.append(data)
            apart = self.open[-1:] in (["td"], ["th"], ["a"]) and not self.lines[-1].endswith(": ")
            self.lines[-1] += f" | {data}" if apart else data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines if line.strip()) + "\n"


LARGE = {
    "announced": ("Content-Length: 98000000", b""),
    "in chunks": ("Transfer-Encoding: chunked", b"f4240\r\n" + b"x" * 1_000_000 + b"\r\n1\r\n"),
    "in one chunk": ("Transfer-Encoding: chunked", b"5d75c80\r\n"),
}
"""How a body that is too large may come: a header, and how much of the body is sent."""


def answer_to(port: int, path: str, how: str) -> bytes:
    """Return the first line that a server of this machine answers to a large body, most of it not sent."""
    header, sent = LARGE[how]
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{header}\r\n\r\n"
        connection.sendall(head.encode() + sent)
        return connection.recv(1000).partition(b"\r\n")[0]
